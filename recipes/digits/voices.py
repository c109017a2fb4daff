"""The words that training joins: real recordings and synthetic speech, float32 [n] at 16 kHz.

Recordings are from the Free Spoken Digit Dataset and from programs that speak numbers. RHVoice,
SVOX Pico, flite, festival and espeak-ng speak each digit; pitch, formants and speed are varied.
"""

import itertools
import random
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import soundfile
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.digits.catalogue import (
    ACCENTS,
    FESTIVAL,
    FLITE,
    PEOPLE,
    PICO,
    RHVOICE,
    SPEAKERS,
    SPELLED,
    VARIANTS,
    WORDS,
)

RATE = 16_000
TEST_INDICES = range(5)  # FSDD's own test recordings of each digit and speaker

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Bank:
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


def trimmed(x: Samples) -> Samples:
    """Without the parts at both ends that are more than 38 dB below the loudest 20 ms."""
    step = RATE // 100
    blocks = x[: len(x) // step * step].reshape(-1, step)
    power = np.convolve(np.square(blocks).mean(1), [0.5, 0.5], "same")
    loud = np.flatnonzero(power > np.max(power) * 10**-3.8)
    return x[max(int(loud[0]) - 1, 0) * step : (int(loud[-1]) + 1) * step]


def read(path: Path) -> Samples:
    """An audio file's first channel [n] at 16 kHz; .au is raw 8 kHz mu-law, as in saytime."""
    bare = {"format": "RAW", "subtype": "ULAW", "samplerate": 8000, "channels": 1}
    given = bare if path.suffix == ".au" else {}
    x, rate = soundfile.read(path, dtype="float32", always_2d=True, **given)
    return x[:, 0] if rate == RATE else np.asarray(soxr.resample(x[:, 0], rate, RATE))


def fsdd_recordings(folder: Path) -> list[tuple[Path, int, str, int]]:
    """(file, digit, speaker, index) of each recording of the Free Spoken Digit Dataset."""
    recordings = []
    for path in sorted(folder.glob("*.wav")):
        match = re.fullmatch(r"(\d)_([a-z]+)_(\d+)", path.stem)
        if match:
            recordings.append((path, int(match[1]), match[2], int(match[3])))
    if not recordings:
        raise SystemExit(f"{folder}: no recordings such as 7_george_3.wav")
    return recordings


def recorded(person: str) -> list[tuple[int, Path]]:
    """(digit, file) of one of PEOPLE; scid's, a chess program's, are 1 to 8."""
    pattern, captcha = PEOPLE[person], files("captcha")
    return [
        (digit, Path(pattern.format(digit=digit, word=word, captcha=captcha)))
        for digit, word in enumerate(WORDS)
        if person != "scid" or digit in range(1, 9)
    ]


def changed(x: Samples, rng: random.Random, strength: float = 1.0) -> Samples:
    """The same in another voice: formants, pitch, pitch range and speed changed (Praat)."""
    import parselmouth  # used only here

    formants = 1.17 ** rng.uniform(-strength, strength)
    pitch = 1.35 ** rng.uniform(-strength, strength)
    spread = 1.6 ** rng.uniform(-strength, strength)
    slowness = 1.3 ** rng.uniform(-strength, strength)
    sound = parselmouth.Sound(np.pad(x, RATE // 20), RATE)
    try:
        track = sound.to_pitch(pitch_floor=70, pitch_ceiling=500).selected_array["frequency"]
        voiced = track[track > 0]
        median = float(np.median(voiced)) * pitch if len(voiced) else 0.0
        new = parselmouth.praat.call(
            sound, "Change gender", 70, 500, formants, median, spread, slowness
        ).values[0]
    except parselmouth.PraatError:  # no pitch in it
        new = np.zeros(0)
    if not np.any(new):
        return trimmed(np.asarray(soxr.resample(x, RATE, RATE * slowness), np.float32))
    return trimmed(new.astype(np.float32))


def flite(text: str, voice: str, stretch: float = 1.0) -> Samples:
    """`text` as flite speaks it."""
    return _spoken(
        lambda out: (
            *("flite", "-voice", voice, "--setf", f"duration_stretch={stretch}"),
            *("-t", text, "-o", out),
        )
    )


def espeak(text: str, voice: str, pitch: int = 50, speed: int = 160) -> Samples:
    """`text` as espeak-ng speaks it; `voice` such as en-us+f2."""
    return _spoken(
        lambda out: ("espeak-ng", "-v", voice, "-p", str(pitch), "-s", str(speed), "-w", out, text)
    )


def rhvoice(text: str, voice: str, rate: int = 100, pitch: int = 100) -> Samples:
    """`text` as RHVoice speaks it; rate and pitch in percent."""
    return _spoken(
        lambda out: ("RHVoice-test", "-p", voice, "-r", str(rate), "-t", str(pitch), "-o", out),
        text.encode(),
    )


def pico(text: str, language: str) -> Samples:
    """`text` as SVOX Pico speaks it; `language` such as en-GB."""
    return _spoken(lambda out: ("pico2wave", "-l", language, "-w", out, text))


def festival(text: str, voice: str) -> Samples:
    """`text` as festival speaks it; `voice` such as ked_diphone."""
    return _spoken(lambda out: ("text2wave", "-eval", f"(voice_{voice})", "-o", out), text.encode())


def _spoken(command, text: bytes = b"") -> Samples:  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "word.wav"
        subprocess.run(command(str(out)), input=text, check=True, capture_output=True)
        return read(out)


Job = tuple[str, int, str, int, float]


def _jobs(fsdd: Path, seed: int) -> Iterator[tuple[object, ...]]:
    """What to speak or read: (kind, digit, voice, seed, variants, parameters...)."""
    for path, digit, speaker, index in fsdd_recordings(fsdd):
        if speaker in SPEAKERS and index not in TEST_INDICES:
            yield "read", digit, f"fsdd:{speaker}", hash_of(seed, path.stem), 6, path
    rng = random.Random(seed)
    for person in PEOPLE:
        for digit, path in recorded(person):
            yield "read", digit, f"people:{person}", rng.getrandbits(32), 60, path
    for digit, word in enumerate(WORDS):
        texts: tuple[str, ...] = (word, f"{word}?", f"{word},")
        for language, voices in RHVOICE.items():
            spellings = texts if language == "en" else (SPELLED[language].split()[digit], word)
            paces = itertools.product(voices, spellings, (80, 100, 125), (85, 100, 115))
            for voice, text, rate, pitch in paces:
                name = f"rhvoice:{voice}"
                yield "rhvoice", digit, name, rng.getrandbits(32), 3, text, voice, rate, pitch
        for language, voices in PICO.items():
            spellings = texts if language == "en" else (SPELLED[language].split()[digit],)
            for voice, text in itertools.product(voices, spellings):
                yield "pico", digit, f"pico:{voice}", rng.getrandbits(32), 30, text, voice
        for voice, text, stretch in itertools.product(FLITE, texts, (0.85, 1.0, 1.25)):
            yield "flite", digit, f"flite:{voice}", rng.getrandbits(32), 3, text, voice, stretch
        for text in texts:
            yield "festival", digit, "festival:ked", rng.getrandbits(32), 8, text, "ked_diphone"
        for voice, language in FESTIVAL.items():
            text, name = SPELLED[language].split()[digit], f"festival:{voice}"
            yield "festival", digit, name, rng.getrandbits(32), 12, text, voice
        for language, spelled in SPELLED.items():
            for _ in range(12):
                voice = f"{language}+{rng.choice(VARIANTS)}"
                numbers = rng.randint(20, 80), rng.randint(110, 200)
                name = f"espeak:{voice}"
                yield "espeak", digit, name, 0, 0, spelled.split()[digit], voice, *numbers
        for _ in range(150):
            accent, variant = rng.choice(ACCENTS), rng.choice(VARIANTS)
            numbers = rng.randint(20, 80), rng.randint(110, 220)
            name = f"espeak:{accent}+{variant}"
            yield "espeak", digit, name, 0, 0, word, f"{accent}+{variant}", *numbers


def hash_of(seed: int, text: str) -> int:
    """A number that depends only on these two."""
    return int.from_bytes(f"{seed}:{text}".encode()[-8:], "little")


def _make(job: tuple[object, ...]) -> tuple[int, str, list[NDArray[np.int16]]]:
    """Digit, voice, and the word with its variants, each [n] int16."""
    kind, digit, voice, seed, variants, *given = job
    word = trimmed(MAKERS[str(kind)](*given))
    rng = random.Random(int(str(seed)))
    words = [word, *(changed(word, rng) for _ in range(int(str(variants))))]
    return int(str(digit)), str(voice), [to_int16(w) for w in words if len(w) > RATE // 10]


MAKERS: dict[str, Callable[..., Samples]] = {
    "read": read,
    "rhvoice": rhvoice,
    "pico": pico,
    "flite": flite,
    "festival": festival,
    "espeak": espeak,
}


def to_int16(x: Samples) -> NDArray[np.int16]:
    """float [n] -> int16 [n], scaled to a peak of one half."""
    return (x * (16384 / max(float(np.abs(x).max()), 1e-6))).astype(np.int16)


def make_bank(fsdd: Path, seed: int = 0) -> Bank:
    """All training words of the real speakers and the synthetic voices, about 300 MB."""
    with Pool() as pool:
        made = pool.map(_make, list(_jobs(fsdd, seed)), chunksize=16)
    flat = [(digit, voice, word) for digit, voice, words in made for word in words]
    names = sorted({voice for _, voice, _ in flat})
    lengths = torch.tensor([len(word) for _, _, word in flat])
    return Bank(
        samples=torch.from_numpy(np.concatenate([word for _, _, word in flat])),
        starts=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
        digits=torch.tensor([digit for digit, _, _ in flat]),
        voices=torch.tensor([names.index(voice) for _, voice, _ in flat]),
        names=names,
    )
