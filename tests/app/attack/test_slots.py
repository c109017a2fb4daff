"""Requests for many kinds of search at once: the memory of all caches together is bounded."""

import queue
import weakref
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.app.service import engines as module
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Search
from slimwhisper.errors import OptionError
from slimwhisper.live.types import Ended, LiveEvent, LiveOptions
from slimwhisper.longform.batch import Batch
from slimwhisper.longform.engines import slot_bytes
from tests.support.service_jobs import DIGITS, Heard, Make
from tests.support.spoken import SAMPLES

HOT: dict[str, Any] = {"temperature": (0.0, 0.4), "logprob_threshold": 0.0}  # samples are drawn
KINDS = [
    {"beam_size": beams, "best_of": samples, **HOT}
    for beams, samples in product((None, 3, 8), (1, 8))
]
EVERY_KIND = [
    {"beam_size": beams, "best_of": samples, **HOT}
    for beams, samples in product(range(1, 9), repeat=2)
]


@pytest.fixture
def nothing_stays_behind() -> None:
    """The services here are the tests' own."""


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second and a half of speech."""
    path = tmp_path_factory.mktemp("short") / "short.wav"
    soundfile.write(path, slimwhisper.load_audio(SAMPLES / "door-code.mp3")[:24_000], 16_000)
    return path


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Path:
    """Three windows with a little speech in each."""
    path = tmp_path_factory.mktemp("long") / "long.wav"
    speech = slimwhisper.load_audio(short)
    pause = np.zeros(25 * 16_000, np.float32)
    soundfile.write(path, np.concatenate([speech, pause, speech, pause, speech]), 16_000)
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of the caches of all engines that there are, at every step."""
    alive, found = weakref.WeakSet[Engine](), list[int]()
    make, step = module.make_engine, Batch.step

    def noted(*arguments: Any) -> Engine:
        engine = make(*arguments)
        alive.add(engine)
        found.append(sum(each.nbytes() for each in alive))
        return engine

    def watched(self: Batch[Any]) -> Any:
        ended = step(self)
        found.append(sum(each.nbytes() for each in alive))
        return ended

    monkeypatch.setattr(module, "make_engine", noted)
    monkeypatch.setattr(Batch, "step", watched)
    yield found


def smallest(model: SlimWhisper, options: dict[str, Any]) -> int:
    """Bytes of an engine of one slot."""
    search = Search(options["beam_size"], samples=options["best_of"])
    text = slot_bytes(model.network, Search(samples=2)) - slot_bytes(model.network, Search())
    return slot_bytes(model.network, search) + (search.samples - 1) * text


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [KINDS, EVERY_KIND], ids=["many", "every"])
def test_kinds_of_search_at_once(
    make: Make, model: SlimWhisper, made: list[int], short: Path, kinds: list[dict[str, Any]]
) -> None:
    """All are answered, as if each was alone, in bounded memory."""
    service = make(batch_size=16)
    alone = [Heard(service, short, **options).text for options in kinds]
    made.clear()
    heard = [Heard(service, short, **options) for options in kinds]
    assert [each.text for each in heard] == alone
    room = 16 * slot_bytes(model.network, Search())
    assert all(smallest(model, options) < room for options in kinds)
    assert room / 2 < max(made) <= room
    assert service.states() == {"waiting": 0, "reading": 0, "running": 0}


def test_what_can_never_fit_runs_alone(
    make: Make, model: SlimWhisper, made: list[int], short: Path
) -> None:
    service, options = make(batch_size=1), KINDS[-1]
    heard = [Heard(service, path, **chosen) for chosen in (options, {}) for path in (short, short)]
    assert len({each.text for each in heard[2:]}) == 1 and heard[0].text == heard[1].text
    assert slot_bytes(model.network, Search()) < max(made) <= smallest(model, options)


@pytest.mark.slow
def test_long_recordings_take_turns(
    make: Make, made: list[int], short: Path, long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short one of another kind is done before them, and nothing is lost when engines change."""
    monkeypatch.setattr(module, "TURN", 0.0)  # a window each
    service = make(batch_size=4)
    kinds: list[dict[str, Any]] = [{}, {"beam_size": 2}]
    alone = [Heard(service, long, **options).text for options in kinds]
    made.clear()
    order: list[str] = []
    heard = [Heard(service, long, **options) for options in kinds]
    for each in heard:
        tell = each.job.listener
        each.job.listener = lambda e, tell=tell: (order.append(type(e).__name__), tell(e))
    late = Heard(service, short, beam_size=3)
    assert late.text and "Finished" not in order
    service.cancel(Heard(service, long, beam_size=5).job)  # it waits for its turn
    assert [each.text for each in heard] == alone
    assert service.counts.cancelled == 1 and service.in_flight == 0


@pytest.mark.slow
def test_streams_go_on_beside_other_kinds(
    make: Make, model: SlimWhisper, made: list[int], short: Path, long: Path
) -> None:
    """What speaks does not wait for recordings, nor do they wait until all have spoken."""
    service = make(batch_size=4, first=DIGITS)
    before = Heard(service, long, beam_size=2)
    told: queue.SimpleQueue[LiveEvent | None] = queue.SimpleQueue()
    stream = service.open_stream(DIGITS, LiveOptions(language="en"), told.put)
    stream.append(slimwhisper.load_audio(short))
    stream.commit()
    while not isinstance(told.get(timeout=60), Ended):
        pass
    beside = Heard(service, short, beam_size=3)
    assert beside.text, "while the stream is open"
    stream.finish()
    while told.get(timeout=60) is not None:
        pass
    assert before.text
    room = 4 * slot_bytes(model.network, Search())
    assert max(made) <= room + smallest(model, {"beam_size": 3, "best_of": 1})


@pytest.mark.slow
def test_an_engine_that_cannot_be_made_fails_its_own(
    make: Make, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_engine = module.make_engine

    def full(model: Any, search: Search, slots: int) -> Engine:
        if slots and search.beams == 2:
            raise OptionError("no room")
        return make_engine(model, search, slots)

    monkeypatch.setattr(module, "make_engine", full)
    service = make()
    heard = [Heard(service, short, beam_size=beams) for beams in (None, 2, 3)]
    assert heard[0].text and heard[2].text
    assert str(heard[1].error) == "no room"
