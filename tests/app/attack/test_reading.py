"""Files of a few bytes that are hours of audio: the samples stored for all of them are bounded, and
neither their senders nor clients that disconnect keep others waiting.
"""

import os
import threading
from pathlib import Path

import av
import pytest

from slimwhisper.app.service import reading
from slimwhisper.app.service.jobs import Job, Limits
from slimwhisper.app.service.reading import NoRoomError, SampleStore
from slimwhisper.audio import samples
from slimwhisper.service.source import Finished
from slimwhisper.types import SAMPLE_RATE
from tests.support.harm import unnamed_bytes
from tests.support.live import eventually, held_engines
from tests.support.service_jobs import DIGITS, Make, Upload
from tests.support.spoken import SAMPLES

SHORT = SAMPLES / "door-code.mp3"
BYTES = 2 * SAMPLE_RATE  # that a second takes
LONGEST, IN_MEMORY, OF_A_SLOT = 120, 10, 30  # seconds
MOST = 2 * LONGEST + OF_A_SLOT + IN_MEMORY  # one slot: on disk, and one still in memory


def make_bomb(path: Path) -> Path:
    """Almost two minutes of silence in 16 kB, of which FLAC pads 8, at the lowest rate allowed."""
    with av.open(path, "w") as container:
        stream = container.add_stream("flac", rate=1000, layout="mono")
        for _ in range(28):
            frame = av.AudioFrame("s16", "mono", 4000)
            frame.planes[0].update(bytes(8000))
            frame.sample_rate = 1000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.slow
def test_files_that_become_hours(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds stand for hours."""
    monkeypatch.setattr(samples, "SPOOL_SECONDS", IN_MEMORY)
    monkeypatch.setattr(reading, "IN_MEMORY", IN_MEMORY * SAMPLE_RATE)
    monkeypatch.setattr(reading, "DISK_SECONDS", OF_A_SLOT)
    go = held_engines(monkeypatch, 0.01)  # the service keeps reading
    bomb, before = make_bomb(tmp_path / "bomb.flac"), unnamed_bytes()
    service = make(batch_size=1, limits=Limits(seconds=LONGEST))
    assert bomb.stat().st_size < 16_000 < 110 * BYTES
    bombs = [Upload(service, bomb, "mallory") for _ in range(10)]
    peaks = list[int]()

    def only_waiting(waiting: int) -> bool:
        peaks.append(unnamed_bytes() - before)
        states = service.jobs.states()
        return states["reading"] == 0 and states["waiting"] == waiting

    assert eventually(lambda: only_waiting(9)), service.jobs.states()
    others = [Upload(service, bomb, "ann"), Upload(service, SHORT, "bob")]
    assert eventually(lambda: only_waiting(9)), service.jobs.states()
    assert all(other.job.recording for other in others)
    assert 200 * BYTES < max(peaks) <= MOST * BYTES
    service.cancel(bombs[-1].job)  # it waits, to be read again
    go.set()
    assert all(isinstance(h.last, Finished) for h in [*bombs[:2], *others])
    for upload in bombs:
        service.cancel(upload.job)
    assert eventually(lambda: service.in_flight == 0 and unnamed_bytes() == before)
    store = service.reading.store
    assert not (store._reserved or store._retry)
    assert isinstance(Upload(service, bomb, "mallory").last, Finished)


def test_room_is_shared() -> None:
    """Half of it is for a user's first job; a refused job is first when there is room."""

    def job(user: str) -> Job:
        return Job(SHORT, "a", DIGITS, {}, user, print)

    def read(one: Job, seconds: float) -> None:
        store.reserve(one, int(seconds * SAMPLE_RATE), whole=True)

    hour = 3600
    store = SampleStore(4 * hour)
    many = [job("mallory") for _ in range(20)]  # short ones count, too, as they are in memory
    assert sum(map(store.admit, many)) == 2 and sum(map(store.admit, [job("ann"), job("ann")])) == 1
    store = SampleStore(4 * hour)
    store.slots = 4  # 6 h on disk for a user's jobs, 12 h for all
    first, second, other, third = job("ann"), job("ann"), job("bob"), job("ann")
    assert store.admit(first) and store.admit(second)
    read(first, 4 * hour)
    with pytest.raises(NoRoomError):
        read(second, 3 * hour)
    store.release(second)
    assert not store.admit(second), "it would need room for the longest"
    assert store.admit(other) and store.admit(third)
    with pytest.raises(NoRoomError):
        read(other, hour)  # second was there before
    read(third, 600)
    for ended in (other, third, first):
        store.release(ended)
    assert store.admit(second) and store.admit(other)
    read(second, 4 * hour)
    read(other, 4 * hour)


def test_a_file_that_takes_long_holds_up_no_other(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a machine of two cores. A dropped job frees its only reader: while it decodes, and
    while its samples are worked on.
    """
    service = make(limits=Limits(reading=600))
    os.mkfifo(tmp_path / "endless.wav")
    endless = Upload(service, tmp_path / "endless.wav", "mallory")
    assert isinstance(Upload(service, SHORT, "ann").last, Finished)
    service.cancel(endless.job)
    monkeypatch.setattr(reading, "READERS", 1)
    service = make(limits=Limits(reading=600))
    endless = Upload(service, tmp_path / "endless.wav", "mallory")
    assert eventually(lambda: bool(service.reading._readers._workers))
    other = Upload(service, SHORT, "ann")
    service.cancel(endless.job)
    assert isinstance(other.last, Finished)

    reading_begun = threading.Event()

    def works(voice: samples.Samples) -> None:
        reading_begun.set()
        while True:
            voice.read(0, 16)

    job = Upload(service, SHORT, "mallory", on_samples=works).job
    assert reading_begun.wait(60)
    other = Upload(service, SHORT, "ann")
    service.cancel(job)
    assert isinstance(other.last, Finished)
    assert service.counts.cancelled == 2 and service.counts.failed == 0
