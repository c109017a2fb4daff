"""Transcripts of speech by a trained checkpoint: equal to `whisper.transcribe`'s, and right."""

from pathlib import Path
from typing import Any, NamedTuple

import jiwer
import numpy as np
import pytest
import whisper

import slimwhisper
from recipes.digits.voices import SPEAKERS
from tests.support.parity import differences, transcribe_each, whisper_transcribe
from tests.support.spoken import EXPECTED, LONG, SAMPLES, WORDS, joined, sequence, single_words

pytestmark = pytest.mark.slow  # many recordings, by openai-whisper too


class Recording(NamedTuple):
    name: str
    audio: np.ndarray
    words: list[str]


@pytest.fixture(scope="module")
def corpus() -> list[Recording]:
    """Single digits, sequences, long files, silence, noise."""
    rng = np.random.default_rng(0)
    made = [Recording(f"single {d}", audio, [WORDS[d]]) for d, audio in single_words(step=16)]
    for count in (*range(2, 13, 2), 150):
        words, audio = sequence(count, rng)
        made.append(Recording(f"sequence of {count}", audio, words))
    long = slimwhisper.load_audio(SAMPLES / LONG)
    made.append(Recording(LONG, long, EXPECTED[LONG]["text"].split()))
    for seconds in (0.5, 45):
        n = int(16_000 * seconds)
        noise, hum = rng.standard_normal(n), np.sin(np.arange(n) * (2 * np.pi * 50 / 16_000))
        for name, audio in (("silence", np.zeros(n)), ("noise", 0.05 * noise), ("hum", 0.1 * hum)):
            made.append(Recording(f"{name}, {seconds} s", audio.astype(np.float32), []))
    return made


@pytest.fixture(scope="module")
def expected(corpus: list[Recording], digits_path: Path) -> list[dict[str, Any]]:
    model = whisper.load_model(str(digits_path), device="cpu")
    return [whisper_transcribe(model, recording.audio) for recording in corpus]


@pytest.mark.parametrize("cache", ["baseline", "slim"])
def test_a_preset_says_what_whisper_says(
    corpus: list[Recording], expected: list[dict[str, Any]], digits_path: Path, cache: str
) -> None:
    model = slimwhisper.load_model(digits_path, "cpu", cache=cache, audio_window="full")
    found = transcribe_each(model, [recording.audio for recording in corpus], batch_size=16)
    for recording, ours, theirs in zip(corpus, found, expected, strict=True):
        assert not differences(ours, theirs), recording.name


def test_neighbours_order_and_batch_change_nothing(
    corpus: list[Recording], digits_path: Path
) -> None:
    """With the default ladder: some of these windows are decoded at higher temperatures."""
    model = slimwhisper.load_model(digits_path, "cpu")
    options: dict[str, Any] = {"temperature": (0.0, 0.2, 0.4), "best_of": 2, "sample_len": 30}
    options["logprob_threshold"] = -0.05
    some = [corpus[i] for i in np.random.default_rng(0).permutation(len(corpus))[:20]]
    alone = [model.transcribe(recording.audio, **options) for recording in some]
    hot = [s for result in alone for s in result["segments"] if s["temperature"] > 0]
    assert hot, "something falls back"
    for batch_size in (3, 64):
        audio = [recording.audio for recording in some]
        found = transcribe_each(model, audio, batch_size=batch_size, **options)
        for recording, result, expected in zip(some, found, alone, strict=True):
            assert not differences(result, expected), recording.name
        some, alone = some[::-1], alone[::-1]


def test_the_words_are_right(corpus: list[Recording], expected: list[dict[str, Any]]) -> None:
    """At most 2 % of the words of voices that training did not hear; none where there are none."""
    heard = [result["text"].strip() for result in expected]
    assert jiwer.wer([" ".join(recording.words) for recording in corpus], heard) <= 0.02
    silent = [text for r, text in zip(corpus, heard, strict=True) if not r.words]
    assert len(silent) == 6 and not any(silent)


# People that training did not hear


@pytest.fixture(scope="module")
def sequences(speech_folder: Path) -> list[tuple[str, np.ndarray]]:
    """What is said, and the audio: 1 to 12 test recordings of one speaker, joined."""
    rng = np.random.default_rng(3)
    made = []
    for speaker in SPEAKERS:
        paths = [speech_folder / f"fsdd/{d}_{speaker}_{i}.wav" for d in range(10) for i in range(5)]
        for count in rng.integers(1, 13, 8):
            chosen = [paths[i] for i in rng.integers(len(paths), size=count)]
            audio = joined([slimwhisper.load_audio(path) for path in chosen], rng)
            made.append((" ".join(WORDS[int(path.stem[0])] for path in chosen), audio))
    return made


def test_word_error_rate(sequences: list[tuple[str, np.ndarray]], digits_path: Path) -> None:
    audio = [whisper.pad_or_trim(a) for _, a in sequences]
    found = transcribe_each(slimwhisper.load_model(digits_path, "cpu"), audio)
    texts = [result["text"].strip() for result in found]
    assert jiwer.wer([said for said, _ in sequences], texts) <= 0.03
    theirs = whisper.load_model(str(digits_path), device="cpu")
    for i in range(0, len(audio), 7):
        assert texts[i] == whisper_transcribe(theirs, audio[i])["text"].strip()
