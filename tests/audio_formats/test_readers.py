"""Reading files in other processes: the same samples, and failures that stay there."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile

from slimwhisper.audio.samples import ReadOptions
from slimwhisper.audio_formats import readers as reader
from slimwhisper.audio_formats.readers import Readers
from slimwhisper.errors import AudioError
from tests.support.paths import BROKEN
from tests.support.spoken import SAMPLES
from tests.support.waiting import eventually

GOOD = SAMPLES / "phone-number.wav"
HOW = ReadOptions()
MakeReaders = Callable[..., Readers]


@pytest.fixture
def make(request: pytest.FixtureRequest) -> MakeReaders:
    """Makes readers, which are closed afterwards."""

    def new(**settings: float) -> Readers:
        made = Readers(**{"count": 1, "seconds": 400, "timeout": 60, **settings})  # type: ignore[arg-type]
        request.addfinalizer(made.close)
        return made

    return new


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A file whose reader waits for a writer."""
    os.mkfifo(tmp_path / "endless.wav")
    return tmp_path / "endless.wav"


def reads(readers: Readers) -> bool:
    """Whether it is still at work."""
    return len(readers.read(GOOD, "a.wav", HOW)) > 16_000


def test_messages_name_the_file_as_its_owner_knows_it(make: MakeReaders, tmp_path: Path) -> None:
    readers = make()
    for path, message in (
        (BROKEN, "talk.m4a: not audio"),
        (tmp_path / "none.wav", "talk.m4a: no such file"),
    ):
        with pytest.raises(AudioError, match=message) as raised:
            readers.read(path, "talk.m4a", HOW)
        assert str(path) not in str(raised.value)
    assert reads(readers)


def test_a_worker_that_died_while_it_waited_is_replaced(make: MakeReaders) -> None:
    readers = make()
    for _ in range(2):
        assert reads(readers)
        worker = readers._free.get()
        worker.end()
        readers._free.put(worker)


def worker_that(change: str) -> list[str]:
    """A command that starts a worker in which some names of the module are others."""
    script = f"import slimwhisper.audio_formats.readers as readers\n{change}\nreaders.main()"
    return [sys.executable, "-c", script]


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch, make: MakeReaders) -> None:
    """A worker that asks for more than it may fails alone."""
    greedy = "readers.pieces_of = lambda *_: iter([bytearray(readers.MAX_MEMORY)])"
    monkeypatch.setattr(reader, "COMMAND", worker_that(greedy))
    with pytest.raises(AudioError, match=r"a\.wav: decoding it takes more memory"):
        make().read(GOOD, "a.wav", HOW)


def test_closing_ends_busy_workers_and_those_who_wait(make: MakeReaders, endless: Path) -> None:
    readers = make()

    def read() -> str:
        with pytest.raises(AudioError) as raised:
            readers.read(endless, "endless", HOW)
        return str(raised.value)

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(read) for _ in range(2)]  # one reads, the other waits for the worker
        assert eventually(lambda: bool(readers._workers))
        readers.close()
        messages = {future.result(20) for future in futures}
    assert messages == {"the readers are closed; no recordings can be read"}
    assert not readers._workers


def flac(path: Path, rate: int, channels: int, seconds: float, stated: bool = True) -> Path:
    """Silence. stated: its header says how long it is."""
    soundfile.write(path, np.zeros((round(rate * seconds), channels), np.int16), rate)
    if not stated:
        data = bytearray(path.read_bytes())  # after "fLaC" and the block's head: 36 bits
        data[21:26] = bytes([data[21] & 0xF0, 0, 0, 0, 0])
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("stated", [True, False])
def test_what_takes_long_to_decode_is_refused_early(
    make: MakeReaders, tmp_path: Path, stated: bool
) -> None:
    """Many channels at a high rate: refused by its header, or once so much has been decoded."""
    readers = make(seconds=2)
    with pytest.raises(AudioError, match=r"^a\.flac: too long for 8 channels at 384000 Hz"):
        readers.read(flac(tmp_path / "fast.flac", 384_000, 8, 0.5, stated), "a.flac", HOW)
    good = flac(tmp_path / "good.flac", 192_000, 2, 1.9, stated)
    assert len(readers.read(good, "a.flac", HOW)) > 30_000
    long = flac(tmp_path / "long.flac", 8_000, 1, 3, stated)
    with pytest.raises(AudioError, match=r"a\.flac: longer than the limit"):
        readers.read(long, "a.flac", HOW)


def test_what_the_caller_raises_ends_the_reading(make: MakeReaders, endless: Path) -> None:
    """Even while the worker sends nothing; the next file has another worker."""
    with pytest.raises(AudioError, match=r"endless\.wav: .*longer than 1 s"):
        make(timeout=1).read(endless, "endless.wav", HOW)  # a hang
    readers, given_up = make(), threading.Event()

    def keep(_: int) -> None:
        if given_up.is_set():
            raise RuntimeError

    threading.Timer(0.3, given_up.set).start()
    with pytest.raises(RuntimeError):
        readers.read(endless, "endless", HOW, on_samples=keep)
    assert reads(readers) and len(readers._workers) == 1


@pytest.mark.parametrize(
    ("dies", "fails"),
    [("SIGKILL", ""), ("SIGKILL SIGKILL", "killed twice"), ("SIGSEGV", "decoder failed")],
)
def test_a_worker_that_dies_has_a_successor(
    monkeypatch: pytest.MonkeyPatch, make: MakeReaders, tmp_path: Path, dies: str, fails: str
) -> None:
    """As a system kills that is short of memory: once, the file is read; twice, it fails. So does
    one on which a decoder crashes.
    """
    killed = f"""
import os, pathlib, signal

def send(*request, usual=readers._send):
    for number, name in enumerate({dies.split()}):
        if not (done := pathlib.Path({str(tmp_path)!r}, str(number))).exists():
            done.touch()
            os.kill(os.getpid(), signal.Signals[name])
    return usual(*request)

readers._send = send"""
    monkeypatch.setattr(reader, "COMMAND", worker_that(killed))
    readers = make()
    if fails:
        with pytest.raises(AudioError, match=rf"^a\.wav: its .*{fails}"):
            readers.read(GOOD, "a.wav", HOW)
    assert reads(readers)
    assert len(readers._workers) == 1
