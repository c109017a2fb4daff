"""Where events go: standard output, and a file that is written as it goes."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TextIO

from slimwhisper.commands.live.screen import Screen, is_screen
from slimwhisper.errors import OptionError, OutputError
from slimwhisper.live.types import Ended, Failed, LiveEvent, SpeechStarted, SpeechStopped, Text
from slimwhisper.outputs.srt_vtt import cue_clock
from slimwhisper.text import one_line, printable, shown
from slimwhisper.types import Transcript

Tell = Callable[[LiveEvent], None]  # is called with the events of a stream, in order
NAMES = {
    SpeechStarted: "speech_started",
    SpeechStopped: "speech_stopped",
    Text: "text",
    Ended: "ended",
    Failed: "failed",
}


class TextLines:
    """A line for each utterance, written as it is committed."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._begun = False  # a line

    def event(self, event: LiveEvent) -> None:
        match event:
            case Text(committed=text) if text:
                self._add(text)
            case Ended(text=text):
                if not self._begun:
                    self._add(text)
                self.close()

    def close(self) -> None:
        """No event follows."""
        if self._begun:
            print(file=self._file, flush=True)
        self._begun = False

    def _add(self, text: str) -> None:
        text = text if self._begun else text.lstrip()
        self._begun = self._begun or bool(text)
        print(printable(text, self._file), end="", file=self._file, flush=True)


@contextmanager
def _text(file: TextIO) -> Iterator[Tell]:
    """On a terminal, with what is tentative."""
    output = Screen(file) if file is sys.stdout and is_screen(file) else TextLines(file)
    try:
        yield output.event
    finally:
        output.close()


@contextmanager
def _json(file: TextIO) -> Iterator[Tell]:
    """One JSON object a line: `event`, and the event's fields."""

    def tell(event: LiveEvent) -> None:
        fields: dict[str, Any]
        match event:
            case Failed(error=error):
                fields = {"message": str(error)}
            case Ended():
                spoken = Transcript(event.text, list(event.segments), event.language)
                fields = {"utterance": event.utterance, **spoken.as_dict()}
            case SpeechStarted():  # nobody calls `commit` or `clear` here
                fields = {"utterance": event.utterance, "start": event.start}
            case _:
                fields = asdict(event)
        print(json.dumps({"event": NAMES[type(event)], **fields}), file=file, flush=True)

    yield tell


@contextmanager
def _cues(file: TextIO, format: str) -> Iterator[Tell]:
    """SubRip ("srt") or WebVTT ("vtt"): a cue for each segment of an utterance that has ended."""
    number = 0
    if format == "vtt":
        print("WEBVTT\n", file=file, flush=True)

    def tell(event: LiveEvent) -> None:
        nonlocal number
        for segment in event.segments if isinstance(event, Ended) else ():
            text = segment.text.strip()
            if not text:
                continue
            number += 1
            if format == "srt":
                print(number, file=file)
                text, mark = text.replace("-->", "->"), ","
            else:
                text, mark = escape(text, quote=False), "."
            start, end = cue_clock(segment.start, mark), cue_clock(segment.end, mark)
            print(f"{start} --> {end}\n{text}\n", file=file, flush=True)

    yield tell


OUTPUTS: dict[
    str, Callable[[TextIO], AbstractContextManager[Tell]]
] = {  # a row for each of `flags.FORMATS`
    "text": _text,
    "srt": partial(_cues, format="srt"),
    "vtt": partial(_cues, format="vtt"),
    "json": _json,
}


@contextmanager
def opened(format: str, path: Path | None) -> Iterator[Tell]:
    """Where the events of a run go. A file has the format, and standard output then has text;
    without a file, it has the format. Raises OutputError, and OptionError for a file that exists.
    """
    with ExitStack() as stack:
        tells: list[Tell] = []
        if path is not None:
            tells.append(stack.enter_context(_in_file(format, path)))
            format = "text"
        tells.append(stack.enter_context(OUTPUTS[format](sys.stdout)))

        def tell(event: LiveEvent) -> None:
            for each in tells:
                each(event)

        yield tell


@contextmanager
def _in_file(format: str, path: Path) -> Iterator[Tell]:
    name = shown(path)

    @contextmanager
    def writing() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{name}: cannot be written ({one_line(error)}); choose another place"
            ) from error

    def tell(event: LiveEvent) -> None:
        with writing():
            write(event)

    with ExitStack() as stack:
        with writing():
            if path.is_file() and path.stat().st_size:
                raise OptionError(f"{name}: exists; choose another name, or remove it")
            file = stack.enter_context(path.open("w", encoding="utf-8"))
            write = stack.enter_context(OUTPUTS[format](file))
        try:
            yield tell
        finally:
            with writing():
                stack.close()
