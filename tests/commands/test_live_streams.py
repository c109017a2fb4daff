"""Audio from pipes and addresses: the same samples as from files, as they come, and errors."""

import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slimwhisper.audio.load import load_audio
from slimwhisper.commands.live import streams
from slimwhisper.commands.live.streams import pipe_pieces, url_pieces
from slimwhisper.errors import AudioError, OptionError
from tests.support.paths import SAMPLES
from tests.support.servers import Server, serving
from tests.support.sounds import convert, ffmpeg, sound, wav, write

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


def until_it_fails(pieces: Iterable[np.ndarray], words: str) -> int:
    """The samples before an error with these words, in one line that names its source."""
    count = 0
    with pytest.raises(AudioError, match=words) as raised:
        for piece in pieces:
            count += len(piece)
    assert re.match(r"(standard input|radio): ", message := str(raised.value)), message
    assert "\n" not in message
    return count


def read_pipe(pipe: Pipe, data: bytes, **options: Any) -> np.ndarray:
    pipe.end(data)
    return np.concatenate(list(pipe_pieces(pipe.out, NAME, **options)))


@pytest.mark.parametrize(
    ("rate", "channels", "format", "subtype"),
    [
        (16_000, 1, "WAV", "PCM_16"),
        *((44_100, 2, "WAV", t) for t in "PCM_16 PCM_U8 PCM_24 FLOAT DOUBLE ULAW".split()),
        *((22_050, 1, f, t) for f, t in (("WAVEX", "PCM_24"), ("RF64", "PCM_16"))),
        *((22_050, 1, f, "PCM_16") for f in ("FLAC", "AIFF", "AU", "W64")),
        (16_000, 9, "WAV", "PCM_16"),  # a number of channels whose places FFmpeg does not know
    ],
)
def test_as_from_a_file(pipe: Pipe, rate: int, channels: int, format: str, subtype: str) -> None:
    data = wav(sound(rate, channels, 0.5), rate, format, subtype)
    assert np.array_equal(read_pipe(pipe, data), load_audio(data))


def test_wavs_in_turn(pipe: Pipe) -> None:
    data = wav(sound(44_100, 2, 0.5), 44_100)
    assert np.array_equal(read_pipe(pipe, 2 * data), np.tile(load_audio(data), 2))


def test_mp3_without_a_tag_as_radio_sends_it(pipe: Pipe) -> None:
    data = wav(sound(44_100, 2, 0.5), 44_100, "MP3", "MPEG_LAYER_III")
    assert np.array_equal(read_pipe(pipe, data)[:7_000], load_audio(data)[:7_000])


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
    assert sum(map(len, pieces)) > 5_000


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
        (wav(sound(16_000), kind="IMA_ADPCM"), "kind"),
        (wav(sound(16_000)[:0], 16_000), "no samples"),
        (b"fLaC" + b"\xff" * 100, "not audio"),
        ((SAMPLES / "flight.m4a").read_bytes(), "this kind of file"),  # its index is at its end
    ],
)
def test_errors_come_after_the_audio(pipe: Pipe, data: bytes, words: str) -> None:
    pipe.end(data)
    count = until_it_fails(pipe_pieces(pipe.out, NAME), words)
    if len(data) > 1_000 and "kind" not in words:
        assert count == (len(data) - 44 if data[:4] == b"RIFF" else len(data)) // 2


@pytest.fixture
def site() -> Iterator[Server]:
    with serving() as server:
        yield server


def test_http(site: Server) -> None:
    data = wav(sound(16_000, 1, 1.0), 16_000, format="FLAC")
    site.pages["/talk.flac"] = data
    url = f"{site.url}/talk.flac"
    assert np.array_equal(np.concatenate(list(url_pieces(url, url))), load_audio(data))


