"""`digits` on recordings of people that training did not hear: word errors, and whisper's words."""

from pathlib import Path

import jiwer
import numpy as np
import pytest
import whisper

import slimwhisper
from recipes.digits.catalogue import SPEAKERS
from tests.support.parity import transcribe_each, whisper_transcribe
from tests.support.spoken import WORDS, joined

SEQUENCES = 8  # of a speaker


@pytest.fixture(scope="module")
def sequences(speech_folder: Path) -> list[tuple[str, np.ndarray]]:
    """What is said, and the audio: 1 to 12 test recordings of one speaker, joined."""
    rng = np.random.default_rng(3)
    made = []
    for speaker in SPEAKERS:
        paths = [speech_folder / f"fsdd/{d}_{speaker}_{i}.wav" for d in range(10) for i in range(5)]
        for count in rng.integers(1, 13, SEQUENCES):
            chosen = [paths[i] for i in rng.integers(len(paths), size=count)]
            audio = joined([slimwhisper.load_audio(path) for path in chosen], rng)
            made.append((" ".join(WORDS[int(path.stem[0])] for path in chosen), audio))
    return made


@pytest.mark.slow
def test_word_error_rate(sequences: list[tuple[str, np.ndarray]], digits_path: Path) -> None:
    audio = [whisper.pad_or_trim(a) for _, a in sequences]
    found = transcribe_each(slimwhisper.load_model(digits_path, "cpu"), audio)
    texts = [result["text"].strip() for result in found]
    assert jiwer.wer([said for said, _ in sequences], texts) <= 0.03
    theirs = whisper.load_model(str(digits_path), device="cpu")
    for i in range(0, len(audio), 7):
        assert texts[i] == whisper_transcribe(theirs, audio[i])["text"].strip()
