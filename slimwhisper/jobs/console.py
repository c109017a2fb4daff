"""Prints a job's transcripts, progress and summary: text for people, or JSON for programs."""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from slimwhisper.audio.sources import RemoteFile
from slimwhisper.errors import SlimWhisperError
from slimwhisper.jobs.progress import JobTotals
from slimwhisper.jobs.results.writers import RecordingResult
from slimwhisper.outputs.formats import segment_line
from slimwhisper.text import escape_line
from slimwhisper.types import Segment, Transcript

if TYPE_CHECKING:  # slow: only a terminal needs it
    from rich.progress import Progress

BAR_INTERVAL = 0.1  # seconds between updates of the progress bar
PROGRESS_INTERVAL = 1.0  # seconds between progress events
NO_SPEECH = "[no speech]"


class TerminalConsole:
    """Prints transcripts on standard output; errors, progress and the summary on standard error.

    Any thread may call `error` and `warning`; the other methods, one thread at a time. `live`:
    print each segment as it is decoded; otherwise print file by file. There is a progress bar only
    if standard error is a terminal.
    """

    interval = BAR_INTERVAL

    def __init__(self, *, verbose: bool, live: bool) -> None:
        self._verbose, self._live = verbose, live
        self._bar: Progress | None = None
        self.has_bar = sys.stderr.isatty()

    def start(self, facts: dict[str, Any]) -> None:
        """The model has been loaded."""
        if self.has_bar:
            self._bar = progress_bar()
            self._bar.start()

    def segments(self, path: Path | RemoteFile, segments: Sequence[Segment]) -> None:
        """More segments of a file have been decoded."""
        if self._live:
            self._print(*spoken_lines(segments))

    def ended(self, path: Path | RemoteFile, outcome: RecordingResult) -> None:
        """A file's outputs have been written, or it failed."""
        if isinstance(outcome.result, SlimWhisperError):
            self.error(with_path(path, outcome.result))
        elif self._verbose:
            lines = spoken_lines(outcome.result.segments)
            if not self._live:
                self._print(f"{escape_line(path)}:", *lines)
            if not lines:
                self._print(NO_SPEECH)

    def error(self, text: str) -> None:
        """An error that is not about one recording."""
        self._print(f"slimwhisper: {escape_line(text)}", file=sys.stderr)

    def warning(self, text: str) -> None:
        """A warning for the user."""
        self.error(f"warning: {text}")

    def progress(self, totals: JobTotals) -> None:
        """The job has advanced; called every `interval` seconds."""
        if self._bar is not None:
            shown = {"completed": totals.audio_so_far, "description": totals.line()}
            total = max(totals.total, 1e-3)
            self._bar.update(self._bar.task_ids[0], total=total, refresh=True, **shown)

    def summary(self, facts: dict[str, Any], lines: Sequence[str]) -> None:
        """The job has ended; `facts` (for programs) and `lines` (for people) say the same."""
        print(*map(escape_line, lines), sep="\n", file=sys.stderr)

    def close(self) -> None:
        """The job's work is done; only errors and the summary may follow."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, *lines: str, file: TextIO | None = None) -> None:
        """Print lines on standard output, or on the file, above the progress bar."""
        file = file or sys.stdout
        for line in lines:
            if self._bar is not None and file.isatty():
                self._bar.console.out(line, highlight=False)
            else:
                print(line, file=file)
        file.flush()


def progress_bar() -> "Progress":
    """A bar and a line of text on standard error, the description of the only task."""
    from rich.console import Console as Screen
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(
        BarColumn(20),
        TextColumn("{task.description}", markup=False),
        console=Screen(file=sys.stderr),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task(JobTotals().line(), total=1.0)
    return bar


class JSONConsole:
    """Prints one JSON object per line on standard output: an `event` and its fields.

    The methods are those of `TerminalConsole`; any thread may call.
    """

    has_bar = False
    interval = PROGRESS_INTERVAL

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose

    def start(self, facts: dict[str, Any]) -> None:
        self._emit("start", **facts)

    def segments(self, path: Path | RemoteFile, segments: Sequence[Segment]) -> None:
        if self._verbose:
            for segment in segments:
                fields = Transcript("", [segment], "").segment_rows()[0]
                self._emit("segment", path=str(path), **fields)

    def ended(self, path: Path | RemoteFile, outcome: RecordingResult) -> None:
        result = outcome.result
        self._emit(
            "file",
            path=str(path),
            status=outcome.status,
            seconds=outcome.seconds,
            error=str(result) if isinstance(result, SlimWhisperError) else None,
            elapsed=round(outcome.elapsed or 0.0, 3),
            language=result.language if isinstance(result, Transcript) else None,
            outputs=list(outcome.outputs),
        )

    def error(self, text: str) -> None:
        self._emit("error", message=text)

    def warning(self, text: str) -> None:
        self._emit("warning", message=text)

    def progress(self, totals: JobTotals) -> None:
        fill = {worker: round(share, 3) for worker, share in totals.fill.items()}
        self._emit(
            "progress",
            done=totals.done,
            failed=totals.failed,
            audio_seconds=round(totals.audio_so_far, 3),
            speed=round(totals.speed, 3),
            left=None if totals.remaining is None else round(totals.remaining, 1),
            **({"filled": fill} if fill else {}),
        )

    def summary(self, facts: dict[str, Any], lines: Sequence[str]) -> None:
        self._emit("summary", **facts)

    def close(self) -> None:
        pass

    def _emit(self, event: str, **fields: Any) -> None:
        # in one write, so that lines of several threads do not mix
        print(json.dumps({"event": event, **fields}) + "\n", end="", flush=True)


Console = TerminalConsole | JSONConsole


class LogHandler(logging.Handler):
    """Shows the library's warnings on a console, except those about caches.

    The summary lists the cache forms that were replaced.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("slimwhisper.cache"):
            self._console.warning(record.getMessage())


def spoken_lines(segments: Sequence[Segment]) -> list[str]:
    """A line for each segment that has text; silence yields segments without any."""
    return [segment_line(segment) for segment in segments if segment.text.strip()]


def with_path(path: Path | RemoteFile, error: SlimWhisperError) -> str:
    """The error's message, preceded by the file's path unless it already contains it."""
    text = str(error)
    return text if str(path) in text or repr(str(path)) in text else f"{path}: {text}"
