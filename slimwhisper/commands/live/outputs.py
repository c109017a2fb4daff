"""Writes the events of a live stream to standard output, and to a file as they come."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text as Styled

from slimwhisper.errors import OptionError
from slimwhisper.files import output_errors
from slimwhisper.live.types import (
    LiveEvent,
    SpeakersNamed,
    SpeechStarted,
    SpeechStopped,
    StreamFailed,
    TextUpdate,
    UtteranceEnded,
)
from slimwhisper.outputs import SENTENCES, cues
from slimwhisper.subtitles.cues import label
from slimwhisper.subtitles.sentences import to_sentences
from slimwhisper.text import escape_line, replace_unencodable
from slimwhisper.types import Transcript

Emit = Callable[[LiveEvent], None]  # is called with the events of a stream, in order
NAMES = {
    SpeechStarted: "speech_started",
    SpeechStopped: "speech_stopped",
    TextUpdate: "text",
    UtteranceEnded: "ended",
    SpeakersNamed: "speakers",
    StreamFailed: "failed",
}


class TextLines:
    """A line for each utterance, written as it is committed. diarize: at the end all segments
    again, each after its speaker's name.
    """

    def __init__(self, file: TextIO, diarize: bool = False) -> None:
        self._file, self._diarize = file, diarize
        self._begun = False  # a line
        self._said: dict[tuple[int, int], str] = {}  # by utterance and segment

    def event(self, event: LiveEvent) -> None:
        match event:
            case TextUpdate(committed=committed, tentative=tentative):
                self._add(committed)
                self._show(tentative if self._begun else tentative.lstrip())
            case UtteranceEnded(text=text):
                if not self._begun:
                    self._add(text)
                self._end()
                for segment in event.segments if self._diarize else ():
                    self._said[event.utterance, segment.id] = segment.text.strip()
            case SpeakersNamed():
                self.close()
                names = {(number, i): name for number, i, name in event.speakers}
                said = ((names.get(place), text) for place, text in self._said.items() if text)
                print("", *(label(name) + text for name, text in said), sep="\n", file=self._file)

    def close(self) -> None:
        """No event follows."""
        self._end()

    def _add(self, text: str) -> None:
        text = text if self._begun else text.lstrip()
        self._begun = self._begun or bool(text)
        self._write(text)

    def _write(self, text: str) -> None:
        print(replace_unencodable(text, self._file), end="", file=self._file, flush=True)

    def _show(self, tentative: str) -> None:
        """It may still change, so it is not written."""

    def _end(self) -> None:
        if self._begun:
            print(file=self._file, flush=True)
        self._begun = False


def is_screen(file: TextIO) -> bool:
    """Whether lines of a file can be rewritten."""
    return file.isatty() and os.environ.get("TERM") not in (None, "dumb", "unknown")


class Screen(TextLines):
    """The same on a terminal, with the tentative text after it, dim and rewritten; with NO_COLOR,
    in brackets.
    """

    def __init__(self, file: TextIO, diarize: bool = False, width: int | None = None) -> None:
        """width: in columns; None: the terminal's."""
        super().__init__(file, diarize)
        self._console = Console(
            file=file, width=width, force_terminal=True, highlight=False, markup=False
        )
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),  # warnings go above the tail
            vertical_overflow="crop",
        )
        self._last_line = ""  # committed text of the utterance whose line may still grow
        self._live.start()

    def close(self) -> None:
        """Remove the tentative text."""
        super().close()
        self._live.stop()

    def _write(self, text: str) -> None:
        """Print all lines but the last, which may become longer."""
        self._last_line += text
        for line in list(Styled(self._last_line).wrap(self._console, self._console.width))[:-1]:
            self._console.print(line.plain.rstrip())
            self._last_line = self._last_line[len(line.plain) :].lstrip()

    def _show(self, tentative: str) -> None:
        styled = Styled(self._last_line)
        if self._console.no_color:
            bare = tentative.lstrip()
            styled.append(tentative.replace(bare, f"[{bare}]") if bare else "")
        else:
            styled.append(tentative, style="dim")
        self._live.update(styled, refresh=True)

    def _end(self) -> None:
        self._live.update(Styled(""), refresh=True)
        if self._last_line:
            self._console.print(self._last_line)
        self._last_line, self._begun = "", False


