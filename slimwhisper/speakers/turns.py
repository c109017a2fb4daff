"""Turns: who speaks from when to when. What every back end finds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from slimwhisper.audio.samples import Samples
from slimwhisper.speakers.choice import UNNAMED


@dataclass(frozen=True, slots=True)
class Turn:
    """A stretch of one speaker's speech."""

    start: float  # seconds
    end: float
    speaker: str


# what a back end's module has as `find_turns`: samples at 16 kHz, and how many speakers there are
# (None: find out) -> turns, which may overlap. Called from several threads; raises DependencyError
FindTurns = Callable[[Samples, int | None], list[Turn]]


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
