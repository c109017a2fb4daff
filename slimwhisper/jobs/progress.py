"""Counts a job's files, audio and speed; prints transcripts, progress and the summary.

Text for people, or JSON for programs.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from slimwhisper.audio.samples import RemoteFile
from slimwhisper.cache.forms import brief
from slimwhisper.errors import SlimWhisperError
from slimwhisper.files import InputFile
from slimwhisper.jobs.writers import RecordingResult
from slimwhisper.outputs import FORMATS, segment_line
from slimwhisper.text import clock, escape_line, human_size
from slimwhisper.types import Segment, Transcript

if TYPE_CHECKING:  # slow: a job with nothing to do needs no torch, and one without terminal no rich
    from rich.progress import Progress

    from slimwhisper.api import SlimWhisper

NO_SPEECH = "[no speech]"
WIDTH = 24  # characters of a shortened name
NAMES_SHOWN = 2  # files in progress that the bar names
KINDS_SHOWN = 8  # suffixes of files that were left out


def shorten(name: str) -> str:
    """A long name without its middle: the end distinguishes the parts of a series."""
    return name if len(name) <= WIDTH else f"{name[: WIDTH // 2 - 1]}…{name[-WIDTH // 2 :]}"


@dataclass(slots=True)
class FileProgress:
    """A file in progress."""

    recording: InputFile
    began: float = field(default_factory=time.perf_counter)
    seconds: float | None = None  # length, once it is loaded
    done: float = 0.0  # seconds transcribed


@dataclass(slots=True)
class JobTotals:
    """A job's counts, and the audio of this run."""

    done: int = 0
    failed: int = 0  # in this run
    skipped: int = 0  # done in an earlier run, or the outputs exist
    failed_earlier: int = 0  # in an earlier run, and not tried again
    segments: int = 0  # with text, in files done
    flagged: int = 0  # of these
    dropped: int = 0  # left out by --drop
    audio: float = 0.0  # seconds of audio in files done or failed
    loaded: float = 0.0  # seconds of audio in files loaded so far
    surveyed: float = 0.0  # seconds of audio in files surveyed so far
    complete: bool = False  # the survey is complete
    began: float | None = None  # when transcription started, after loading the model
    current: dict[Path | RemoteFile, FileProgress] = field(default_factory=dict)

    @property
    def elapsed(self) -> float:
        """Seconds since transcription started."""
        return 0.0 if self.began is None else time.perf_counter() - self.began

    @property
    def audio_so_far(self) -> float:
        """Seconds of audio transcribed or failed, including files in progress."""
        return self.audio + sum(c.done for c in list(self.current.values()))

    @property
    def speed(self) -> float:
        """Seconds of audio per second."""
        elapsed = self.elapsed
        return self.audio_so_far / elapsed if elapsed > 0 else 0.0

    @property
    def total(self) -> float:
        """Seconds of audio in the whole job, as far as known."""
        return max(self.surveyed, self.loaded, self.audio_so_far)

    @property
    def remaining(self) -> float | None:
        """Estimated seconds until the audio known so far is done; None: not known."""
        known = self.total - self.audio_so_far
        if self.speed > 0 and (known > 0 or self.complete):
            return known / self.speed
        return None

    def line(self) -> str:
        """`12:30 of 1:02:00+ | 24.1 x real time, 2:05+ left | 3 done, 1 failed | a.mp3, +7`."""
        more = "" if self.complete else "+"
        remaining = "?" if self.remaining is None else clock(self.remaining) + more
        speed = f"{self.speed:.1f} x real time, {remaining} left"
        line = f"{clock(self.audio_so_far)} of {clock(self.total)}{more} | {speed}"
        line += f" | {self.done} done"
        if self.failed:
            line += f", {self.failed} failed"
        current = list(self.current)
        names = [shorten(escape_line(Path(str(path)).name)) for path in current[:NAMES_SHOWN]]
        if others := current[NAMES_SHOWN:]:
            names.append(f"+{len(others)}")
        return f"{line} | {', '.join(names)}" if names else line


