"""The words that training joins: real recordings and synthetic speech, float32 [n] at 16 kHz.

Recordings are from the Free Spoken Digit Dataset. The programs of catalogue.toml speak each digit;
pitch, formants and speed are varied.
"""

import random
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, chain, product
from multiprocessing import Pool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.audio.load import load_audio

CATALOGUE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
SPELLED = {language: words.split() for language, words in CATALOGUE["spelled"].items()}
WORDS = tuple(SPELLED["en"])
SPEAKERS = tuple(CATALOGUE["speakers"])
RATE = 16_000
TEST_INDICES = range(5)  # FSDD's own test recordings of each digit and speaker

Samples = NDArray[np.float32]
Word = tuple[int, Samples]  # its digit


class Bank(NamedTuple):
    """Words end to end: word i is samples[starts[i] : starts[i + 1]]."""

    samples: Tensor  # int16, 16 kHz
    starts: Tensor  # [n + 1]
    digits: Tensor  # [n]
    voices: Tensor  # [n], index into `names`
    names: list[str]  # "fsdd:george", "flite:slt", ...

    def word(self, i: int) -> Samples:
        """Word i's samples [n], float32 in [-1, 1]."""
        piece = self.samples[int(self.starts[i]) : int(self.starts[i + 1])]
        return piece.numpy().astype(np.float32) / np.float32(32768)

    @classmethod
    def load(cls, path: Path) -> "Bank":
        return cls(**torch.load(path, weights_only=True, mmap=True))


class Take(NamedTuple):
    """A word to read or to speak."""

    digit: int
    voice: str  # its name in the bank
    source: Path | dict[str, Any]  # a recording, or the arguments of `speak`
    changed: int  # how many changed voices it also gets


def trimmed(x: Samples) -> Samples:
    """Without the parts at both ends that are more than 38 dB below the loudest 20 ms."""
    step = RATE // 100
    blocks = x[: len(x) // step * step].reshape(-1, step)
    power = np.convolve(np.square(blocks).mean(1), [0.5, 0.5], "same")
    loud = np.flatnonzero(power > np.max(power) * 10**-3.8)
    return x[max(int(loud[0]) - 1, 0) * step : (int(loud[-1]) + 1) * step]


def fsdd_recordings(folder: Path) -> list[tuple[Path, int, str, int]]:
    """(file, digit, speaker, index) of each recording of the Free Spoken Digit Dataset.

    Raises SystemExit if the folder has none.
    """
    found = (
        (p, re.fullmatch(r"(\d)_([a-z]+)_(\d+)", p.stem)) for p in sorted(folder.glob("*.wav"))
    )
    recordings = [(path, int(m[1]), m[2], int(m[3])) for path, m in found if m]
    if not recordings:
        raise SystemExit(f"{folder}: no recordings such as 7_george_3.wav")
    return recordings


def fsdd_words(folder: Path, *, test: bool, speaker: str | None = None) -> list[Word]:
    """(digit, samples [n]) of FSDD's test recordings, or of the others; of one speaker or all."""
    return [
        (digit, trimmed(load_audio(path)))
        for path, digit, who, index in fsdd_recordings(folder)
        if (index in TEST_INDICES) == test and speaker in (None, who)
    ]


def changed(x: Samples, rng: random.Random) -> Samples:
    """The same in another voice: formants, pitch, pitch range and speed changed (Praat)."""
    import parselmouth  # used only here

    largest = (1.17, 1.35, 1.6, 1.3)
    formants, pitch, spread, slowness = (factor ** rng.uniform(-1, 1) for factor in largest)
    sound = parselmouth.Sound(np.pad(x, RATE // 20), RATE)
    with suppress(parselmouth.PraatError):  # no pitch in it
        track = sound.to_pitch(pitch_floor=70, pitch_ceiling=500).selected_array["frequency"]
        voiced = track[track > 0]
        median = float(np.median(voiced)) * pitch if len(voiced) else 0.0
        values = formants, median, spread, slowness
        new = parselmouth.praat.call(sound, "Change gender", 70, 500, *values).values[0]
        if np.any(new):
            return trimmed(new.astype(np.float32))
    return trimmed(np.asarray(soxr.resample(x, RATE, RATE * slowness), np.float32))


def speak(program: str, text: str, **settings: object) -> Samples:
    """`text` as a program of catalogue.toml speaks it; settings: what its command has."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "word.wav"
        command = CATALOGUE["programs"][program].split()
        given = [part.format(text=text, out=out, **settings) for part in command]
        subprocess.run(given, input=text.encode(), check=True, capture_output=True)
        return load_audio(out)


def takes(fsdd: Path, seed: int) -> Iterator[Take]:
    """All words to read or to speak."""
    rng = random.Random(seed)
    for path, digit, speaker, index in fsdd_recordings(fsdd):
        if speaker in SPEAKERS and index not in TEST_INDICES:
            yield Take(digit, f"fsdd:{speaker}", path, 6)
    for entry in CATALOGUE["synthetic"]:
        program, settings = entry["program"], entry.get("settings", {})
        choices = [
            dict(zip(settings, values, strict=True)) for values in product(*settings.values())
        ]
        voices = [(where, name) for where, names in entry["voices"].items() for name in names]
        for (language, voice), (digit, word) in product(voices, enumerate(WORDS)):
            foreign = (SPELLED[language][digit],)
            for text in (word, f"{word}?", f"{word},") if language == "en" else foreign:
                for choice in rng.sample(choices, entry.get("draws", len(choices))):
                    source = {"program": program, "text": text, "voice": voice, **choice}
                    yield Take(digit, f"{program}:{voice}", source, entry["changed"])


def _make(seed: int, take: Take) -> list[tuple[int, str, NDArray[np.int16]]]:
    """Digit, voice and samples [n] of the word and of each of its variants."""
    source, rng = take.source, random.Random(seed)
    word = trimmed(load_audio(source) if isinstance(source, Path) else speak(**source))
    words = [word, *(changed(word, rng) for _ in range(take.changed))]
    return [(take.digit, take.voice, to_int16(w)) for w in words if len(w) > RATE // 10]


def to_int16(x: Samples) -> NDArray[np.int16]:
    """float [n] -> int16 [n], scaled to a peak of one half."""
    return (x * (16384 / max(float(np.abs(x).max()), 1e-6))).astype(np.int16)


def make_bank(fsdd: Path, seed: int = 0) -> Bank:
    """All training words of the real speakers and the synthetic voices, about 300 MB."""
    with Pool() as pool:
        made = pool.starmap(_make, enumerate(takes(fsdd, seed)), chunksize=16)
    digits, voices, words = zip(*chain.from_iterable(made), strict=True)
    names = sorted(set(voices))
    return Bank(
        samples=torch.from_numpy(np.concatenate(words)),
        starts=torch.tensor([0, *accumulate(map(len, words))]),
        digits=torch.tensor(digits),
        voices=torch.tensor([names.index(voice) for voice in voices]),
        names=names,
    )
