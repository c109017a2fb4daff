"""Makes the recordings in this folder: python -m samples.make

Needs flite, espeak-ng and ffmpeg. The voices are those that the training of `digits` leaves out
(`recipes.digits.voices`). What they say, and when, is written to expected.json.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import soundfile

from recipes.digits.sequences import SpokenDigit, segments, spelled
from recipes.digits.voices import RATE, WORDS, Samples, speak, trimmed

HERE = Path(__file__).parent
MAN, WOMAN, BRITON, GIRL = "rms", "en-us+Alicia", "en-gb+m6", "en-us+f4"
SHORT = (  # file, voice, groups of digits with pauses between
    ("phone-number.wav", MAN, "555 014 2798"),
    ("countdown.flac", BRITON, "9 8 7 6 5 4 3 2 1 0"),
    ("door-code.mp3", MAN, "4077"),
    ("flight.m4a", WOMAN, "370 16"),
    ("parcel.ogg", GIRL, "8102 6694 35"),
    ("pi.opus", MAN, "3 14159 26535 897932"),
)
LONG = "three-minutes.ogg"
CODECS = {
    ".mp3": ("-b:a", "48k"),
    ".m4a": ("-c:a", "aac", "-b:a", "48k"),
    ".ogg": ("-c:a", "libvorbis", "-q:a", "1"),
    ".opus": ("-c:a", "libopus", "-b:a", "24k"),
}


def spoken(voice: str, digit: int) -> Samples:
    """A digit's word without silence around it: float32 [n], 16 kHz."""
    word = WORDS[digit]
    language, _, variant = voice.partition("+")
    if not variant:
        return trimmed(speak("flite", word, voice=voice, stretch=1.0))
    settings = {"variant": variant, "pitch": 50, "speed": 150}
    return trimmed(speak("espeak", word, voice=language, **settings))


def joined(
    groups: list[tuple[str, str]], rng: np.random.Generator, end: float = 0.8
) -> tuple[Samples, list[SpokenDigit]]:
    """Groups (voice, digits) one after another, with pauses -> audio [n], each word's times."""
    at, pieces, words = rng.uniform(0.2, 0.6), [], []
    for voice, digits in groups:
        for digit in map(int, digits):
            piece = spoken(voice, digit)
            piece = piece * np.float32(0.5 / np.abs(piece).max())
            pieces.append((at, piece))
            words.append(SpokenDigit(digit, at, at + len(piece) / RATE))
            at = words[-1].end + rng.uniform(0.05, 0.2)
        at = words[-1].end + rng.uniform(0.7, 1.2)
    audio = rng.standard_normal(round((words[-1].end + end) * RATE), dtype=np.float32) * 3e-4
    for start, piece in pieces:
        first = round(start * RATE)
        audio[first : first + len(piece)] += piece
    return audio, words


def write(path: Path, audio: Samples) -> None:
    """Write audio [n] in the format of the file's suffix."""
    if path.suffix in (".wav", ".flac"):
        soundfile.write(path, audio, RATE, subtype="PCM_16")
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.wav"
        soundfile.write(plain, audio, RATE, subtype="PCM_16")
        command = ["ffmpeg", "-v", "error", "-y", "-i", str(plain), *CODECS[path.suffix]]
        exact = ["-fflags", "+bitexact", "-flags:a", "+bitexact", "-map_metadata", "-1"]
        subprocess.run([*command, *exact, str(path)], check=True)


def truth(words: list[SpokenDigit]) -> dict[str, object]:
    """The text, and the segments and words with their times in seconds."""

    def timed(part: list[SpokenDigit], **more: object) -> dict[str, object]:
        times = {"start": round(part[0].start, 2), "end": round(part[-1].end, 2)}
        return times | {"text": spelled(part)} | more

    parts = segments(words)
    found = [timed(part, words=[timed([word]) for word in part]) for part in parts]
    return {"text": " ".join(str(part["text"]) for part in found), "segments": found}


def main() -> None:
    rng = np.random.default_rng(2026)
    expected = {}
    for name, voice, text in SHORT:
        audio, words = joined([(voice, group) for group in text.split()], rng)
        write(HERE / name, audio)
        expected[name] = truth(words)
    voices = (MAN, WOMAN, BRITON, MAN, GIRL)
    groups = []
    for i in range(51):
        digits = rng.integers(0, 10, int(rng.integers(1, 8)))
        groups.append((voices[i // 4 % len(voices)], "".join(map(str, digits))))
    audio, words = joined(groups, rng)
    write(HERE / LONG, audio)
    expected[LONG] = truth(words)
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")
    print(f"{len(expected)} recordings, the long one of {len(audio) / RATE:.0f} s")


if __name__ == "__main__":
    main()
