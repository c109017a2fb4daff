"""Where a job stands, and how it ended: counts, the files in progress, audio time in words."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.jobs.inputs import InputFile
from slimwhisper.jobs.journal import Stamp
from slimwhisper.text import clock, shorten, shown

if TYPE_CHECKING:  # a job with nothing left to do ends without torch
    from slimwhisper.api import SlimWhisper

NAMES = 2  # of files in progress that the bar shows


@dataclass(slots=True)
class Current:
    """A file in progress."""

    recording: InputFile
    stamp: Stamp
    began: float = field(default_factory=time.perf_counter)
    seconds: float | None = None  # its length, once it is loaded
    done: float = 0.0  # seconds of it transcribed


@dataclass(slots=True)
class Tally:
    """A job's counts, and the audio of this run."""

    done: int = 0
    failed: int = 0  # and reported, in this run
    skipped: int = 0  # done in an earlier run, or their outputs exist
    failed_earlier: int = 0
    audio: float = 0.0  # seconds of the files done
    passed: float = 0.0  # seconds of the files done or failed
    loaded: float = 0.0  # seconds of all files that were loaded
    surveyed: float = 0.0  # seconds of all files, as far as they are known
    complete: bool = False  # whether all of them are
    began: float | None = None  # transcribing, after the model is loaded
    current: dict[Path, Current] = field(default_factory=dict)

    def start(self) -> None:
        """Count time from now."""
        self.began = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds of transcribing."""
        return 0.0 if self.began is None else time.perf_counter() - self.began

    @property
    def audio_so_far(self) -> float:
        """Seconds transcribed, those of files in progress included."""
        return self.audio + sum(c.done for c in list(self.current.values()))

    @property
    def speed(self) -> float:
        """Times real time."""
        elapsed = self.elapsed
        return self.audio_so_far / elapsed if elapsed > 0 else 0.0

    @property
    def position(self) -> float:
        """Seconds behind us, transcribed or failed."""
        return self.passed + sum(c.done for c in list(self.current.values()))

    @property
    def total(self) -> float:
        """Seconds in all, as far as they are known."""
        return max(self.surveyed, self.loaded, self.position)

    def line(self) -> str:
        """`12:30 of 1:02:00+ | 24.1 x real time, 2:05+ left | 3 done, 1 failed | a.mp3, +7`."""
        more = "" if self.complete else "+"
        speed = self.speed
        left = clock((self.total - self.position) / speed) + more if speed > 0 else "?"
        counts = f"{self.done} done" + (f", {self.failed} failed" if self.failed else "")
        names = [shorten(shown(path.name)) for path in list(self.current)[:NAMES]]
        if len(self.current) > NAMES:
            names.append(f"+{len(self.current) - NAMES}")
        parts = [
            f"{clock(self.position)} of {clock(self.total)}{more}",
            f"{speed:.1f} x real time, {left} left",
            counts,
            ", ".join(names),
        ]
        return " | ".join(filter(None, parts))


def model_facts(model: "SlimWhisper") -> dict[str, Any]:
    """Which model runs where, on which caches."""
    return {
        "model": model.name,
        "device": str(model.device),
        "dtype": model.compute_type,
        "cache": "+".join(model.forms),
        "bytes_per_window": model.bytes_per_window(),
        "baseline_bytes_per_window": model.baseline_bytes_per_window(),
        "fallbacks": list(model.fallbacks),
    }


def summary_facts(tally: Tally, status: int, journal: Path | None) -> dict[str, Any]:
    """The numbers of a job that is over."""
    return {
        "status": status,
        "done": tally.done,
        "failed": tally.failed,
        "skipped": tally.skipped,
        "failed_earlier": tally.failed_earlier,
        "audio_seconds": round(tally.audio, 3),
        "elapsed": round(tally.elapsed, 3),
        "speed": round(tally.speed, 3),
        "journal": None if journal is None else str(journal),
    }


def summary_lines(facts: dict[str, Any], model: dict[str, Any] | None) -> list[str]:
    """The same in words; `facts` and `model` are those of the functions above."""
    done, failed = facts["done"], facts["failed"]
    counts = f"{done} of {done + failed} files transcribed, {failed} failed"
    if facts["skipped"]:
        counts += f", {facts['skipped']} already done"
    if facts["failed_earlier"]:
        counts += f", {facts['failed_earlier']} failed in an earlier run"
    audio, elapsed, speed = facts["audio_seconds"], facts["elapsed"], facts["speed"]
    lines = [f"{counts}; {audio:.1f} s of audio in {elapsed:.1f} s ({speed:.1f} x real time)"]
    if facts["status"] > 1:
        resume = "; the same command resumes" if facts["journal"] else ""
        lines.append(f"stopped; what was done is written{resume}")
    if facts["journal"]:
        again = "; --retry_failed True tries the failed ones again"
        lines.append(f"journal: {facts['journal']}" + (again if facts["failed_earlier"] else ""))
    if model is not None:
        kept, baseline = model["bytes_per_window"], model["baseline_bytes_per_window"]
        lines.append(
            f"{model['model']} on {model['device']}, {model['dtype']}; "
            f"cache {model['cache']}: {kept / 1e6:.1f} MB a window, "
            f"{baseline / kept:.1f} times less than {baseline / 1e6:.1f}"
        )
        lines += model["fallbacks"]
    return lines