def model_facts(model: "SlimWhisper", batch_size: int) -> dict[str, Any]:
    """The model, where it runs, how many windows it decodes together, and its caches."""
    return {
        "model": model.name,
        "device": str(model.device),
        "dtype": model.compute_type,
        "fastest_dtype": model.fastest_dtype,
        "batch_size": batch_size,
        "cache": "+".join(map(brief, model.forms)),
        "bytes_per_window": model.bytes_per_window(),
        "baseline_bytes_per_window": model.baseline_bytes_per_window(),
        "fallbacks": list(model.fallbacks),
        "settings": list(model.settings),
    }


def model_terms(facts: dict[str, Any] | None, requested_model: str) -> dict[str, str]:
    """The report's lines about the model, from `model_facts`; None: no model was loaded."""
    if facts is None:
        return {"model": f"{requested_model}, not loaded, as this run had nothing to transcribe"}
    keys = ("model", "device", "dtype", "batch_size", "cache")
    terms = {key.replace("_", " "): str(facts[key]) for key in keys}
    notes = [*facts["fallbacks"], *facts["settings"], *_text_memory(facts)]
    return terms | {"notes": "; ".join(notes) or "none"}


def summary_facts(
    totals: JobTotals, status: int, journal: Path | str | None, left_out: Mapping[str, int]
) -> dict[str, Any]:
    """The numbers of a finished job. left_out: suffix -> files that were no recordings; those that
    jobs write do not count.
    """
    ours = {*FORMATS, "jsonl"}
    others = {kind: n for kind, n in left_out.items() if kind.removeprefix(".") not in ours}
    counts = ("done", "failed", "skipped", "failed_earlier", "segments")
    seconds = {"audio_seconds": totals.audio, "elapsed": totals.elapsed, "speed": totals.speed}
    return {
        "status": status,
        **{name: getattr(totals, name) for name in counts},
        "to_check": totals.flagged,
        **({"dropped": totals.dropped} if totals.dropped else {}),
        **{name: round(value, 3) for name, value in seconds.items()},
        "journal": None if journal is None else str(journal),
        **({"left_out": others} if others else {}),
    }


def summary_lines(facts: dict[str, Any], model: dict[str, Any] | None) -> list[str]:
    """The summary as text, from `summary_facts` and, if a model was loaded, `model_facts`."""
    lines = [_counts_line(facts)]
    if flagged := facts["to_check"]:
        of = "1 segment" if facts["segments"] == 1 else f"{facts['segments']} segments"
        where = "" if "report" in facts else "; --report FILE.html lists them"
        lines.append(f"{flagged} of {of} to check{where}")
    if dropped := facts.get("dropped"):
        lines.append(f"{dropped} segment{'s' * (dropped > 1)} dropped")
    if left_out := facts.get("left_out"):
        kinds = sorted(left_out.items(), key=lambda kind: -kind[1])
        kinds[KINDS_SHOWN:] = [("others", sum(n for _, n in kinds[KINDS_SHOWN:]))]
        shown = ", ".join(f"{n} {escape_line(kind)}" for kind, n in kinds if n)
        lines.append(f"left out: {shown}")
    if facts["status"] > 1:
        resume = "; run the same command again to resume" if facts["journal"] else ""
        lines.append(f"stopped early; finished files are saved{resume}")
    if facts["failed_earlier"]:
        lines.append("add --retry_failed True to retry files that failed in an earlier run")
    if facts["journal"]:
        lines.append(f"journal: {facts['journal']}")
    if "report" in facts:
        lines.append(f"report: {facts['report']}")
    if model is not None:
        lines += [_model_line(model), *model["fallbacks"], *model["settings"]]
    if faster := facts.get("faster"):
        lines.append(f"1.5 x as fast: --compute_type auto ({faster}: some 3 of 1,000 words differ)")
    return lines


