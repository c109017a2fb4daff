"""Requests for many kinds of search at once: the memory of all caches together is bounded."""

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
from slimwhisper.engine.engine import Engine, slot_bytes
from slimwhisper.engine.requests import Search
from slimwhisper.live.types import UtteranceEnded
from slimwhisper.service import transcriber as module
from slimwhisper.service.shared_engine import SharedEngine
from tests.app.test_streams import OpenedStream
from tests.support.service_jobs import DIGITS, Make, Upload
from tests.support.spoken import SAMPLES

HOT: dict[str, Any] = {"temperature": (0.0, 0.4), "logprob_threshold": 0.0}  # samples are drawn
KINDS = [
    {"beam_size": beams, "best_of": samples, **HOT}
    for beams, samples in product((None, 3, 8), (1, 8))
]


@pytest.fixture
def nothing_stays_behind() -> None:
    """The services here are the tests' own, and keep their engines."""


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second and a half of speech."""
    path = tmp_path_factory.mktemp("short") / "short.wav"
    soundfile.write(path, slimwhisper.load_audio(SAMPLES / "door-code.mp3")[:24_000], 16_000)
    return path


@pytest.fixture
def cache_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of the caches of all engines that there are, at every step."""
    alive, sizes = weakref.WeakSet[Engine](), list[int]()
    make, step = module.make_engine, SharedEngine.step

    def noted(*arguments: Any) -> Engine:
        engine = make(*arguments)
        alive.add(engine)
        sizes.append(sum(each.nbytes() for each in alive))
        return engine

    def watched(self: SharedEngine) -> Any:
        ended = step(self)
        sizes.append(sum(each.nbytes() for each in alive))
        return ended

    monkeypatch.setattr(module, "make_engine", noted)
    monkeypatch.setattr(SharedEngine, "step", watched)
    yield sizes


def smallest(model: SlimWhisper, options: dict[str, Any]) -> int:
    """Bytes of an engine of one slot."""
    search = Search(options["beam_size"], samples=options["best_of"])
    text = slot_bytes(model.network, Search(samples=2)) - slot_bytes(model.network, Search())
    return slot_bytes(model.network, search) + (search.samples - 1) * text


@pytest.mark.slow
def test_kinds_of_search_at_once(
    make: Make, model: SlimWhisper, cache_sizes: list[int], short: Path
) -> None:
    """All are answered, as if each was alone, in bounded memory."""
    service = make(batch_size=16)
    alone = [Upload(service, short, **options).text for options in KINDS]
    cache_sizes.clear()
    uploads = [Upload(service, short, **options) for options in KINDS]
    assert [each.text for each in uploads] == alone
    room = 16 * slot_bytes(model.network, Search())
    assert all(smallest(model, options) < room for options in KINDS)
    assert room / 2 < max(cache_sizes) <= room
    assert service.jobs.states() == {"waiting": 0, "reading": 0, "running": 0}


def test_what_can_never_fit_runs_alone(
    make: Make, model: SlimWhisper, cache_sizes: list[int], short: Path
) -> None:
    service, options = make(batch_size=1), KINDS[-1]
    uploads = [
        Upload(service, path, **chosen) for chosen in (options, {}) for path in (short, short)
    ]
    assert len({each.text for each in uploads[2:]}) == 1 and uploads[0].text == uploads[1].text
    assert slot_bytes(model.network, Search()) < max(cache_sizes) <= smallest(model, options)


@pytest.mark.slow
def test_streams_go_on_beside_other_kinds(
    make: Make, model: SlimWhisper, cache_sizes: list[int], short: Path, tmp_path: Path
) -> None:
    """What speaks does not wait for recordings, nor do they wait until all have spoken."""
    service, speech = make(batch_size=4, first=DIGITS), slimwhisper.load_audio(short)
    pause = np.zeros(25 * 16_000, np.float32)
    windows = np.concatenate([speech, pause, speech, pause, speech])  # three
    soundfile.write(tmp_path / "long.wav", windows, 16_000)
    before = Upload(service, tmp_path / "long.wav", beam_size=2)
    opened = OpenedStream(service, language="en")
    opened.stream.append(speech)
    opened.stream.commit()
    while not isinstance(opened.events.get(timeout=60), UtteranceEnded):
        pass
    beside = Upload(service, short, beam_size=3)
    assert beside.text, "while the stream is open"
    opened.stream.finish()
    opened.until_the_end()
    assert before.text
    room = 4 * slot_bytes(model.network, Search())
    assert max(cache_sizes) <= room + smallest(model, {"beam_size": 3, "best_of": 1})
