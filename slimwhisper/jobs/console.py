"""What a job says while it runs: to people (`Talk`), or to machines (`Lines`)."""

import json
import logging
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from tqdm import tqdm

from slimwhisper.errors import SlimWhisperError
from slimwhisper.jobs.progress import Current, Tally
from slimwhisper.text import shown
from slimwhisper.types import Segment, Transcript
from slimwhisper.writers import segment_line

EVERY = 0.1  # seconds between two drawings of the bar


class Console(Protocol):
    """The occasions on which something is said; any thread may call."""

    has_bar: bool  # total audio time is of use

    def start(self, facts: dict[str, Any]) -> None:
        """The model is loaded."""

    def segments(self, path: Path, segments: Sequence[Segment]) -> None:
        """New segments of a file."""

    def done(self, current: Current, transcript: Transcript, outputs: Sequence[Path]) -> None:
        """A file's outputs are in place."""

    def failed(self, current: Current, status: str, error: SlimWhisperError) -> None:
        """A file cost a line."""

    def error(self, text: str) -> None:
        """Something else did."""

    def warning(self, text: str) -> None:
        """Something is to be known."""

    def progress(self, tally: Tally) -> None:
        """Something went on; called often."""

    def summary(self, facts: dict[str, Any], lines: Sequence[str]) -> None:
        """The end: `facts` for machines, `lines` for people."""

    def close(self) -> None:
        """No more will be said but errors and the summary."""


class Talk:
    """Transcripts on standard output; errors, a bar and the summary on standard error.

    `live`: segments are printed as they come, else file by file. The bar is for terminals alone.
    """

    def __init__(self, *, verbose: bool, live: bool) -> None:
        self._verbose = verbose
        self._live = live
        self._bar: tqdm[Any] | None = None
        self._next = 0.0
        self.has_bar = sys.stderr.isatty()

    def start(self, facts: dict[str, Any]) -> None:
        if self.has_bar:
            self._bar = tqdm(
                bar_format="{bar:20}| {desc}", total=1, leave=False, dynamic_ncols=True
            )

    def segments(self, path: Path, segments: Sequence[Segment]) -> None:
        if self._live:
            self._print(*map(segment_line, segments))

    def done(self, current: Current, transcript: Transcript, outputs: Sequence[Path]) -> None:
        if self._verbose and not self._live:
            heading = f"{shown(current.recording.path)}:"
            self._print(heading, *map(segment_line, transcript.segments))

    def failed(self, current: Current, status: str, error: SlimWhisperError) -> None:
        self.error(naming(current.recording.path, error))

    def error(self, text: str) -> None:
        tqdm.write(f"slimwhisper: {shown(text)}", file=sys.stderr)

    def warning(self, text: str) -> None:
        self.error(f"warning: {text}")

    def progress(self, tally: Tally) -> None:
        if self._bar is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self._bar.total = max(tally.total, 1e-3)
            self._bar.n = min(tally.position, self._bar.total)
            self._bar.set_description_str(tally.line(), refresh=False)
            self._bar.refresh()

    def summary(self, facts: dict[str, Any], lines: Sequence[str]) -> None:
        print(*map(shown, lines), sep="\n", file=sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _print(self, *lines: str) -> None:
        for line in lines:
            tqdm.write(printable(line, sys.stdout), file=sys.stdout)
        sys.stdout.flush()


class Lines:
    """One JSON object a line on standard output: its `event`, and what belongs to it."""

    has_bar = False

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._next = 0.0
        self._lock = threading.Lock()

    def start(self, facts: dict[str, Any]) -> None:
        self._emit("start", **facts)

    def segments(self, path: Path, segments: Sequence[Segment]) -> None:
        if self._verbose:
            for segment in segments:
                fields = Transcript("", [segment], "").as_dict()["segments"][0]
                self._emit("segment", path=str(path), **fields)

    def done(self, current: Current, transcript: Transcript, outputs: Sequence[Path]) -> None:
        self._file(
            current, "done", None, language=transcript.language, outputs=[str(p) for p in outputs]
        )

    def failed(self, current: Current, status: str, error: SlimWhisperError) -> None:
        self._file(current, status, str(error), language=None, outputs=[])

    def _file(self, current: Current, status: str, error: str | None, **rest: Any) -> None:
        elapsed = round(time.perf_counter() - current.began, 3)
        self._emit(
            "file",
            path=str(current.recording.path),
            status=status,
            seconds=current.seconds,
            error=error,
            elapsed=elapsed,
            **rest,
        )

    def error(self, text: str) -> None:
        self._emit("error", message=text)

    def warning(self, text: str) -> None:
        self._emit("warning", message=text)

    def progress(self, tally: Tally) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1
            self._emit(
                "progress",
                done=tally.done,
                failed=tally.failed,
                audio_seconds=round(tally.audio_so_far, 3),
                speed=round(tally.speed, 3),
            )

    def summary(self, facts: dict[str, Any], lines: Sequence[str]) -> None:
        self._emit("summary", **facts)

    def close(self) -> None:
        pass

    def _emit(self, event: str, **rest: Any) -> None:
        line = json.dumps({"event": event, **rest})
        with self._lock:
            print(line, flush=True)


class LogHandler(logging.Handler):
    """What the library logs, said on a console; the summary tells which caches were chosen."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("slimwhisper.cache"):
            self._console.warning(record.getMessage())


def naming(path: Path, error: SlimWhisperError) -> str:
    """The error's line, with the file's name if it has none yet."""
    text = str(error)
    return text if str(path) in text or repr(str(path)) in text else f"{path}: {text}"


def printable(text: str, stream: TextIO) -> str:
    """What a stream's encoding cannot say becomes a question mark, as whisper does."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
