"""How good are the flags, and what does `on_failure="best"` change?

Three parts, each a table of docs/trust.md:

- constructed: real sentences in ten languages, left alone or spoilt in one way, on sound that is
  speech, noise, music or silence. Precision and recall of each flag.
- heard: what `digits` reads in recordings of digits with noise, music or a second speaker. A
  segment is bad if at least half of its words are wrong; precision and recall of its flags.
- errors: word errors on the same noisy recordings by option.

    python bench/trust.py --audio FSDD_FOLDER [--part constructed heard errors] > trust.jsonl

FSDD_FOLDER has recordings of the Free Spoken Digit Dataset, named {digit}_{speaker}_{index}.wav;
those with indices 0 to 4 are used, which `digits` has not heard. Everything is seeded.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from conversations import aligned

sys.path.insert(0, str(Path(__file__).parents[1]))
import slimwhisper
from recipes.digits.catalogue import WORDS
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.longform.attempts import compression_ratio
from slimwhisper.trust import REASONS
from slimwhisper.trust.flags import Heard, flagged, with_loops
from slimwhisper.trust.phrases import COMMON, CREDITS
from slimwhisper.trust.sound import WindowSound
from slimwhisper.types import Segment

RATE = 16_000
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "yweweler")
SNRS = (20, 10, 5, 0, -5)  # dB
STRICT = -0.2  # a threshold for the average log-probability that digits fails in noise
BAD = 0.5  # share of a segment's words that are wrong
SENTENCES = {
    "en": [
        "We took the early train because the road over the pass was closed.",
        "No, no, no, that is not what she told me on Tuesday.",
        "The second figure is higher, and the third is higher still.",
        "Thank you for the invitation, I am happy to be here tonight.",
        "He said that he said nothing, and that nothing was said.",
    ],
    "de": [
        "Der Bus fährt heute nur bis zum Bahnhof, danach gehen wir zu Fuß.",
        "Das Wetter war gut, die Stimmung war gut, nur das Essen war kalt.",
        "Vielen Dank für die Frage, ich fange am besten von vorne an.",
    ],
    "fr": [
        "Nous avons attendu une heure devant la porte avant d'entrer.",
        "Merci à tous ceux qui ont préparé cette réunion.",
    ],
    "es": ["El mercado abre a las ocho, pero hoy llegamos un poco tarde."],
    "it": ["La finestra era aperta e faceva molto freddo nella stanza."],
    "ru": [
        "Мы долго шли по берегу реки и почти не разговаривали.",
        "Спасибо за вопрос, сейчас я попробую объяснить подробнее.",
    ],
    "ar": ["ذهبنا إلى السوق في الصباح واشترينا الخبز والفاكهة."],
    "zh": [
        "我们昨天晚上坐火车去了北京，路上下了很大的雨。",
        "他说他明天不来，因为他要去医院看朋友。",
    ],
    "ja": ["昨日は友達と一緒に海へ行って、夕方まで写真を撮りました。"],
    "ko": ["어제는 비가 많이 와서 우리는 집에서 책을 읽었습니다."],
}
REPEATED = {  # what people do say over and over
    "en": [
        "Yes we can. Yes we can. Yes we can.",
        "Row, row, row your boat, gently down the stream.",
        "Five five five, zero one four, two two two.",
        "Merrily, merrily, merrily, merrily, life is but a dream.",
        "La la la la la la la la la.",
        "Testing, one, two, one, two, one, two, one, two.",
    ],
    "es": ["Olé, olé, olé, olé, olé."],
    "ja": ["はいはいはい、わかりました。"],
    "zh": ["哈哈哈哈哈哈，太好笑了。"],
}
SYLLABIC = ("zh", "ja", "ko")


def natural_seconds(text: str, language: str) -> float:
    """What a usual speaker takes: 14 characters a second, or 5 syllables."""
    return len(text) / (5 if language in SYLLABIC else 14)


# -- sounds, float32 [n] at 16 kHz -----------------------------------------------------------------


def noise(seconds: float, rng: np.random.Generator) -> np.ndarray:
    return (0.05 * rng.standard_normal(int(seconds * RATE))).astype(np.float32)


def music(seconds: float, rng: np.random.Generator) -> np.ndarray:
    """A melody over chords, with a beat: tones with overtones that fade, twice a second."""
    out = np.zeros(int(seconds * RATE) + RATE, np.float32)
    scale = 220 * 2 ** (np.array([0, 2, 4, 5, 7, 9, 11, 12]) / 12)
    time = np.arange(RATE) / RATE
    for beat in range(int(seconds * 2)):
        notes = [rng.choice(scale) * 2, *(rng.choice(scale[:5], 2) if beat % 2 == 0 else ())]
        tone = sum(np.sin(2 * np.pi * f * k * time) / k for f in notes for k in (1, 2, 3))
        hit = rng.standard_normal(RATE) * np.exp(-60 * time)
        start = beat * RATE // 2
        out[start : start + RATE] += (0.06 * tone * np.exp(-3 * time) + 0.05 * hit).astype("f4")
    return out[: int(seconds * RATE)]


class Digits:
    """Recordings of digits that the model has not heard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cache  # noqa: B019
    def word(self, digit: int, speaker: str, index: int) -> np.ndarray:
        return slimwhisper.load_audio(self.folder / f"{digit}_{speaker}_{index}.wav")

    def spoken(
        self, seconds: float, rng: np.random.Generator
    ) -> tuple[list[tuple[str, float, float]], np.ndarray]:
        """One speaker's digits with pauses: (word, start, end) of each, and the samples."""
        speaker, said = rng.choice(SPEAKERS), []
        parts, at = [np.zeros(RATE // 2, np.float32)], RATE // 2
        while at < (seconds - 1.5) * RATE:
            digit = int(rng.integers(10))
            sound = self.word(digit, str(speaker), int(rng.integers(5)))
            sound = sound * (0.1 / max(float(np.sqrt((sound**2).mean())), 1e-6))
            said.append((WORDS[digit], at / RATE, (at + len(sound)) / RATE))
            pause = np.zeros(int(rng.choice([0.1, 0.2, 0.3, 1.0]) * RATE), np.float32)
            parts += [sound, pause]
            at += len(sound) + len(pause)
        out = np.concatenate(parts)[: int(seconds * RATE)]
        return said, np.pad(out, (0, max(0, int(seconds * RATE) - len(out))))


def mixed(speech: np.ndarray, other: np.ndarray, snr: float) -> np.ndarray:
    """Both together; snr: dB of the whole speech over the whole of the other."""
    gain = np.sqrt((speech**2).mean() / (other**2).mean()) * 10 ** (-snr / 20)
    both = speech + gain * other
    return (both / max(1.0, float(np.abs(both).max()))).astype(np.float32)


# -- constructed -----------------------------------------------------------------------------------


def sound_of(samples: np.ndarray) -> WindowSound:
    mel = Spectrogram(ArraySamples(samples), 80)
    return WindowSound(lambda: mel.window(0, mel.frames)[:, : mel.frames], 0.0)


def segment(text: str, start: float, end: float, **fields: float) -> Segment:
    known = {"avg_logprob": -0.25, "no_speech_prob": 0.05} | fields
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
        kind: str, text: str, wanted: set[str], end: float, heard: Heard, **fields: float
    ) -> tuple[str, str, set[str], set[str]]:
        (found,) = with_loops(flagged([segment(text, 0, end, **fields)], heard, []))
        return kind, text, wanted, set(found.flags)

    for language, sentences in SENTENCES.items():
        heard = Heard(speech, language)
        space = "" if language in ("zh", "ja") else " "
        for text in sentences:
            seconds = natural_seconds(text, language)
            yield case("as said", text, set(), seconds, heard)
            yield case("said fast", text, set(), 0.6 * seconds, heard)
            yield case("with a pause", text, set(), seconds + 4, heard)
            yield case("unsure", text, {"improbable"}, seconds, heard, avg_logprob=-1.1)
            yield case("squeezed", text, {"too_fast"}, 0.2 * seconds, heard)
            words = text.split() if space else list(text)
            for length in (1, 2, 4):
                turn = space.join(words[:length])
                often = rng.randint(3, 6) * (12 // length)
                many = space.join([turn] * often)
                yield case("loop", many, {"repeats"}, natural_seconds(many, language), heard)
                twice = space.join([*words[:length], *words])
                yield case("stammer", twice, set(), natural_seconds(twice, language), heard)
            short = space.join(words[: 2 if space else 3])
            yield case("two words in 30 s of speech", short, {"too_few_words"}, 30, heard)
            other = rng.choice(
                [s for code, found in SENTENCES.items() for s in found if _other(code, language)]
            )
            yield case(
                "other script", other, {"language_changed"}, natural_seconds(other, "zh"), heard
            )
    for language, texts in REPEATED.items():
        for text in texts:
            heard = Heard(speech, language)
            yield case("repeated by people", text, set(), natural_seconds(text, language), heard)
    for language in sorted(CREDITS.keys() | COMMON.keys()):
        for where, no_speech in (
            *(("silence", 0.2), ("noise", 0.2), ("music", 0.2), ("music, no speech heard", 0.7)),
        ):
            heard = Heard(sounds[where.split(",")[0]])
            for name, table in (("credit", CREDITS), ("common phrase", COMMON)):
                for text in table.get(language, ()):
                    seconds = natural_seconds(text, language) + 0.5
                    kind, wanted = f"{name} over {where}", {"invented"}
                    yield case(kind, text, wanted, seconds, heard, no_speech_prob=no_speech)
        for text in COMMON.get(language, ()):
            seconds = natural_seconds(text, language) + 0.5
            yield case("phrase that was said", text, set(), seconds, Heard(speech))


def _other(code: str, language: str) -> bool:
    latin = ("en", "de", "fr", "es", "it")
    return (
        code != language
        and not (code in latin and language in latin)
        and {
            code,
            language,
        }
        not in ({"zh", "ja"}, {"zh", "ko"})
    )


def run_constructed(digits: Digits) -> None:
    hits: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {}
    for kind, text, wanted, found in constructed(digits):
        # a spoilt text may well be bad in another way too: it counts neither for nor against that
        for name in REASONS:
            if name in wanted:
                (hits if name in found else missed)[name] += 1
            elif not wanted and name in found:
                wrong[name] += 1
        ok = wanted <= found if wanted else not found
        kinds.setdefault(kind, Counter())["right" if ok else "wrong"] += 1
        if not ok:
            print(kind, repr(text[:60]), sorted(found), file=sys.stderr)
    for kind, counts in kinds.items():
        _print("constructed", kind=kind, right=counts["right"], of=counts.total())
    for name in REASONS:
        _print("constructed", flag=name, **_scores(hits[name], wrong[name], missed[name]))


# -- heard -----------------------------------------------------------------------------------------


def recordings(digits: Digits, count: int) -> Iterator[tuple[str, list[Any], np.ndarray]]:
    """(kind, what is said, samples) of each, 25 s long."""
    for i in range(count):
        rng = np.random.default_rng(i)
        said, speech = digits.spoken(25, rng)
        yield "clean", said, speech
        for snr in SNRS:
            yield f"noise, {snr} dB", said, mixed(speech, noise(25, rng), snr)
        for snr in (10, 0):
            yield f"music, {snr} dB", said, mixed(speech, music(25, rng), snr)
        for snr in (10, 0):
            yield f"crosstalk, {snr} dB", said, mixed(speech, digits.spoken(25, rng)[1], snr)
        yield "silence", [], np.zeros(25 * RATE, np.float32)
        yield "noise alone", [], noise(25, rng)
        yield "music alone", [], music(25, rng)
        word = said[0][0]
        sound = digits.word(WORDS.index(word), "jackson", 0)
        loop = np.tile(np.concatenate([sound, np.zeros(RATE // 5, np.float32)]), 100)[: 25 * RATE]
        times = len(loop) // (len(sound) + RATE // 5)
        yield "one word over and over", [(word, 0.0, 25.0)] * times, loop


def is_bad(found: Segment, said: list[Any]) -> bool:
    """Whether at least half of a segment's words are wrong."""
    words = found.text.split()
    truth = [
        w for w, start, end in said if found.start - 0.3 <= (start + end) / 2 <= found.end + 0.3
    ]
    return aligned(truth, words)[1] >= BAD * max(len(truth), len(words), 1)


def run_heard(digits: Digits, model: Any, count: int, **options: Any) -> None:
    table: dict[str, Counter[str]] = {}
    flags: dict[str, Counter[str]] = {}
    found = list(recordings(digits, count))
    sources = [samples for _, _, samples in found]
    by_id = {id(samples): (kind, said) for kind, said, samples in found}
    for samples, result in model.transcribe_many(sources, batch_size=8, **options):
        kind, said = by_id[id(samples)]
        counts = table.setdefault(kind, Counter())
        for segment in (s for s in result.segments if s.text.strip()):
            bad, marked = is_bad(segment, said), bool(segment.flags)
            counts[f"{'bad' if bad else 'good'}, {'flagged' if marked else 'not'}"] += 1
            for name in segment.flags:
                flags.setdefault(name, Counter())["bad" if bad else "good"] += 1
    for kind, counts in table.items():
        _print("heard", options=options, kind=kind, **counts)
    total = sum(table.values(), Counter())
    hit, false, missed = (total[k] for k in ("bad, flagged", "good, flagged", "bad, not"))
    _print("heard", options=options, flag="any", **_scores(hit, false, missed))
    bad = hit + missed
    for name in REASONS:
        c = flags.get(name, Counter())
        _print("heard", options=options, flag=name, **_scores(c["bad"], c["good"], bad - c["bad"]))


# -- errors ----------------------------------------------------------------------------------------


def run_errors(digits: Digits, model: Any, count: int) -> None:
    """Word errors by kind of recording and option."""
    kinds = ("clean", *(f"noise, {snr} dB" for snr in SNRS), "music, 0 dB", "crosstalk, 0 dB")
    kinds = (*kinds, "one word over and over")
    found = [r for r in recordings(digits, count) if r[0] in kinds]
    truth = {id(samples): (kind, [w for w, _, _ in said]) for kind, said, samples in found}
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
        for samples, result in model.transcribe_many(
            [s for _, _, s in found], batch_size=8, **options
        ):
            kind, said = truth[id(samples)]
            wrong[kind] += aligned(said, result.text.split())[1]
            words[kind] += len(said)
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
    parts = ("constructed", "heard", "errors")
    parser.add_argument("--part", nargs="+", choices=parts, default=parts)
    arguments = parser.parse_args()
    digits = Digits(arguments.audio)
    model = slimwhisper.load_model(arguments.model, device="cpu")
    if "constructed" in arguments.part:
        run_constructed(digits)
    if "heard" in arguments.part:
        run_heard(digits, model, arguments.count)
        run_heard(digits, model, arguments.count, word_timestamps=True)
    if "errors" in arguments.part:
        run_errors(digits, model, arguments.count)


if __name__ == "__main__":
    main()
