"""Reading files in other processes: the same samples, and failures that stay there."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from slimwhisper.audio import readers as reader
from slimwhisper.audio.load import load_samples
from slimwhisper.audio.readers import Readers
from slimwhisper.errors import AudioError
from tests.support.spoken import EXPECTED, SAMPLES


@pytest.fixture
def readers() -> Iterator[Readers]:
    made = Readers(count=2, seconds=400, timeout=60)
    yield made
    made.close()


def test_the_same_samples(readers: Readers) -> None:
    good = [SAMPLES / name for name in EXPECTED]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda f: readers.read(f, f.name), good))
    for file, samples in zip(good, found, strict=True):
        expected = load_samples(file)
        assert len(samples) == len(expected)
        assert np.array_equal(samples.read(0, len(samples)), expected.read(0, len(expected)))


def test_messages_name_the_file_as_its_owner_knows_it(readers: Readers, tmp_path: Path) -> None:
    for path, message in (
        (SAMPLES / "broken.m4a", "talk.m4a: not audio or video that FFmpeg can read"),
        (tmp_path / "none.wav", "talk.m4a: no such file"),
    ):
        with pytest.raises(AudioError, match=message) as raised:
            readers.read(path, "talk.m4a")
        assert str(path) not in str(raised.value)
    assert len(readers.read(SAMPLES / "phone-number.wav", "a.wav")) > 16_000  # still at work


def test_too_long(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", np.zeros(16_000 * 62, np.int16), 16_000)
    readers = Readers(count=1, seconds=60, timeout=60)
    with pytest.raises(AudioError, match=r"long\.wav: longer than the limit of 1 min"):
        readers.read(tmp_path / "long.wav", "long.wav")
    assert len(readers.read(SAMPLES / "phone-number.wav", "a.wav")) > 16_000
    readers.close()


def test_a_crash_fails_one_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker is killed in the middle of a file that never ends."""
    started = []
    start = reader._start

    def noted() -> object:
        started.append(start())
        return started[-1]

    monkeypatch.setattr(reader, "_start", noted)
    readers = Readers(count=1, seconds=60, timeout=60)
    os.mkfifo(tmp_path / "endless.wav")  # whose reader waits for a writer

    def crash() -> None:
        while not started:
            time.sleep(0.01)
        time.sleep(0.2)
        started[0].send_signal(signal.SIGSEGV)

    threading.Thread(target=crash).start()
    with pytest.raises(AudioError, match=r"endless\.wav: its decoder failed; convert it"):
        readers.read(tmp_path / "endless.wav", "endless.wav")
    assert len(readers.read(SAMPLES / "phone-number.wav", "a.wav")) > 16_000
    assert len(started) == 2
    readers.close()
    assert all(worker.wait(10) is not None for worker in started)


def test_a_worker_that_died_while_it_waited_is_replaced() -> None:
    readers = Readers(count=1, seconds=60, timeout=60)
    for _ in range(2):
        assert len(readers.read(SAMPLES / "phone-number.wav", "a.wav")) > 16_000
        worker = readers._free.get()
        assert worker is not None
        worker.kill()
        worker.wait()
        readers._free.put(worker)
    readers.close()


def test_a_hang_ends_at_the_time_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.wav")
    readers = Readers(count=1, seconds=60, timeout=1)
    since = time.monotonic()
    with pytest.raises(AudioError, match=r"took longer than 1 s; convert it"):
        readers.read(tmp_path / "endless.wav", "endless.wav")
    assert time.monotonic() - since < 30
    readers.close()


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch, readers: Readers) -> None:
    """A worker that asks for too much says so, or dies; the next one reads."""
    sent: list[bytes] = []

    class Out:
        def write(self, data: bytes) -> None:
            sent.append(data)

    def greedy(*_: object) -> Iterator[np.ndarray]:
        raise MemoryError
        yield

    monkeypatch.setattr(reader, "pieces_of", greedy)
    message = reader._send(str(SAMPLES / "phone-number.wav"), "a.wav", False, np.inf, Out())
    assert message == "a.wav: too large to decode here" and not sent


