"""How a recording ended: what was written, and what a sink marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slimwhisper.errors import SlimWhisperError
from slimwhisper.jobs.inputs.inputs import InputFile
from slimwhisper.jobs.journal.journal import Finished, Status
from slimwhisper.storage.stamps import Stamp
from slimwhisper.types import Transcript

Outputs = Sequence[Path | str]


@dataclass(frozen=True, slots=True)
class Written:
    """How a recording ended, and its outputs. It can be pickled."""

    status: Status
    result: Transcript | SlimWhisperError
    outputs: Outputs = ()
    segments: int = 0  # with text
    flagged: int = 0  # of these


@dataclass(frozen=True, slots=True)
class Mark:
    """A recording that has ended."""

    recording: InputFile
    stamp: Stamp
    seconds: float | None  # of audio
    written: Written

    @property
    def error(self) -> str | None:
        """Why there are no outputs."""
        result = self.written.result
        return str(result) if isinstance(result, SlimWhisperError) else None

    @property
    def finished(self) -> Finished:
        """What the journal records."""
        return self.stamp, self.written.status, self.seconds, self.error
