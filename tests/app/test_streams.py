"""Live streams in the service: beside each other and beside uploads, to the end or not."""

import gc
import queue
import threading
import time
import weakref
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import slimwhisper
from slimwhisper.app.service.jobs import BusyError, Limits, ModelChoice, ModelError, StoppingError
from slimwhisper.app.service.service import Service
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.live.stream import Stream
from slimwhisper.live.types import (
    LiveEvent,
    LiveOptions,
    SpeechStarted,
    StreamFailed,
    TextUpdate,
    UtteranceEnded,
)
from tests.support.live import eventually, full_memory, held_engines
from tests.support.service_jobs import DIGITS, Make, Upload
from tests.support.spoken import EXPECTED, SAMPLES

SAMPLE = "door-code.mp3"
WORDS = 2  # of the sample: as few as will do
SPOKEN = " ".join(EXPECTED[SAMPLE]["text"].split()[:WORDS])
RATE = 16_000


@pytest.fixture(scope="module")
def audio() -> np.ndarray:
    """The sample's first words."""
    words = [word for part in EXPECTED[SAMPLE]["segments"] for word in part["words"]]
    end = (words[WORDS - 1]["end"] + words[WORDS]["start"]) / 2
    samples: np.ndarray = slimwhisper.load_audio(SAMPLES / SAMPLE)
    return samples[: round(end * RATE)]


@pytest.fixture
def begin(make: Make) -> Make:
    """Services that have loaded their model."""

    def service(**options: Any) -> Service:
        created: Service = make(**{"first": DIGITS, **options})
        created.first.result(60)
        return created

    return service


class OpenedStream:
    """A stream and its events."""

    def __init__(self, service: Service, model: str = "digits", **options: Any) -> None:
        self.events: queue.SimpleQueue[LiveEvent | None] = queue.SimpleQueue()
        requested = LiveOptions(**options)
        self.stream = service.open_stream(ModelChoice(model), requested, self.events.put)

    def say(self, audio: np.ndarray) -> None:
        """All there is to hear."""
        self.stream.append(audio)
        self.stream.finish()

    def until_the_end(self) -> list[LiveEvent]:
        """All events before the None."""
        return list(iter(lambda: self.events.get(timeout=60), None))

    @property
    def text(self) -> str:
        ended = [e.text.strip() for e in self.until_the_end() if isinstance(e, UtteranceEnded)]
        return " ".join(ended)

    @property
    def error(self) -> Any:
        last = self.until_the_end()[-1]
        assert isinstance(last, StreamFailed), last
        return last.error


def nothing_left(service: Service) -> bool:
    """No stream, no update, no slot in use."""
    transcriber = service.engines.transcriber
    idle = all(e.idle and e.room == e.slots for e in transcriber.engines)
    return idle and not (service.streams.open or transcriber.used)


def test_commit_clear_and_change(begin: Make, audio: np.ndarray) -> None:
    service = begin()
    opened = OpenedStream(service, language="en", turns=False)
    with service.engines.transcriber.paused():  # as during another thread's step
        opened.stream.append(audio)
        assert eventually(lambda: opened.stream.stream is not None)
        time.sleep(0.1)
        assert opened.stream.stream and not opened.stream.stream.segmenter.activity.position
    opened.stream.clear()
    opened.stream.append(audio)
    opened.stream.commit()
    opened.stream.change(LiveOptions(language="en", words=True, turns=False))
    opened.stream.append(audio)
    with pytest.raises(OptionError, match="language"):
        opened.stream.change(LiveOptions(language="klingon"))
    with pytest.raises(OptionError, match="window: cannot change"):
        opened.stream.change(LiveOptions(window=10.0))
    with pytest.raises(AudioError, match="shape"):
        opened.stream.append(audio[None])
    opened.stream.finish()
    opened.stream.append(audio)  # too late: ignored
    events = opened.until_the_end()
    ended = [e for e in events if isinstance(e, UtteranceEnded)]
    assert [e.text.strip() for e in ended if e.text] == [SPOKEN, SPOKEN]
    emitted = "".join(e.committed for e in events if isinstance(e, TextUpdate))
    assert emitted == "".join(e.text for e in ended)
    assert opened.events.empty() and eventually(lambda: nothing_left(service))
    calls = {e.utterance: e.calls for e in events if isinstance(e, SpeechStarted)}
    assert [calls[e.utterance] for e in ended if e.text] == [1, 2]
    assert ended[-2].segments[0].words is None and ended[-1].segments[0].words


def test_a_server_is_ready_before_its_first_stream(begin: Make, audio: np.ndarray) -> None:
    """The engine that is made beforehand is the one that streams get; it is idle and empty."""
    service = begin()
    service.streams.warm_up(LiveOptions(window=10.0))
    assert eventually(lambda: not service.streams.waiting and service.engines.cache_bytes() > 0)
    (ready,) = service.engines.transcriber.engines
    opened = OpenedStream(service, window=10.0)
    opened.say(audio)
    assert opened.text == SPOKEN
    assert service.engines.transcriber.engines == [ready] and ready.idle
    assert ready.room == ready.slots