def _model_line(model: dict[str, Any]) -> str:
    """The model, its device, and how much smaller its cache is."""
    size, baseline = model["bytes_per_window"], model["baseline_bytes_per_window"]
    line = f"{model['model']} on {model['device']}, {model['dtype']}, batch {model['batch_size']}"
    line += f"; cache ({model['cache']}): {human_size(size)} per window"
    if size != baseline:
        times = f"{baseline / size:.1f} times smaller"
        line += f", {times} than Whisper's own {human_size(baseline)}"
    return line + "".join(f"; {note}" for note in _text_memory(model))


def _text_memory(model: dict[str, Any]) -> Iterator[str]:
    """The memory that texts took; empty if no text was decoded in this process."""
    if texts := model.get("peak_bytes"):
        yield f"the cache of texts took up to {human_size(texts)}"
    if times := model.get("preemptions"):
        yield f"texts waited for memory {times} times (see --cache_memory)"


def _counts_line(facts: dict[str, Any]) -> str:
    """The numbers of files transcribed, failed and skipped, and the speed."""
    done, failed = facts["done"], facts["failed"]
    outcomes = {"skipped": "already done", "failed_earlier": "failed in an earlier run"}
    earlier = [f"{facts[key]} {outcome}" for key, outcome in outcomes.items() if facts[key]]
    if not done + failed:
        verdict = "No files transcribed" if facts["status"] > 1 else "Nothing to do"
        return f"{verdict}: {', '.join(earlier)}." if earlier else f"{verdict}."
    files = f"{done + failed} file{'s' * (done + failed > 1)}"
    line = ", ".join([f"{done} of {files} transcribed", f"{failed} failed", *earlier])
    if not done:
        return line
    audio, elapsed, speed = facts["audio_seconds"], facts["elapsed"], facts["speed"]
    return f"{line}; {audio:.1f} s of audio in {elapsed:.1f} s ({speed:.1f} x real time)"


class TerminalConsole:
    """Prints transcripts on standard output; errors, progress and the summary on standard error.

    Any thread may call `error` and `warning`; the other methods, one thread at a time. `live`:
    print each segment as it is decoded; otherwise print file by file. There is a progress bar only
    if standard error is a terminal.
    """

    interval = 0.1  # seconds between updates of the progress bar

    def __init__(self, *, verbose: bool, live: bool) -> None:
        self._verbose, self._live = verbose, live
        self._bar: Progress | None = None
        self.has_bar = sys.stderr.isatty()

    def start(self, facts: dict[str, Any]) -> None:
        """The model has been loaded."""
        if self.has_bar:
            from rich.console import Console as Screen
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (BarColumn(20), TextColumn("{task.description}", markup=False))
            off = ("auto_refresh", "redirect_stdout", "redirect_stderr")
            how: dict[str, Any] = {"console": Screen(file=sys.stderr), **dict.fromkeys(off, False)}
            self._bar = Progress(*columns, transient=True, **how)
            self._bar.add_task(JobTotals().line(), total=1.0)
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
            self._bar.update(
                self._bar.task_ids[0],
                total=max(totals.total, 1e-3),
                completed=totals.audio_so_far,
                description=totals.line(),
                refresh=True,
            )

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


class JSONConsole:
    """Prints one JSON object per line on standard output: an `event` and its fields.

    The methods are those of `TerminalConsole`; any thread may call.
    """

    has_bar = False
    interval = 1.0  # seconds between progress events

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
        self._emit(
            "progress",
            done=totals.done,
            failed=totals.failed,
            audio_seconds=round(totals.audio_so_far, 3),
            speed=round(totals.speed, 3),
            left=None if totals.remaining is None else round(totals.remaining, 1),
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
    """Passes on the library's warnings, except those about caches.

    The summary lists the cache forms that were replaced.
    """

    def __init__(self, warn: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("slimwhisper.cache"):
            self._warn(record.getMessage())


def spoken_lines(segments: Sequence[Segment]) -> list[str]:
    """A line for each segment that has text; silence yields segments without any."""
    return [segment_line(segment) for segment in segments if segment.text.strip()]


def with_path(path: Path | RemoteFile, error: SlimWhisperError) -> str:
    """The error's message, preceded by the file's path unless it already contains it."""
    text = str(error)
    return text if str(path) in text or repr(str(path)) in text else f"{path}: {text}"
