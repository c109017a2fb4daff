"""How good are the flags, and what does `on_failure="best"` change?

Three parts, each a table of docs/trust.md:

- constructed: real sentences in ten languages, unchanged or corrupted in one way, on sound that is
  speech, noise, music or silence. Precision and recall of each flag.
- recordings: the texts of `digits` for recordings of digits with noise, music or a second speaker.
  A segment is bad if at least half of its words are wrong; precision and recall of its flags.
- errors: word errors on the same noisy recordings by option.

    python bench/trust.py --audio FSDD_FOLDER [--part constructed recordings errors] > trust.jsonl

FSDD_FOLDER has recordings of the Free Spoken Digit Dataset, named {digit}_{speaker}_{index}.wav;
those with indices 0 to 4 are used, which `digits` was not trained on. Everything is seeded.
"""

import argparse
import json
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from conversations import aligned

sys.path.insert(0, str(Path(__file__).parents[1]))
from trust_material import RATE, REPEATED, SENTENCES, Digits, mixed, music, natural_seconds, noise

import slimwhisper
from recipes.digits.catalogue import WORDS
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.longform.requests import compression_ratio
from slimwhisper.trust import REASONS
from slimwhisper.trust.flags import WindowEvidence, WindowSound, flagged, with_loops
from slimwhisper.trust.texts import TABLE
from slimwhisper.types import Segment

SNRS = (20, 10, 5, 0, -5)  # dB
STRICT = -0.2  # a threshold for the average log-probability that digits fails in noise
BAD = 0.5  # share of a segment's words that are wrong


# -- constructed -----------------------------------------------------------------------------------


def sound_of(samples: np.ndarray) -> WindowSound:
    mel = Spectrogram(ArraySamples(samples), 80)
    return WindowSound(lambda: mel.window(0, mel.frames)[:, : mel.frames], 0.0)


def segment(text: str, start: float, end: float, **fields: float) -> Segment:
    known: dict[str, Any] = {"avg_logprob": -0.25, "no_speech_prob": 0.05} | fields
    ratio = compression_ratio(text.strip())
    return Segment(0, 0, start, end, " " + text, [], 0.0, compression_ratio=ratio, **known)