def test_closing_ends_busy_workers_and_those_who_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.wav")
    readers = Readers(count=1)

    def read() -> str:
        with pytest.raises(AudioError) as raised:
            readers.read(tmp_path / "endless.wav")
        return str(raised.value)

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(read) for _ in range(2)]  # one reads, the other waits for the worker
        until = time.monotonic() + 20
        while not readers._workers:
            assert time.monotonic() < until
            time.sleep(0.01)
        readers.close()
        messages = {future.result(20) for future in asked}
    assert messages == {"no recordings are read any more"}
    assert not readers._workers


def flac(path: Path, rate: int, channels: int, seconds: float, stated: bool = True) -> Path:
    """Silence. stated: its header says how long it is."""
    with av.open(path, "w") as container:
        layouts = {1: "mono", 2: "stereo", 8: "7.1"}
        stream = container.add_stream("flac", rate=rate, layout=layouts[channels])
        for _ in range(round(rate * seconds) // 4096):
            frame = av.AudioFrame("s16", layouts[channels], 4096)
            frame.planes[0].update(bytes(4096 * channels * 2))
            frame.sample_rate = rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    if not stated:
        with path.open("r+b") as file:  # after "fLaC" and the block's head: 36 bits
            file.seek(8 + 13)
            half = file.read(1)[0] & 0xF0
            file.seek(8 + 13)
            file.write(bytes([half, 0, 0, 0, 0]))
    return path


@pytest.mark.parametrize("stated", [True, False])
def test_what_takes_long_to_decode_is_refused_early(tmp_path: Path, stated: bool) -> None:
    """Many channels at a high rate: refused by its header, or once so much has been decoded."""
    readers = Readers(count=1, seconds=2, timeout=60)
    read = lambda path: len(readers.read(path, "a.flac"))  # noqa: E731
    try:
        with pytest.raises(
            AudioError, match=r"^a\.flac: too long for 8 channels at 655350 Hz; convert"
        ):
            read(flac(tmp_path / "fast.flac", 655_350, 8, 0.5, stated))
        assert read(flac(tmp_path / "good.flac", 192_000, 2, 1.9, stated)) > 30_000
        long = flac(tmp_path / "long.flac", 8_000, 1, 3, stated)
        with pytest.raises(AudioError, match="longer than the limit of"):
            read(long)
    finally:
        readers.close()


def test_what_the_caller_raises_ends_the_reading(tmp_path: Path) -> None:
    """Even while the worker sends nothing; the next file has another worker."""
    readers, given_up = Readers(count=1), threading.Event()
    os.mkfifo(tmp_path / "endless.wav")

    def keep(_: int) -> None:
        if given_up.is_set():
            raise RuntimeError

    threading.Timer(0.3, given_up.set).start()
    with pytest.raises(RuntimeError):
        readers.read(tmp_path / "endless.wav", keep=keep)
    seen: list[int] = []
    samples = readers.read(SAMPLES / "phone-number.wav", keep=seen.append)
    assert seen[-1] == len(samples) and len(readers._workers) == 1
    readers.close()


@pytest.mark.parametrize("kills", [1, 2])
def test_a_worker_that_is_killed_has_a_successor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kills: int
) -> None:
    """As a system kills that is short of memory: once, the file is read; twice, it fails."""
    script = f"""
import os, pathlib, signal
import slimwhisper.audio.readers as readers

def send(*request, usual=readers._send):
    for number in range({kills}):
        if not (done := pathlib.Path({str(tmp_path)!r}, str(number))).exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return usual(*request)

readers._send = send
readers.main()
"""
    monkeypatch.setattr(reader, "COMMAND", [sys.executable, "-c", script])
    readers = Readers(count=1)
    path = SAMPLES / "phone-number.wav"
    try:
        if kills == 2:
            with pytest.raises(
                AudioError, match=r"^a\.wav: its decoder was killed 2 times; if mem"
            ):
                readers.read(path, "a.wav")
        assert len(readers.read(path, "a.wav")) == len(load_samples(path))
        assert len(readers._workers) == 1
    finally:
        readers.close()
