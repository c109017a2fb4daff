"""The diarization error rate, as NIST's md-eval defines it, and the speakers' best mapping."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import linear_sum_assignment

from slimwhisper.speakers.turns import Turn

COLLAR = 0.25  # seconds that are not scored on both sides of each true border


@dataclass(frozen=True, slots=True)
class DiarizationError:
    """Seconds of scored speech, and of what is wrong in it."""

    speech: float  # by the truth; where two speak it counts twice
    missed: float
    false_alarm: float
    confusion: float

    @property
    def rate(self) -> float:
        wrong = self.missed + self.false_alarm + self.confusion
        return wrong / self.speech if self.speech else float(wrong > 0)

    def __add__(self, other: "DiarizationError") -> "DiarizationError":
        return DiarizationError(
            self.speech + other.speech,
            self.missed + other.missed,
            self.false_alarm + other.false_alarm,
            self.confusion + other.confusion,
        )


def best_mapping(truth: Sequence[Turn], found: Sequence[Turn]) -> dict[str, str]:
    """Found speakers -> true ones, so that most of the time is right; each at most once."""
    names, theirs = _names(truth), _names(found)
    shared = np.zeros((len(theirs), len(names)))
    for ours in truth:
        for turn in found:
            both = min(ours.end, turn.end) - max(ours.start, turn.start)
            shared[theirs.index(turn.speaker), names.index(ours.speaker)] += max(both, 0)
    rows, columns = linear_sum_assignment(-shared)
    return {theirs[i]: names[j] for i, j in zip(rows, columns, strict=True) if shared[i, j] > 0}


def diarization_error(
    truth: Sequence[Turn],
    found: Sequence[Turn],
    collar: float = COLLAR,
    mapping: dict[str, str] | None = None,
) -> DiarizationError:
    """The error of found turns. mapping: of found speakers to true ones; None: the best."""
    mapping = best_mapping(truth, found) if mapping is None else mapping
    borders = [t for turn in truth for t in (turn.start, turn.end)]
    points = {t + side for t in borders for side in (-collar, collar)} | set(borders)
    points |= {t for turn in found for t in (turn.start, turn.end)}
    speech = missed = false_alarm = confusion = 0.0
    for start, end in pairwise(sorted(points)):
        middle, seconds = (start + end) / 2, end - start
        if any(abs(middle - t) < collar for t in borders):
            continue
        here = {turn.speaker for turn in truth if turn.start <= middle < turn.end}
        heard = [turn.speaker for turn in found if turn.start <= middle < turn.end]
        heard_as = {mapping.get(name, f"({name})") for name in heard}
        speech += seconds * len(here)
        missed += seconds * max(0, len(here) - len(heard_as))
        false_alarm += seconds * max(0, len(heard_as) - len(here))
        confusion += seconds * (min(len(here), len(heard_as)) - len(here & heard_as))
    return DiarizationError(speech, missed, false_alarm, confusion)


def _names(turns: Sequence[Turn]) -> list[str]:
    return sorted({turn.speaker for turn in turns})
