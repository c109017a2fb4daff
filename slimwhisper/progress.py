"""Where a job stands: counts, the files in progress, and audio time in words."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from slimwhisper.files import InputFile
from slimwhisper.journal import Stamp
from slimwhisper.text import clock, shorten, shown

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
