"""How `slimwhisper live` gives audio to a stream: at its speed, in time, and all of it."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from slimwhisper.commands.live.source_reader import SourceReader, paced
from slimwhisper.types import SAMPLE_RATE


def test_own_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece comes when it has been said; a reader that is late is not made later."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    times = []
    for piece in paced(iter([np.zeros(SAMPLE_RATE, np.float32)] * 2)):
        assert len(piece) == SAMPLE_RATE // 10
        times.append(now[0])
        if len(times) == 10:
            now[0] += 0.55
    assert times[:10] == pytest.approx(100 + 0.1 * np.arange(1, 11))
    assert times[10:15] == pytest.approx([101.55] * 5)
    assert times[15:] == pytest.approx(100 + 0.1 * np.arange(16, 21))


class Slow:
    """A stream that decodes nothing until it is told to."""

    def __init__(self) -> None:
        self.pieces: list[np.ndarray] = []
        self.backlog = 0.0
        self.finished = False

    def append(self, piece: np.ndarray) -> None:
        self.pieces.append(piece)
        self.backlog += len(piece) / SAMPLE_RATE

    def finish(self) -> None:
        self.finished = True


def pumped(feed: SourceReader, stream: Slow) -> list[float]:
    """How late it was told to be."""
    late: list[float] = []
    feed.pump(stream, 1.0, late.append)
    return late


def test_a_slow_model_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A microphone goes on; nothing is lost."""
    now = [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    sound = np.arange(12 * SAMPLE_RATE, dtype=np.float32)

    def source() -> Iterator[np.ndarray]:
        for i in range(120):
            now[0] += 0.1
            yield sound[i * 1600 : (i + 1) * 1600]

    stream = Slow()
    late = pumped(SourceReader(source(), True), stream)
    assert len(late) == 1 and 6 < late[0] < 6.2
    assert stream.finished and np.array_equal(np.concatenate(stream.pieces), sound)


def test_a_fast_pipe_waits_for_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file through a pipe is decoded in the same steps as from a disk."""
    stream, most = Slow(), [0.0]

    def sleep(_: float) -> None:
        most[0] = max(most[0], stream.backlog)
        stream.backlog = 0.0

    feed = SourceReader(iter([np.zeros(50 * SAMPLE_RATE, np.float32)]), True)
    while feed._queue.qsize() < 500:
        time.sleep(0.001)
    monkeypatch.setattr("slimwhisper.commands.live.source_reader.time.sleep", sleep)
    assert pumped(feed, stream) == []
    assert sum(map(len, stream.pieces)) == 50 * SAMPLE_RATE and 1 < most[0] < 1.2


def test_a_stream_that_waits_for_more_is_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that is not due yet is not waited for."""
    now, stream = [0.0], Slow()
    feed = SourceReader(iter([np.zeros(20 * SAMPLE_RATE, np.float32)]), True)
    while feed._queue.qsize() < 200:
        time.sleep(0.001)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    assert pumped(feed, stream) == []
    assert stream.backlog == pytest.approx(20) and 0.19 * 190 < now[0] < 0.23 * 190
