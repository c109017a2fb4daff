"""Measures a checkpoint: python -m recipes.digits.evaluate CHECKPOINT FSDD [PART...]

Every part prints its results and ends in one line of JSON. Parts: words, silence, times, long; and
people, recordings of other speakers (catalogue.PEOPLE), which the bundled model was not trained on.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jiwer
import numpy as np
from numpy.random import Generator

import slimwhisper
from recipes.digits import noise
from recipes.digits.catalogue import PEOPLE
from recipes.digits.sequences import PAUSE, SpokenDigit, arrange, segments, spelled
from recipes.digits.voices import (
    RATE,
    TEST_INDICES,
    Samples,
    fsdd_recordings,
    read,
    recorded,
    trimmed,
)
from slimwhisper import SlimWhisper, Transcript
from slimwhisper.option_group import AUDIO_WINDOWS

TOLERANCE = 0.2  # seconds
WINDOW = 30  # seconds


@dataclass(frozen=True)
class Recording:
    """Joined test recordings with the ground truth."""

    audio: Samples
    words: list[SpokenDigit]

    @property
    def text(self) -> str:
        return spelled(self.words)


def test_words(fsdd: Path, speaker: str | None = None) -> list[tuple[int, Samples]]:
    """(digit, samples [n]) of FSDD's test recordings, of one speaker or all."""
    return [
        (digit, trimmed(read(path)))
        for path, digit, who, index in fsdd_recordings(fsdd)
        if index in TEST_INDICES and speaker in (None, who)
    ]


def joined(
    rng: Generator,
    words: list[tuple[int, Samples]],
    count: int,
    seconds: float | None = WINDOW,
    lead: float = 1.0,
    pauses: float | None = None,
) -> Recording:
    """`count` random words with random gaps and pauses, starting within the first `lead` seconds.

    The gap between words is at most 0.35 s or, at the rate `pauses`, at least 0.6 s; None: a random
    rate. They are placed in `seconds` of audio with faint noise, as from a microphone; None: as
    long as needed.
    """
    chosen = [words[i] for i in rng.integers(len(words), size=count)]
    pieces = [piece / max(float(np.abs(piece).max()), 1e-6) * 0.5 for _, piece in chosen]
    lengths = [len(piece) / RATE for piece in pieces]
    begin, rate = rng.uniform(0, lead), rng.uniform(0.05, 0.9)
    times = arrange(rng, lengths, begin, rate if pauses is None else pauses)
    seconds = times[-1][1] + 0.5 if seconds is None else seconds
    audio = rng.standard_normal(round(seconds * RATE), dtype=np.float32) * 3e-4
    spoken = []
    for (digit, _), piece, (start, end) in zip(chosen, pieces, times, strict=True):
        at = round(start * RATE)
        assert at + len(piece) <= len(audio), "the words do not fit"
        audio[at : at + len(piece)] += piece
        spoken.append(SpokenDigit(digit, start, end))
    return Recording(audio, spoken)


def transcribed(
    model: SlimWhisper, recordings: Iterable[Samples], **options: Any
) -> list[Transcript]:
    """Each recording's transcript, in order."""
    sources = list(recordings)
    results: dict[int, Transcript] = {}
    for source, result in model.transcribe_many(sources, **options):
        if not isinstance(result, Transcript):
            raise result
        results[id(source)] = result
    return [results[id(source)] for source in sources]


def edits(truth: str, text: str) -> int:
    """The number of words to insert, delete or replace."""
    if not truth:
        return len(text.split())
    out = jiwer.process_words(truth, text)
    return out.insertions + out.deletions + out.substitutions


