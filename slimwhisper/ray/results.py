"""What goes between the driver and its workers."""

from dataclasses import dataclass, field
from typing import Any

from slimwhisper.jobs.inputs import InputFile
from slimwhisper.jobs.marks import Written


@dataclass(frozen=True, slots=True)
class Settings:
    """What all workers of a job do alike."""

    folder: str  # of the driver, below which relative paths are
    load: dict[str, Any]  # arguments of `load_model`
    threads: int  # of torch; 0: as it is
    batch_size: int | None
    loaders: int | None
    allow_truncated: bool
    options: dict[str, Any]  # fields of `slimwhisper.Options`
    output_dir: str
    output_format: str
    layout: dict[str, Any]
    with_text: bool  # results have their text, for rows or to be shown


@dataclass(slots=True)
class FeedCounts:
    """The counters of one engine; only its thread writes them. Names as in the server's."""

    finished: int = 0
    failed: int = 0
    audio_seconds: float = 0.0  # of finished recordings
    busy_seconds: float = 0.0  # that the engine worked
    steps: int = 0  # of the engine
    filled: int = 0  # slots in use, summed over the steps
    slots: int = 0

    @property
    def fill(self) -> float:
        """The share of the slots in use, mean over all steps."""
        return self.filled / (self.steps * self.slots) if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has loaded its model."""

    facts: dict[str, Any]  # `model_facts`
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Ended:
    """A recording whose outputs have been written, or that failed."""

    recording: InputFile
    written: Written
    seconds: float | None  # of audio


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker has to say: what has ended since the last report, and its counts."""

    ended: list[Ended] = field(default_factory=list)
    counts: FeedCounts = field(default_factory=FeedCounts)