def constructed(digits: Digits) -> Iterator[tuple[str, str, set[str], set[str]]]:
    """(kind, text, the flags it should have, the flags it has)."""
    rng, numbers = random.Random(0), np.random.default_rng(0)
    speech = sound_of(digits.spoken(30, numbers)[1])
    sounds = {
        "silence": sound_of(np.zeros(30 * RATE, np.float32)),
        "noise": sound_of(noise(30, numbers)),
        "music": sound_of(music(30, numbers)),
    }

    def case(
        kind: str,
        text: str,
        expected: set[str],
        end: float,
        evidence: WindowEvidence,
        **fields: float,
    ) -> tuple[str, str, set[str], set[str]]:
        (checked,) = with_loops(flagged([segment(text, 0, end, **fields)], evidence, []))
        return kind, text, expected, set(checked.flags)

    for language, sentences in SENTENCES.items():
        evidence = WindowEvidence(speech, language)
        space = "" if language in ("zh", "ja") else " "
        for text in sentences:
            seconds = natural_seconds(text, language)
            yield case("unchanged", text, set(), seconds, evidence)
            yield case("fast", text, set(), 0.6 * seconds, evidence)
            yield case("with a pause", text, set(), seconds + 4, evidence)
            yield case("unsure", text, {"improbable"}, seconds, evidence, avg_logprob=-1.1)
            yield case("squeezed", text, {"too_fast"}, 0.2 * seconds, evidence)
            words = text.split() if space else list(text)
            for length in (1, 2, 4):
                turn = space.join(words[:length])
                often = rng.randint(3, 6) * (12 // length)
                many = space.join([turn] * often)
                yield case("loop", many, {"repeats"}, natural_seconds(many, language), evidence)
                twice = space.join([*words[:length], *words])
                yield case("stammer", twice, set(), natural_seconds(twice, language), evidence)
            short = space.join(words[: 2 if space else 3])
            yield case("two words in 30 s of speech", short, {"too_few_words"}, 30, evidence)
            others = (SENTENCES[code] for code in SENTENCES if _other_script(code, language))
            other = rng.choice([sentence for some in others for sentence in some])
            yield case(
                "other script", other, {"language_changed"}, natural_seconds(other, "zh"), evidence
            )
    for language, texts in REPEATED.items():
        for text in texts:
            evidence = WindowEvidence(speech, language)
            yield case("repeated by people", text, set(), natural_seconds(text, language), evidence)
    phrases = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    for language in sorted(phrases["credits"].keys() | phrases["common"].keys()):
        for where, no_speech in (
            *(("silence", 0.2), ("noise", 0.2), ("music", 0.2), ("music, no speech found", 0.7)),
        ):
            evidence = WindowEvidence(sounds[where.split(",")[0]])
            for name, table in (("credit", "credits"), ("common phrase", "common")):
                for text in phrases[table].get(language, ()):
                    seconds = natural_seconds(text, language) + 0.5
                    kind, expected = f"{name} over {where}", {"invented"}
                    yield case(kind, text, expected, seconds, evidence, no_speech_prob=no_speech)
        for text in phrases["common"].get(language, ()):
            seconds = natural_seconds(text, language) + 0.5
            yield case("common phrase over speech", text, set(), seconds, WindowEvidence(speech))


def _other_script(code: str, language: str) -> bool:
    """Whether two languages share no script."""
    scripts = ({"en", "de", "fr", "es", "it"}, {"zh", "ja"}, {"zh", "ko"})
    return code != language and not any({code, language} <= script for script in scripts)


def run_constructed(digits: Digits) -> None:
    hits: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {}
    for kind, text, expected, flags in constructed(digits):
        # a corrupted text may be bad in another way too: that counts neither way
        for name in REASONS:
            if name in expected:
                (hits if name in flags else missed)[name] += 1
            elif not expected and name in flags:
                wrong[name] += 1
        ok = expected <= flags if expected else not flags
        kinds.setdefault(kind, Counter())["right" if ok else "wrong"] += 1
        if not ok:
            print(kind, repr(text[:60]), sorted(flags), file=sys.stderr)
    for kind, counts in kinds.items():
        _print("constructed", kind=kind, right=counts["right"], of=counts.total())
    for name in REASONS:
        _print("constructed", flag=name, **_scores(hits[name], wrong[name], missed[name]))


# -- recordings ------------------------------------------------------------------------------------


def recordings(digits: Digits, count: int) -> Iterator[tuple[str, list[Any], np.ndarray]]:
    """(kind, words with start and end, samples) of each, 25 s long."""
    for i in range(count):
        rng = np.random.default_rng(i)
        truth, speech = digits.spoken(25, rng)
        yield "clean", truth, speech
        for snr in SNRS:
            yield f"noise, {snr} dB", truth, mixed(speech, noise(25, rng), snr)
        for snr in (10, 0):
            yield f"music, {snr} dB", truth, mixed(speech, music(25, rng), snr)
        for snr in (10, 0):
            yield f"crosstalk, {snr} dB", truth, mixed(speech, digits.spoken(25, rng)[1], snr)
        yield "silence", [], np.zeros(25 * RATE, np.float32)
        yield "noise alone", [], noise(25, rng)
        yield "music alone", [], music(25, rng)
        word = truth[0][0]
        sound = digits.word(WORDS.index(word), "jackson", 0)
        loop = np.tile(np.concatenate([sound, np.zeros(RATE // 5, np.float32)]), 100)[: 25 * RATE]
        times = len(loop) // (len(sound) + RATE // 5)
        yield "one word over and over", [(word, 0.0, 25.0)] * times, loop


def is_bad(segment: Segment, truth: list[Any]) -> bool:
    """Whether at least half of a segment's words are wrong."""
    words, start, end = segment.text.split(), segment.start - 0.3, segment.end + 0.3
    spoken = [word for word, since, until in truth if start <= (since + until) / 2 <= end]
    return aligned(spoken, words)[1] >= BAD * max(len(spoken), len(words), 1)


def run_recordings(digits: Digits, model: Any, count: int, **options: Any) -> None:
    table: dict[str, Counter[str]] = {}
    flags: dict[str, Counter[str]] = {}
    made = list(recordings(digits, count))
    by_id = {id(samples): (kind, truth) for kind, truth, samples in made}
    sources = [samples for _, _, samples in made]
    for samples, result in model.transcribe_many(sources, batch_size=8, **options):
        kind, truth = by_id[id(samples)]
        counts = table.setdefault(kind, Counter())
        for segment in (s for s in result.segments if s.text.strip()):
            bad, marked = is_bad(segment, truth), bool(segment.flags)
            counts[f"{'bad' if bad else 'good'}, {'flagged' if marked else 'not'}"] += 1
            for name in segment.flags:
                flags.setdefault(name, Counter())["bad" if bad else "good"] += 1
    for kind, counts in table.items():
        _print("recordings", options=options, kind=kind, **counts)
    total = sum(table.values(), Counter())
    hit, false, missed = (total[k] for k in ("bad, flagged", "good, flagged", "bad, not"))
    _print("recordings", options=options, flag="any", **_scores(hit, false, missed))
    for name in REASONS:
        c = flags.get(name, Counter())
        scores = _scores(c["bad"], c["good"], hit + missed - c["bad"])
        _print("recordings", options=options, flag=name, **scores)


# -- errors ----------------------------------------------------------------------------------------


def run_errors(digits: Digits, model: Any, count: int) -> None:
    """Word errors by kind of recording and option."""
    kinds = ("clean", *(f"noise, {snr} dB" for snr in SNRS), "music, 0 dB", "crosstalk, 0 dB")
    kinds = (*kinds, "one word over and over")
    made = [r for r in recordings(digits, count) if r[0] in kinds]
    by_id = {id(samples): (kind, [w for w, _, _ in truth]) for kind, truth, samples in made}
    sources = [samples for _, _, samples in made]
    for options in (
        {},
        {"on_failure": "best"},
        {"logprob_threshold": STRICT},
        {"logprob_threshold": STRICT, "on_failure": "best"},
        {"beam_size": 5, "best_of": 5},
        {"beam_size": 5, "best_of": 5, "on_failure": "best"},
    ):
        wrong: Counter[str] = Counter()
        words: Counter[str] = Counter()
        for samples, result in model.transcribe_many(sources, batch_size=8, **options):
            kind, spoken = by_id[id(samples)]
            wrong[kind] += aligned(spoken, result.text.split())[1]
            words[kind] += len(spoken)
        share = {kind: round(100 * wrong[kind] / words[kind], 1) for kind in kinds}
        _print("errors", options=options, words=words["clean"], **share)


def _scores(hit: int, false: int, missed: int) -> dict[str, Any]:
    """Precision and recall, and the counts that they are made of."""
    return {
        "precision": round(hit / (hit + false), 3) if hit + false else None,
        "recall": round(hit / (hit + missed), 3) if hit + missed else None,
        "hit": hit,
        "false": false,
        "missed": missed,
    }


def _print(part: str, **fields: Any) -> None:
    print(json.dumps({"part": part, **fields}, ensure_ascii=False), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--count", type=int, default=8, help="recordings of each kind")
    parts = ("constructed", "recordings", "errors")
    parser.add_argument("--part", nargs="+", choices=parts, default=parts)
    args = parser.parse_args()
    digits = Digits(args.audio)
    model = slimwhisper.load_model(args.model, device="cpu")
    if "constructed" in args.part:
        run_constructed(digits)
    if "recordings" in args.part:
        run_recordings(digits, model, args.count)
        run_recordings(digits, model, args.count, word_timestamps=True)
    if "errors" in args.part:
        run_errors(digits, model, args.count)


if __name__ == "__main__":
    main()