def _text(file: TextIO, diarize: bool, stack: ExitStack) -> Emit:
    """Lines of text; on a terminal, also the tentative text."""
    kind = Screen if file is sys.stdout and is_screen(file) else TextLines
    output = kind(file, diarize)
    stack.callback(output.close)
    return output.event


def _json(file: TextIO, diarize: bool, stack: ExitStack) -> Emit:
    """One JSON object a line: `event`, and the event's fields."""

    def emit(event: LiveEvent) -> None:
        fields: dict[str, Any]
        match event:
            case StreamFailed(error=error):
                fields = {"message": str(error)}
            case UtteranceEnded():
                spoken = Transcript(event.text, list(event.segments), event.language)
                fields = {"utterance": event.utterance, "text": event.text}
                fields |= {"segments": spoken.segment_rows(), "language": event.language}
            case SpeechStarted():  # without fields for `commit` and `clear`, which are not used
                fields = {"utterance": event.utterance, "start": event.start}
            case _:
                fields = asdict(event)
        print(json.dumps({"event": NAMES[type(event)], **fields}), file=file, flush=True)

    return emit


def _cues(file: TextIO, diarize: bool, stack: ExitStack, format: str) -> Emit:
    """SubRip ("srt") or WebVTT ("vtt"): the sentences of each utterance that has ended."""
    numbers, ends = count(1), dict[int, float]()
    if format == "vtt":
        print("WEBVTT\n", file=file, flush=True)

    def emit(event: LiveEvent) -> None:
        if isinstance(event, SpeechStopped):
            ends[event.utterance] = event.end
        elif isinstance(event, UtteranceEnded):
            end = ends.pop(event.utterance, None)  # the next one's cues begin after it
            language = "en" if event.translated else event.language
            transcript = Transcript("", to_sentences(event.segments, language, end), language)
            for _, _, times, text in cues(transcript, {SENTENCES: True}, vtt=format == "vtt"):
                header = f"{next(numbers)}\n" if format == "srt" else ""
                print(f"{header}{times}\n{text}\n", file=file, flush=True)

    return emit


# who emits to a file; the stack closes what needs it
OUTPUTS: dict[str, Callable[[TextIO, bool, ExitStack], Emit]] = {
    "text": _text,  # a row for each of `flags.FORMATS`
    **{format: partial(_cues, format=format) for format in ("srt", "vtt")},
    "json": _json,
}


@contextmanager
def open_outputs(format: str, path: Path | None, diarize: bool = False) -> Iterator[Emit]:
    """The function that emits the events of a run. With a file, the format is the file's, and
    standard output gets text; without one, standard output gets the format. diarize: the last
    event has the speakers. Raises OutputError, and OptionError for a file that exists, and for
    cues with speakers.
    """
    if diarize and format not in ("text", "json"):
        raise OptionError(f"-f {format}: --diarize names speakers at the end; use -f text or json")
    with ExitStack() as stack:
        emitters: list[Emit] = []
        if path is not None:
            emitters.append(stack.enter_context(_in_file(format, path, diarize)))
            format = "text"
        emitters.append(OUTPUTS[format](sys.stdout, diarize, stack))

        def emit(event: LiveEvent) -> None:
            for each in emitters:
                each(event)

        yield emit


@contextmanager
def _in_file(format: str, path: Path, diarize: bool) -> Iterator[Emit]:
    name = escape_line(path)
    writing = partial(output_errors, f"{name}: cannot be written", "--output")

    def emit(event: LiveEvent) -> None:
        with writing():
            write(event)

    with ExitStack() as stack:
        with writing():
            if path.is_file() and path.stat().st_size:
                raise OptionError(f"{name}: already exists; choose another --output, or remove it")
            file = stack.enter_context(path.open("w", encoding="utf-8"))
            write = OUTPUTS[format](file, diarize, stack)
        try:
            yield emit
        finally:
            with writing():
                stack.close()