def test_who_is_refused(begin: Make, audio: np.ndarray) -> None:
    """At once; or, what only a loaded model knows, as the stream's error."""
    service = begin(first=None, limits=Limits(streams=2))
    assert isinstance(OpenedStream(service, "gigantic").error, ModelError)
    assert isinstance(OpenedStream(service, language="klingon").error, OptionError)
    good = OpenedStream(service)
    good.say(audio)
    assert good.text == SPOKEN
    for wrong in ({"language": "klingon"}, {"window": 31.0}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            OpenedStream(service, **wrong)
    first = OpenedStream(service)
    for call in (lambda: OpenedStream(service, "other"), lambda: Upload(service, model="other")):
        with pytest.raises(BusyError, match="busy with another model"):
            call()
    last = OpenedStream(service)
    with pytest.raises(BusyError, match="2 live streams are open; try again"):
        OpenedStream(service)
    for opened in (first, last):
        opened.stream.close()
    OpenedStream(service, "other").stream.close()  # those that were closed hold nobody up
    assert service.counts.refused == 3
    service.stop()
    with pytest.raises(StoppingError):
        OpenedStream(service)


def test_a_model_with_streams_is_not_unloaded(begin: Make) -> None:
    service = begin(unload_after=60)
    opened, long_ago = OpenedStream(service), time.monotonic() - 1000
    service._idle_since = long_ago
    assert eventually(lambda: service._idle_since > long_ago)
    assert service.engines.model is not None
    opened.stream.close()
    assert eventually(lambda: not service.streams.open)

    def unloaded() -> bool:
        service._idle_since = long_ago
        return service.engines.model is None

    assert eventually(unloaded)


def test_audio_that_waits_is_bounded(
    begin: Make, audio: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = held_engines(monkeypatch)
    service = begin(limits=Limits(backlog=2.5 * len(audio) / RATE))
    opened = OpenedStream(service, language="en")
    opened.stream.append(audio)
    opened.stream.append(audio)
    backlog = opened.stream.backlog
    assert 1.2 * len(audio) / RATE < backlog <= 2 * len(audio) / RATE
    with pytest.raises(BusyError, match="of the stream"):
        opened.stream.append(audio)
    go.set()
    assert eventually(lambda: opened.stream.backlog < 0.5 * backlog)
    opened.say(audio)
    assert opened.text.replace(" ", "") == 3 * SPOKEN.replace(" ", "")


def test_a_hundred_streams_leave_nothing(begin: Make, audio: np.ndarray) -> None:
    """Dropped before, during and after their first event."""
    service = begin(limits=Limits(streams=8))
    first = OpenedStream(service)  # starts the thread of the voice activity
    first.say(audio[:RATE])
    first.until_the_end()
    threads, streams = {t.name for t in threading.enumerate()}, weakref.WeakSet[Any]()
    for number in range(100):
        opened = OpenedStream(service, language="en")
        streams.add(opened.stream)
        opened.stream.append(audio[: number % 7 * RATE // 4])
        if number in (6, 20):  # 1.5 s of audio
            opened.events.get(timeout=20)
        if number % 3 == 1:
            opened.stream.commit()
        for _ in range(2):
            opened.stream.close()
    assert eventually(lambda: nothing_left(service))
    del opened, first
    gc.collect()
    assert not streams and not [o for o in gc.get_objects() if isinstance(o, Stream)]
    assert {t.name for t in threading.enumerate()} <= threads


def test_what_fails_is_alone_or_all_that_is_in_an_engine(
    begin: Make, audio: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener closes its stream; an engine ends who is in it, and later ones get another."""
    service, gone = begin(), Mock(side_effect=ConnectionError("gone"))

    def good() -> str:
        opened = OpenedStream(service)
        opened.say(audio)
        return opened.text

    service.open_stream(DIGITS, LiveOptions(), gone).append(audio)
    assert good() == SPOKEN and eventually(lambda: nothing_left(service))
    assert gone.call_count == 1
    go = held_engines(monkeypatch)
    opened, quiet, upload = OpenedStream(service), OpenedStream(service), Upload(service, SAMPLE)
    assert eventually(lambda: upload.job.recording is not None)
    opened.stream.append(audio)
    full_memory(monkeypatch)
    go.set()
    for each in (opened, quiet, upload):
        assert "not enough memory on cpu; choose a smaller batch_size" in str(each.error)
    assert good() == SPOKEN and Upload(service, SAMPLE).text


@pytest.mark.parametrize("patience", [60.0, 0.0])
def test_shutting_down(begin: Make, audio: np.ndarray, patience: float) -> None:
    """With patience, all speech so far is committed first."""
    service = begin()
    opened, silent, over = OpenedStream(service), OpenedStream(service), OpenedStream(service)
    opened.stream.append(audio)
    over.say(audio)
    service.close(patience)
    events = opened.until_the_end()
    assert isinstance(events[-1], StreamFailed) and isinstance(events[-1].error, StoppingError)
    if patience:
        assert isinstance(events[-2], UtteranceEnded) and events[-2].text.strip() == SPOKEN
        assert isinstance(over.until_the_end()[-1], UtteranceEnded), "it ends as it would have"
    assert isinstance(silent.error, StoppingError)
    opened.stream.append(audio)  # no effect
    opened.stream.finish()
    assert not service.streams.open
