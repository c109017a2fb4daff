"""Audio from pipes, as it comes; test_every_reader.py has that it is the same as from files."""

import io
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import soundfile

from slimwhisper.audio.load import load_audio
from slimwhisper.audio.streams import pipe_pieces
from slimwhisper.errors import AudioError, OptionError
from tests.support.paths import SAMPLES
from tests.support.recordings import sound

NAME = "standard input"


class Pipe:
    """A pipe whose writer sends what it is told to."""

    def __init__(self) -> None:
        self.out, self._in = os.pipe()

    def send(self, data: bytes) -> None:
        os.write(self._in, data)

    def end(self, data: bytes = b"") -> None:
        """Send data, of any size, and close."""

        def run() -> None:
            with os.fdopen(self._in, "wb") as file:
                file.write(data)

        threading.Thread(target=run).start()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.out)


def wav(samples: np.ndarray, rate: int, subtype: str = "PCM_16", format: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def read_pipe(pipe: Pipe, data: bytes, **options: Any) -> np.ndarray:
    pipe.end(data)
    return np.concatenate(list(pipe_pieces(pipe.out, NAME, **options)))


def test_raw(pipe: Pipe) -> None:
    samples = (sound(48_000, 2, 0.5) * 20_000).astype("<i2")
    result = read_pipe(pipe, samples.tobytes(), rate=48_000, channels=2)
    assert np.array_equal(result, load_audio(wav(samples, 48_000)))


def test_a_recorder_does_not_know_how_long(pipe: Pipe) -> None:
    """The sizes in its header are the largest there are, and what comes is not a whole number."""
    data = bytearray(wav(sound(16_000, 1, 0.5), 16_000))
    data[4:8] = data[40:44] = b"\xff\xff\xff\x7f"
    assert len(read_pipe(pipe, bytes(data))) == 8_000


@pytest.mark.parametrize("header", [b"", "wav"])
def test_pieces_come_while_the_pipe_is_open(pipe: Pipe, header: Any) -> None:
    samples = (sound(16_000, 1, 0.5) * 20_000).astype("<i2")
    data = wav(samples, 16_000) if header else samples.tobytes()
    pieces = pipe_pieces(pipe.out, NAME)
    pipe.send(data[:4_000])
    assert 0 < len(next(pieces)) <= 2_000  # would wait for ever for more
    pipe.end(data[4_000:])
    rest = sum(map(len, pieces))
    assert rest > 5_000


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "empty"),
        (b"x", "no samples"),
        (b"in/a.wav\nin/b.wav\n", "is text"),
        (b"\0" * 2_001, "in the middle of a sample"),
        (wav(sound(16_000), 16_000)[:-32_001], "in the middle of a sample"),
        (wav(sound(16_000), 16_000)[:30], "header"),
        (b"RIFF" + b"\xff" * 100, "header"),
        (wav(sound(16_000), 16_000, "IMA_ADPCM"), "kind"),
        (wav(sound(16_000)[:0], 16_000), "no samples"),
        (b"fLaC" + b"\xff" * 100, "not audio"),
        ((SAMPLES / "flight.m4a").read_bytes(), "this kind of file"),  # its index is at its end
    ],
)
def test_errors_come_after_the_audio(pipe: Pipe, data: bytes, words: str) -> None:
    pipe.end(data)
    count = 0
    with pytest.raises(AudioError, match=words) as raised:
        for piece in pipe_pieces(pipe.out, NAME):
            count += len(piece)
    assert str(raised.value).startswith(f"{NAME}: ") and "\n" not in str(raised.value)
    if len(data) > 1_000 and "kind" not in words:
        assert count == (len(data) - 44 if data[:4] == b"RIFF" else len(data)) // 2


def test_formats_that_cannot_be() -> None:
    for options in ({"rate": 0}, {"rate": 10**6}, {"channels": 0}):
        with pytest.raises(OptionError, match=f"--{next(iter(options))}"):
            pipe_pieces(0, NAME, **options)
