"""Transcripts of real speech by a trained checkpoint, equal to `whisper.transcribe`'s."""

from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import whisper

import slimwhisper
from tests.support.parity import differences, transcribe_each, whisper_transcribe
from tests.support.spoken import EXPECTED, LONG, SAMPLES, WORDS, sequence, single_words

pytestmark = pytest.mark.slow  # many recordings, by openai-whisper too

SILENT = ("silence", "noise", "hum")


class Corpus:
    """Recordings: single digits, sequences, long files, silence, noise."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.names: list[str] = []
        self.audio: list[np.ndarray] = []
        self.words: list[list[str]] = []

        def add(name: str, audio: np.ndarray, words: list[str]) -> None:
            self.names.append(name)
            self.audio.append(audio.astype(np.float32))
            self.words.append(words)

        for digit, audio in single_words(step=16):
            add(f"single {digit}", audio, [WORDS[digit]])
        for count in range(2, 13, 2):
            words, audio = sequence(count, rng)
            add(f"sequence of {count}", audio, words)
        words, audio = sequence(150, rng)
        add("long, 150 words", audio, words)
        add(f"long, {LONG}", slimwhisper.load_audio(SAMPLES / LONG), EXPECTED[LONG]["text"].split())
        for seconds in (0.5, 45):
            n = int(16_000 * seconds)
            add(f"silence, {seconds} s", np.zeros(n), [])
            add(f"noise, {seconds} s", 0.05 * rng.standard_normal(n), [])
            add(f"hum, {seconds} s", 0.1 * np.sin(np.arange(n) * (2 * np.pi * 50 / 16_000)), [])


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus()


@pytest.fixture(scope="module")
def expected(corpus: Corpus, digits_path: Path) -> list[dict[str, Any]]:
    model = whisper.load_model(str(digits_path), device="cpu")
    return [whisper_transcribe(model, audio) for audio in corpus.audio]


@pytest.mark.parametrize("cache", ["baseline", "slim"])
def test_a_preset_says_what_whisper_says(
    corpus: Corpus, expected: list[dict[str, Any]], digits_path: Path, cache: str
) -> None:
    model = slimwhisper.load_model(digits_path, "cpu", cache=cache, audio_window="full")
    found = transcribe_each(model, corpus.audio, batch_size=16)
    for name, ours, theirs in zip(corpus.names, found, expected, strict=True):
        assert not differences(ours, theirs), name


def test_neighbours_order_and_batch_change_nothing(corpus: Corpus, digits_path: Path) -> None:
    """With the default ladder: some of these windows are decoded at higher temperatures."""
    model = slimwhisper.load_model(digits_path, "cpu")
    options: dict[str, Any] = {"temperature": (0.0, 0.2, 0.4), "best_of": 2, "sample_len": 30}
    options["logprob_threshold"] = -0.05
    order = np.random.default_rng(0).permutation(len(corpus.audio))[:20]
    alone = {i: model.transcribe(corpus.audio[i], **options) for i in order}
    hot = [s for r in alone.values() for s in r["segments"] if s["temperature"] > 0]
    assert hot, "something falls back"
    for batch_size in (3, 64):
        found = transcribe_each(
            model, [corpus.audio[i] for i in order], batch_size=batch_size, **options
        )
        for i, result in zip(order, found, strict=True):
            assert not differences(result, alone[i]), corpus.names[i]
        order = order[::-1]


def test_the_words_are_right(corpus: Corpus, expected: list[dict[str, Any]]) -> None:
    """At most 2 % of the words of voices that training did not hear; none where there are none."""
    true = [" ".join(words) for words in corpus.words]
    heard = [result["text"].strip() for result in expected]
    assert jiwer.wer(true, heard) <= 0.02
    silent = [h for n, h in zip(corpus.names, heard, strict=True) if n.startswith(SILENT)]
    assert len(silent) == 6
    assert not any(silent)
