"""Where events go: standard output, and a file that is written as it goes."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TextIO

from slimwhisper.commands.live.cues import Cues
from slimwhisper.commands.live.lines import JsonLines, TextLines
from slimwhisper.commands.live.screen import Screen, is_screen
from slimwhisper.errors import OptionError, OutputError
from slimwhisper.live.types import LiveEvent
from slimwhisper.text import one_line, shown


class Output(Protocol):
    """Receives the events of a stream, in order."""

    def event(self, event: LiveEvent) -> None: ...

    def close(self) -> None:
        """No event follows."""


OUTPUTS: dict[str, Callable[[TextIO], Output]] = {  # a row for each of `flags.FORMATS`
    "text": TextLines,
    "srt": lambda file: Cues(file, "srt"),
    "vtt": lambda file: Cues(file, "vtt"),
    "json": JsonLines,
}


@contextmanager
def opened(format: str, path: Path | None) -> Iterator[Sequence[Output]]:
    """The outputs of a run. A file has the format, and standard output then has text; without a
    file, it has the format. Raises OutputError, and OptionError for a file that exists.
    """
    with ExitStack() as stack:
        outputs: list[Output] = []
        if path is not None:
            outputs.append(FileOutput(format, path))
            stack.callback(outputs[0].close)
            format = "text"
        screen = format == "text" and is_screen(sys.stdout)
        output = Screen(sys.stdout) if screen else OUTPUTS[format](sys.stdout)
        stack.callback(output.close)
        yield [*outputs, output]


class FileOutput:
    """An output in a file of its own. Raises OutputError where it cannot be written."""

    def __init__(self, format: str, path: Path) -> None:
        self._name = shown(path)
        with self._writing():
            if path.is_file() and path.stat().st_size:
                raise OptionError(f"{self._name}: exists; choose another name, or remove it")
            self._file = path.open("w", encoding="utf-8")
            self._output = OUTPUTS[format](self._file)

    def event(self, event: LiveEvent) -> None:
        with self._writing():
            self._output.event(event)

    def close(self) -> None:
        with self._writing(), self._file:
            self._output.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self._name}: cannot be written ({one_line(error)}); choose another place"
            ) from error
