"""Real work for `peers.py`: a folder of 42 recordings of 2 to 170 s, and one of 20 minutes.

    python bench/peers.py --model CHECKPOINT --folder SPEECH ... --jobs folder,long

They are made of the recordings in SPEECH, which must be in English, and are the same each time.
Each is whole recordings in a random order of seed 0, with half a second of silence after each, cut
at the length that is due; lengths are spread evenly in their logarithm, and shuffled. They are WAV
files of 16 kHz, one channel and 16 bits, as whisper.cpp reads no others by itself.

Timed is the way from these files to texts with segments, with the model in memory: reading, mel
spectrograms and all. Everybody is told that the language is English, searches greedily without
words' times, and decodes again at higher temperatures as Whisper does (faster-whisper's batches and
OpenVINO have only the first), with one sample each, not faster-whisper's and whisper.cpp's five.
All else is each program's default. So faster-whisper finds speech by Silero in its batches only,
and its batches have no time stamps within a window, while all others decode them. With several
windows at a time, slimwhisper takes them from several recordings, or with `parallel` from one;
faster-whisper from one; of the others a copy for each core takes a recording.
"""

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import soundfile
from peer_engines.case import Audio, Case

from slimwhisper.audio.load import load_audio
from slimwhisper.audio_formats.names import AUDIO_SUFFIXES

JOBS = {"folder": (42, 170), "long": (1, 20 * 60)}
SHORTEST = 2  # seconds; the longest and the number of files are above
SILENCE = np.zeros(8_000, np.float32)


def sources_of(audio: str) -> list[str]:
    """The recordings that lines of text name, or the folders there."""
    paths = [Path(line) for line in audio.splitlines()]
    found = chain.from_iterable(sorted(p.iterdir()) if p.is_dir() else [p] for p in paths)
    return [str(path) for path in found if path.suffix in AUDIO_SUFFIXES]


def files_of(case: Case, folder: Path) -> tuple[list[str], list[str]]:
    """A job's files, and one of the shortest length to begin with; made there if they are not."""
    assert case.audio is not None and case.job is not None
    files, first = [folder / f"{case.job}{i:02}.wav" for i in range(case.files)], folder / "2s.wav"
    if not files[-1].exists():
        random = Random(0)
        loaded = [load_audio(path) for path in sources_of(case.audio)]
        shuffled = (random.sample(loaded, len(loaded)) for _ in repeat(None))
        speech = chain.from_iterable(shuffled)
        lengths = np.geomspace(case.seconds, SHORTEST, case.files).tolist()
        random.shuffle(lengths)
        for path, seconds in zip([first, *files], [SHORTEST, *lengths], strict=True):
            soundfile.write(path, _cut(speech, round(16_000 * seconds)), 16_000)
    return [str(path) for path in files], [str(first)]


def _cut(speech: Iterator[Audio], length: int) -> Audio:
    parts: list[Audio] = []
    while sum(map(len, parts)) < length:
        parts += [next(speech), SILENCE]
    return np.concatenate(parts)[:length]


def seconds_of(recording: Any) -> float:
    """Of samples, or of the file at a path."""
    if isinstance(recording, str):
        return float(soundfile.info(recording).duration)
    return len(recording) / 16_000
