"""Turns: stretches of one speaker's speech, as all back ends return them."""

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


Between = tuple[int, int]  # speakers, at least and at most
# the `find_turns` of a back end's module: samples at 16 kHz -> turns, which may overlap. Called
# from several threads; raises DependencyError
FindTurns = Callable[[Samples, Between], list[Turn]]


def by_first_speech(turns: Iterable[Turn], keep: Sequence[str] = ()) -> list[Turn]:
    """The turns in order, with speakers SPEAKER_00, ... in the order of their first turns.

    keep: names of known speakers, which stay.
    """
    names = {name: name for name in keep}
    known = len(names)
    ordered = sorted(turns, key=lambda turn: (turn.start, turn.end))
    for turn in ordered:
        names.setdefault(turn.speaker, UNNAMED.format(len(names) - known))
    return [replace(turn, speaker=names[turn.speaker]) for turn in ordered]
