"""Does silence stay without text, and speech with it?

1,000 clips without speech: noise of five colours, hum, claps, chords, breath, room tone and clicks,
of 1 to 15 s, at three levels. 500 recordings of a spoken digit, with silence around them. Each is
transcribed with the server's defaults and with whisper's.

    python bench/silence.py --audio FSDD_FOLDER [--model digits] [--clips 1000] [--speech 500]

Prints a table of docs/trust.md, and on standard error the clips with text by kind. FSDD_FOLDER has
recordings of the Free Spoken Digit Dataset, named {digit}_{speaker}_{index}.wav; those with indices
from 0 on are used, of which `digits` was not trained on 0 to 4. Everything is seeded.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from trust_material import RATE, SPEAKERS, Digits

import slimwhisper
from slimwhisper.app.command import job_defaults
from slimwhisper.app.service.reading import DEFAULTS
from slimwhisper.cli import build_parser

Sound = NDArray[np.float64]  # [n], at any level
LEVELS = (-20.0, -35.0, -50.0)  # dB of full scale, root mean square
SECONDS = (1.0, 15.0)  # of a clip
AROUND = (0.3, 3.0)  # seconds of silence on each side of a digit
# power by frequency, as an exponent
COLOURS = {"white": 0.0, "pink": -1.0, "brown": -2.0, "blue": 1.0, "violet": 2.0}


def coloured(n: int, rng: np.random.Generator, exponent: float) -> Sound:
    """Noise whose power goes with the frequency to this exponent."""
    spectrum = np.fft.rfft(rng.standard_normal(n))
    frequency = np.maximum(np.fft.rfftfreq(n, 1 / RATE), 20.0)
    return np.asarray(np.fft.irfft(spectrum * frequency ** (exponent / 2), n))


def band(n: int, rng: np.random.Generator, low: float, high: float) -> Sound:
    """Noise between two frequencies, in Hz."""
    spectrum = np.fft.rfft(rng.standard_normal(n))
    frequency = np.fft.rfftfreq(n, 1 / RATE)
    spectrum[(frequency < low) | (frequency > high)] = 0
    return np.asarray(np.fft.irfft(spectrum, n))


def hum(n: int, rng: np.random.Generator) -> Sound:
    """Mains: 50 or 60 Hz with overtones, over faint noise."""
    base, time = float(rng.choice([50, 60])), np.arange(n) / RATE
    tones = [
        rng.random() / k * np.sin(2 * np.pi * base * k * time + rng.random()) for k in range(1, 9)
    ]
    return np.sum(tones, axis=0) + 0.01 * rng.standard_normal(n)


def events(n: int, rng: np.random.Generator, a_second: float, make: Callable[[], Sound]) -> Sound:
    """Sounds at random times, over faint noise."""
    out = 0.001 * rng.standard_normal(n)
    for start in rng.integers(0, n, max(1, int(a_second * n / RATE))):
        sound = make()[: n - start]
        out[start : start + len(sound)] += rng.uniform(0.5, 1.0) * sound
    return out


def claps(n: int, rng: np.random.Generator) -> Sound:
    """One or several people clap."""
    fade = np.exp(-np.arange(RATE // 10) / RATE * rng.uniform(40, 90))
    rate = float(rng.choice([1, 4, 20]))
    return events(n, rng, rate, lambda: band(len(fade), rng, 800, 3500) * fade)


def clicks(n: int, rng: np.random.Generator) -> Sound:
    """Keys and switches: a few milliseconds each."""
    fade = np.exp(-np.arange(RATE // 50) / RATE * rng.uniform(300, 900))
    return events(n, rng, rng.uniform(1, 8), lambda: rng.standard_normal(len(fade)) * fade)


def chords(n: int, rng: np.random.Generator) -> Sound:
    """Triads with overtones that fade, one every half second or second."""
    out, length = np.zeros(n), int(rng.choice([0.5, 1.0]) * RATE)
    time = np.arange(length) / RATE
    for start in range(0, n, length):
        root = 110 * 2 ** (rng.integers(0, 24) / 12)
        notes = [root * 2 ** (step / 12) for step in (0, int(rng.choice([3, 4])), 7)]
        tones = [np.sin(2 * np.pi * f * k * time) / k**1.5 for f in notes for k in range(1, 7)]
        chord = (np.sum(tones, axis=0) * np.exp(-2 * time) * np.minimum(time * 100, 1))[: n - start]
        out[start : start + len(chord)] = chord
    return out


def breath(n: int, rng: np.random.Generator) -> Sound:
    """In and out, every two to four seconds."""
    time, period = np.arange(n) / RATE, rng.uniform(2, 4)
    inward, outward = (
        np.maximum(np.sin(2 * np.pi * time / period + shift), 0) ** 2 for shift in (0.0, np.pi)
    )
    return band(n, rng, 600, 4500) * inward + 0.7 * band(n, rng, 200, 2000) * outward


def room(n: int, rng: np.random.Generator) -> Sound:
    """Ventilation: brown noise and a low tone, which swell slowly; faint bumps."""
    time = np.arange(n) / RATE
    swell = 1 + 0.4 * np.sin(2 * np.pi * time * rng.uniform(0.05, 0.3))
    tone = np.sin(2 * np.pi * rng.uniform(80, 200) * time)
    noise = coloured(n, rng, -2.0)
    fade = np.exp(-np.arange(RATE // 5) / RATE * 30)
    bumps = events(n, rng, 0.5, lambda: band(len(fade), rng, 40, 400) * fade)
    return swell * (noise / noise.std() + 0.3 * tone) + 2 * bumps


KINDS: dict[str, Callable[[int, np.random.Generator], Sound]] = {
    **{
        name: lambda n, rng, exponent=exponent: coloured(n, rng, exponent)  # type: ignore[misc]
        for name, exponent in COLOURS.items()
    },
    **{f.__name__: f for f in (hum, claps, chords, breath, room, clicks)},
}


def clip(index: int) -> tuple[str, NDArray[np.float32]]:
    """The kind and level of a clip without speech, and its samples."""
    rng = np.random.default_rng(index)
    level, kind = list(product(LEVELS, KINDS))[index % (len(LEVELS) * len(KINDS))]
    sound = KINDS[kind](int(rng.uniform(*SECONDS) * RATE), rng)
    sound *= 10 ** (level / 20) / np.sqrt((sound**2).mean())
    return f"{kind}, {level:.0f} dB", np.clip(sound, -1, 1).astype(np.float32)


def spoken(digits: Digits, count: int) -> list[NDArray[np.float32]]:
    """Recordings of a digit each, with silence around it; of the lowest indices first."""
    rng, clips = np.random.default_rng(0), []
    for index, speaker, digit in islice(product(range(50), SPEAKERS, range(10)), count):
        before, after = (int(s * RATE) for s in rng.uniform(*AROUND, 2))
        clips.append(np.pad(digits.word(digit, speaker, index), (before, after)))
    return clips


def texts(model: Any, clips: list[NDArray[np.float32]], options: dict[str, Any]) -> list[str]:
    """The text of each clip."""
    found = {id(samples): t.text.strip() for samples, t in model.transcribe_many(clips, **options)}
    return [found[id(samples)] for samples in clips]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--clips", type=int, default=1000, help="without speech")
    parser.add_argument("--speech", type=int, default=500, help="recordings of a digit")
    args = parser.parse_args()
    model = slimwhisper.load_model(args.model, device="cpu")
    silent = [clip(i) for i in range(args.clips)]
    speech = spoken(Digits(args.audio), args.speech)
    serve = build_parser().parse_args(["serve"])
    print("| | text without speech | speech without text |\n|---|---|---|")
    for name, options in (
        ("whisper's defaults", {}),
        ("the server's defaults", DEFAULTS | job_defaults(serve)),
    ):
        invented = texts(model, [samples for _, samples in silent], options)
        lost = texts(model, speech, options).count("")
        counts = Counter(kind for (kind, _), text in zip(silent, invented, strict=True) if text)
        print(f"{name}: {counts.most_common()}", file=sys.stderr)
        print(
            f"| {name} | {counts.total()} of {len(silent)} ({counts.total() / len(silent):.1%}) "
            f"| {lost} of {len(speech)} ({lost / len(speech):.1%}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
