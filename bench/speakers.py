"""Measures diarization: python bench/speakers.py FOLDER [--seeds 5] [--results FILE]

FOLDER has the recordings of the Free Spoken Digit Dataset. Conversations are joined from them
(`conversations.py`), and the back end `embedding` finds the speakers: how many are found, given,
and given with reference recordings. Each row is the diarization error rate, without a collar and
with one of 0.25 s on both sides of a true border, and the share of the words, as the bundled model
`digits` writes them, that have the right speaker. Ends in a table in Markdown; --results appends
rows of JSON.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from conversations import CALM, HASTY, UNEVEN, Conversation, Digits, Manner, converse, reference
from scipy.optimize import linear_sum_assignment
from timing import machine

import slimwhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.speakers.assign import Timeline
from slimwhisper.speakers.embedding import find_voices, turns_of
from slimwhisper.speakers.known import name_known
from slimwhisper.speakers.turns import Turn
from slimwhisper.types import SAMPLE_RATE

CASES = [(2, CALM), (3, CALM), (4, CALM), (5, CALM), (1, CALM), (2, UNEVEN), (2, HASTY)]
TURNS = 14
COLLAR = 0.25  # seconds that are not scored on both sides of each true border
FIRST_SEED = 200  # those below chose the settings
Words = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class DiarizationError:
    """As NIST's md-eval defines it: seconds of scored speech, and of what is wrong in it."""

    speech: float  # by the truth; where two speak it counts twice
    missed: float
    false_alarm: float
    confusion: float

    @property
    def rate(self) -> float:
        wrong = self.missed + self.false_alarm + self.confusion
        return wrong / self.speech if self.speech else float(wrong > 0)

    def __add__(self, other: "DiarizationError") -> "DiarizationError":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return DiarizationError(*(a + b for a, b in pairs))


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
        detected = [turn.speaker for turn in found if turn.start <= middle < turn.end]
        detected_as = {mapping.get(name, f"({name})") for name in detected}
        speech += seconds * len(here)
        missed += seconds * max(0, len(here) - len(detected_as))
        false_alarm += seconds * max(0, len(detected_as) - len(here))
        confusion += seconds * (min(len(here), len(detected_as)) - len(here & detected_as))
    return DiarizationError(speech, missed, false_alarm, confusion)


def _names(turns: Sequence[Turn]) -> list[str]:
    return sorted({turn.speaker for turn in turns})


@dataclass
class Tally:
    """What one way of diarizing did in the conversations of a case."""

    error: DiarizationError = field(default_factory=lambda: DiarizationError(0, 0, 0, 0))
    collared: DiarizationError = field(default_factory=lambda: DiarizationError(0, 0, 0, 0))
    counts: list[int] = field(default_factory=list)  # speakers found
    right: int = 0  # words
    words: int = 0

    def add(self, truth: Conversation, turns: list[Turn], words: Words, named: bool) -> None:
        same = {turn.speaker: turn.speaker for turn in turns}
        mapping = same if named else best_mapping(truth.turns, turns)
        self.error += diarization_error(truth.turns, turns, 0.0, mapping)
        self.collared += diarization_error(truth.turns, turns, COLLAR, mapping)
        self.counts.append(len(same))
        speaker_at, spoken_by = Timeline(turns), Timeline(truth.turns)
        for word in words:
            wanted = spoken_by(word["start"], word["end"])
            if wanted is not None:
                found = speaker_at(word["start"], word["end"])
                self.words += 1
                self.right += mapping.get(found or "") == wanted


def measure(model: Any, digits: Digits, speakers: int, manner: Manner, seeds: range) -> list[Any]:
    """Rows of one case."""
    tallies = {way: Tally() for way in ("found", "given", "named")}
    sound = seconds = 0.0
    for seed in seeds:
        truth = converse(digits, speakers, TURNS, seed, manner)
        samples = ArraySamples(truth.audio)
        began = time.perf_counter()
        voices = find_voices(samples)
        found = turns_of(voices, None)
        seconds += time.perf_counter() - began
        sound += len(truth.audio) / SAMPLE_RATE
        given = turns_of(voices, speakers)
        named = name_known(samples, given, references(digits, seed))
        result = model.transcribe(truth.audio, language="en", word_timestamps=True)
        words = [word for segment in result["segments"] for word in segment["words"]]
        for way, turns in (("found", found), ("given", given), ("named", named)):
            tallies[way].add(truth, turns, words, way == "named")
    return [
        {
            "speakers": speakers,
            "manner": manner.name,
            "way": way,
            "error": t.error.rate,
            "collared": t.collared.rate,
            "missed": t.error.missed / t.error.speech,
            "false_alarm": t.error.false_alarm / t.error.speech,
            "confusion": t.error.confusion / t.error.speech,
            "words_right": t.right / t.words,
            "words": t.words,
            "counts": t.counts,
            "times_real_time": sound / seconds,
        }
        for way, t in tallies.items()
    ]


def references(digits: Digits, seed: int) -> list[tuple[str, str]]:
    """A reference of everybody, also of those who do not speak: names and files."""
    pairs = []
    for name in digits.speakers:
        path = FOLDER / f"{name}-{seed}.wav"
        if not path.exists():
            soundfile.write(path, reference(digits, name, seed), SAMPLE_RATE)
        pairs.append((name, str(path)))
    return pairs


def errors(row: dict[str, Any]) -> str:
    """Without and with a collar."""
    return f"{100 * row['error']:.1f}, {100 * row['collared']:.1f} %"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown, those of a case in one line."""
    lines = [
        "| speakers | talk | error, number found | number right | error, number given "
        "| error, named | words: found, given, named |",
        "|---|---|---|---|---|---|---|",
    ]
    for i in range(0, len(rows), 3):
        found, given, named = rows[i : i + 3]
        exact = sum(n == found["speakers"] for n in found["counts"])
        each = [errors(row) for row in (found, given, named)]
        shares = ", ".join(f"{100 * r['words_right']:.1f}" for r in (found, given, named))
        lines.append(
            f"| {found['speakers']} | {found['manner']} | {each[0]} "
            f"| {exact} of {len(found['counts'])} | {each[1]} | {each[2]} | {shares} % |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5, help="conversations of each case")
    parser.add_argument("--results", type=Path, help="file that gets each row as JSON")
    arguments = parser.parse_args()
    digits, model = Digits(arguments.folder), slimwhisper.load_model("digits", device="cpu")
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        FOLDER = Path(temporary)
        for speakers, manner in CASES:
            fresh = measure(model, digits, speakers, manner, seeds)
            rows += fresh
            for row in fresh:
                print(json.dumps(row), flush=True)
                if arguments.results is not None:
                    with arguments.results.open("a") as file:
                        print(json.dumps(row), file=file)
    print(table(rows))
    print(json.dumps(machine(torch.device("cpu"))))