def measure_words(
    model: SlimWhisper,
    count: int,
    speakers: Mapping[str, list[tuple[int, Samples]]],
    seconds: float | None = WINDOW,
) -> dict[str, object]:
    """Word error rate of each speaker on sequences of 1 to 12 digits in `seconds` of audio; None:
    as long as they are.
    """
    rates = {}
    for speaker, words in speakers.items():
        rng = np.random.default_rng(7)
        made = [joined(rng, words, int(rng.integers(1, 13)), seconds) for _ in range(count)]
        transcripts = transcribed(model, [r.audio for r in made])
        wrong = [edits(r.text, f.text) for r, f in zip(made, transcripts, strict=True)]
        total = sum(len(r.words) for r in made)
        rates[speaker] = round(100 * sum(wrong) / total, 2)
        print(f"{speaker}: {sum(wrong)} of {total} words wrong, {rates[speaker]} %", flush=True)
        for r, f, w in zip(made, transcripts, wrong, strict=True):
            if w > 1:
                print(f"  expected {r.text}\n  found    {f.text.strip()}")
    return {"word_error_percent": rates, "mean": round(float(np.mean(list(rates.values()))), 2)}


def measure_silence(model: SlimWhisper, count: int) -> dict[str, object]:
    """How many recordings without speech got text, of each kind."""
    rng = np.random.default_rng(11)
    n = WINDOW * RATE
    kinds: dict[str, Callable[[], Samples]] = {
        "silence": lambda: np.zeros(n, np.float32),
        "white noise": lambda: noise.coloured(rng, n, 0),
        "tones": lambda: noise.tones(rng, n),
        "hum": lambda: noise.hum(rng, n),
    }
    texts = {}
    for kind, make in kinds.items():
        sounds = [make() * np.float32(10 ** rng.uniform(-3, -0.7)) for _ in range(count)]
        transcripts = transcribed(
            model, [np.clip(s[: rng.integers(n // 6, n)], -1, 1) for s in sounds]
        )
        texts[kind] = sum(bool(f.text.strip()) for f in transcripts)
        print(f"{kind}: text in {texts[kind]} of {count}", flush=True)
    return {"text_in_no_speech": texts, "of_each": count}


class TimedText(NamedTuple):
    """A stretch of a transcript: a segment or a word."""

    start: float  # seconds
    end: float
    text: str


def timed_texts(transcript: Transcript) -> list[TimedText]:
    """A transcript's segments."""
    return [TimedText(s.start, s.end, s.text) for s in transcript.segments]


@dataclass(frozen=True)
class Timing:
    """How the times of a transcript's segments compare with those of the words in them."""

    right: int  # within TOLERANCE at both ends, and no pause inside
    total: int  # segments, plus stretches between pauses that no segment covers
    starts: list[float]  # how much too late, in seconds
    ends: list[float]


def timing(truth: Sequence[SpokenDigit], spans: Sequence[TimedText]) -> Timing:
    """Each segment against its own first and last word; a run of words may be cut anywhere."""
    owners = [i for i, span in enumerate(spans) for _ in span.text.split()]
    text = " ".join(s.text.strip() for s in spans)
    matched: dict[int, list[int]] = {}
    for chunk in jiwer.process_words(spelled(truth), text).alignments[0] if text.strip() else ():
        if chunk.type in ("equal", "substitute"):
            for k in range(chunk.ref_end_idx - chunk.ref_start_idx):
                matched.setdefault(owners[chunk.hyp_start_idx + k], []).append(
                    chunk.ref_start_idx + k
                )
    right = 0
    starts: list[float] = []
    ends: list[float] = []
    for i, words in matched.items():
        matching = truth[words[0] : words[-1] + 1]
        starts.append(spans[i].start - matching[0].start)
        ends.append(spans[i].end - matching[-1].end)
        whole = all(b.start - a.end < PAUSE for a, b in pairwise(matching))
        right += whole and abs(starts[-1]) <= TOLERANCE and abs(ends[-1]) <= TOLERANCE
    known = {word for words in matched.values() for word in words}
    missed, k = 0, 0
    for part in segments(truth):
        missed += not known.intersection(range(k, k + len(part)))
        k += len(part)
    return Timing(right, len(set(owners)) + missed, starts, ends)


def measure_times(model: SlimWhisper, fsdd: Path, count: int, **options: Any) -> dict[str, object]:
    """The share of segments whose start and end are within 0.2 s of the truth.

    In Whisper, the only segment of a window begins where the window does, whatever its first time
    token says; the share is therefore also given for recordings with more than one segment.
    """
    rng = np.random.default_rng(13)
    words = test_words(fsdd)
    made = [joined(rng, words, int(rng.integers(1, 13))) for _ in range(count)]
    transcripts = transcribed(model, [r.audio for r in made], **options)
    timings = [timing(r.words, timed_texts(f)) for r, f in zip(made, transcripts, strict=True)]
    several = [t for t, f in zip(timings, transcripts, strict=True) if len(f.segments) > 1]
    errors = [abs(e) for t in timings for e in (*t.starts, *t.ends)]
    middle = round(float(np.median(errors)), 3)
    result: dict[str, object] = {}
    for name, group in (("segments", timings), ("segments_of_several", several)):
        right, total = sum(t.right for t in group), sum(t.total for t in group)
        print(f"{name}: {right} of {total} within {TOLERANCE} s", flush=True)
        result |= {f"{name}_in_time_percent": round(100 * right / total, 2), name: total}
    print(f"median error {middle} s", flush=True)
    return result


def measure_long(model: SlimWhisper, fsdd: Path, **options: Any) -> dict[str, object]:
    """A recording of ten minutes: words, times, order and drift."""
    rng = np.random.default_rng(17)
    made = joined(rng, test_words(fsdd), 680, None, pauses=0.3)
    (transcript,) = transcribed(model, [made.audio], **options)
    timed = timing(made.words, timed_texts(transcript))
    starts, half = timed.starts, len(timed.starts) // 2
    times = [t for s in transcript.segments for t in (s.start, s.end)]
    result = {
        "minutes": round(len(made.audio) / RATE / 60, 1),
        "word_error_percent": round(100 * edits(made.text, transcript.text) / len(made.words), 2),
        "segments_in_time_percent": round(100 * timed.right / timed.total, 2),
        "in_order": times == sorted(times),
        "median_error_s": [
            round(float(np.median(np.abs(e))), 3)
            for e in (starts[:half], starts[half:], timed.ends)
        ],
    }
    print(result, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("parts", nargs="*", default=["words", "silence", "times", "long"])
    parser.add_argument("--count", type=int, default=100, help="sequences, of a speaker")
    parser.add_argument("--speaker", help="this speaker's words alone")
    parser.add_argument("--max_initial_timestamp", type=float, default=1.0, help="-1: no limit")
    parser.add_argument("--cache_dtype", help="fp8: caches in float8")
    parser.add_argument("--audio_window", choices=AUDIO_WINDOWS, help="[as the checkpoint says]")
    parser.add_argument("--short", action="store_true", help="words: recordings end with the last")
    args = parser.parse_args()
    model = slimwhisper.load_model(
        args.checkpoint, cache_dtype=args.cache_dtype, audio_window=args.audio_window
    )
    seconds = None if args.short else WINDOW
    limit = args.max_initial_timestamp
    options = {"max_initial_timestamp": None if limit < 0 else limit}
    speakers = sorted({who for _, _, who, _ in fsdd_recordings(args.fsdd)})
    result: dict[str, object] = {"pause_s": PAUSE}
    if "words" in args.parts:
        chosen = [args.speaker] if args.speaker else speakers
        test_sets = {speaker: test_words(args.fsdd, speaker) for speaker in chosen}
        result |= measure_words(model, args.count, test_sets, seconds)
    if "people" in args.parts:
        recorded_words = {
            person: [(digit, trimmed(read(path))) for digit, path in recorded(person)]
            for person in PEOPLE
        }
        result["people"] = measure_words(model, args.count, recorded_words, seconds)
    if "silence" in args.parts:
        result |= measure_silence(model, 20)
    if "times" in args.parts:
        result["times"] = measure_times(model, args.fsdd, args.count, **options)
    if "long" in args.parts:
        result["long"] = measure_long(model, args.fsdd, **options)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