def test_a_station_that_ends(site: Server) -> None:
    """Without a stated length, the end of the connection is not the end of the audio."""
    site.endless = True
    site.pages["/radio"] = wav(sound(16_000, 1, 3.0), 16_000, "MP3", "MPEG_LAYER_III")
    pieces = url_pieces(f"{site.url}/radio", "radio")
    assert until_it_fails(pieces, r"ended, or .* after \d\.\d s") >= 3 * 16_000


def playlist(names: list[str], ended: bool) -> bytes:
    segments = "".join(f"#EXTINF:1,\n{name}\n" for name in names)
    end = "#EXT-X-ENDLIST\n" if ended else ""
    return f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n{segments}{end}".encode()


@pytest.mark.slow
def test_hls(site: Server, tmp_path: Path) -> None:
    """A playlist that is whole; and one that grows: its pieces are read before more arrive."""
    speech = write(tmp_path / "speech.wav", seconds=5.0)
    made = ("-c:a", "aac", "-f", "hls", "-hls_time", "1", "-hls_list_size", "0")
    convert(speech, tmp_path / "whole.m3u8", *made)
    site.pages |= {f"/{file.name}": file.read_bytes() for file in tmp_path.glob("*.*")}
    url = f"{site.url}/whole.m3u8"
    result = np.concatenate(list(url_pieces(url, url)))
    raw = ffmpeg("-i", tmp_path / "whole.m3u8", "-f", "s16le", "-ac", "1", "-ar", "16000", "-")
    np.testing.assert_allclose(result, np.frombuffer(raw, np.int16) / 32768, atol=2 / 32768)
    names = sorted(file.name for file in tmp_path.glob("*.ts"))
    assert len(names) >= 4
    site.pages["/live.m3u8"] = playlist(names[:3], ended=False)
    pieces, count = url_pieces(f"{site.url}/live.m3u8", "radio"), 0
    while count < 2.5 * 16_000:
        count += len(next(pieces))
    site.pages["/live.m3u8"] = playlist(names, ended=True)
    until_it_fails(pieces, r"ended, or .* after 5\.\d s")


@pytest.mark.slow
def test_udp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPEG-TS, sent again and again until it is received; then nothing more arrives."""
    monkeypatch.setattr(streams, "TIMEOUT", (15.0, 2.0))
    sent = convert(write(tmp_path / "speech.wav"), tmp_path / "speech.ts", "-c:a", "aac")
    data, received = sent.read_bytes(), threading.Event()
    with socket.socket(type=socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def send() -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as udp:
            while not received.wait(0.05):
                for start in range(0, len(data), 7 * 188):
                    udp.sendto(data[start : start + 7 * 188], ("127.0.0.1", port))
                    time.sleep(0.002)

    sender = threading.Thread(target=send)
    sender.start()
    count = 0
    try:
        with pytest.raises(AudioError, match="radio: ended, or"):
            for piece in url_pieces(f"udp://127.0.0.1:{port}", "radio"):
                count += len(piece)
                if count > 16_000:
                    received.set()
    finally:
        received.set()
        sender.join()
    assert count > 16_000


def test_a_playlist_reaches_no_files(site: Server, tmp_path: Any) -> None:
    secret = tmp_path / "secret.aac"
    secret.write_bytes(b"x" * 1_000)
    site.pages["/live.m3u8"] = playlist([f"file://{secret}"], ended=True)
    until_it_fails(url_pieces(f"{site.url}/live.m3u8", "radio"), "radio: ")


def test_what_cannot_be_opened(site: Server) -> None:
    until_it_fails(url_pieces(f"{site.url}/none", "radio"), "opened")
    for url in ("file:///etc/hostname", "concat:a|b"):
        with pytest.raises(OptionError, match="address"):
            url_pieces(url, url)
    for options in ({"rate": 0}, {"rate": 10**6}, {"channels": 0}):
        with pytest.raises(OptionError, match=f"--{next(iter(options))}"):
            pipe_pieces(0, NAME, **options)
