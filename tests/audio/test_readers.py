"""Reading files in other processes: the same samples, and failures that stay there."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    with pytest.raises(AudioError, match=r"endless\.wav: its decoder failed, or took longer"):
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
    message = reader._send(str(SAMPLES / "phone-number.wav"), "a.wav", False, Out())
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
        messages = sorted(future.result(20) for future in asked)
    assert "endless.wav: its decoder failed" in messages[0]
    assert messages[1] == "no recordings are read any more"
    assert not readers._workers
