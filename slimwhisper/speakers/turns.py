"""Turns: who speaks from when to when. What every back end finds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slimwhisper.audio.samples import Samples
from slimwhisper.speakers.choice import UNNAMED


@dataclass(frozen=True, slots=True)
class Turn:
    """A stretch of one speaker's speech."""

    start: float  # seconds
    end: float
    speaker: str


class FindTurns(Protocol):
    """What a back end's module has as `find_turns`."""

    def __call__(self, samples: Samples, speakers: int | None) -> list[Turn]:
        """The turns of a recording, 16 kHz; they may overlap. speakers: how many; None: find out.

        Called from several threads. Raises DependencyError.
        """


def by_first_speech(turns: Iterable[Turn], keep: Sequence[str] = ()) -> list[Turn]:
    """The turns in order, their speakers SPEAKER_00, ... in the order in which they begin to speak.

    keep: the names of those who are known.
    """
    names = {name: name for name in keep}
    unnamed = 0
    ordered = sorted(turns, key=lambda turn: (turn.start, turn.end))
    for turn in ordered:
        if turn.speaker not in names:
            names[turn.speaker] = UNNAMED.format(unnamed)
            unnamed += 1
    return [replace(turn, speaker=names[turn.speaker]) for turn in ordered]
