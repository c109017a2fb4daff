"""The same recording sent again: the encoder's output is still there, within `--cache_memory`."""

from collections.abc import Callable

import pytest

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.service import Service
from slimwhisper.engine.engine import Engine
from slimwhisper.live.types import LiveOptions
from slimwhisper.longform.batch import Batch
from tests.support.encodings import encoded
from tests.support.live import eventually
from tests.support.service_jobs import DIGITS, PHONE, Make, Upload
from tests.support.spoken import LONG, SAMPLES

__all__ = ["encoded"]

OTHER = "countdown.flac"
Room = Callable[[float], None]


@pytest.fixture
def room_for(make: Make, model: SlimWhisper, monkeypatch: pytest.MonkeyPatch) -> Room:
    """Sets `cache_memory`: what an engine's texts take, and so many encoder outputs."""
    network, dims, service = model.network, model.network.dims, make()
    assert Upload(service).text
    (shared,) = service.engines._engines.values()
    texts = shared.engine.pool.count * shared.engine.runner.pages.page_bytes
    output = dims.n_audio_ctx * dims.n_audio_state * 4

    def set_room(windows: float) -> None:
        monkeypatch.setattr(network, "cache_memory", texts + round(windows * output))

    return set_room


def test_other_answers_cost_no_encoder(make: Make, room_for: Room, encoded: list[int]) -> None:
    plain = make()
    alone = {prompt: Upload(plain, initial_prompt=prompt).text for prompt in (None, "nine", "one")}
    beams = Upload(plain, beam_size=2, temperature=0.0).text
    assert plain.engines.outputs.hits == plain.engines.outputs.nbytes == 0
    encoded.clear()
    room_for(20)
    service = make()
    first = Upload(service)
    assert first.text == alone[None] and encoded == [1]
    for prompt, text in alone.items():
        assert Upload(service, initial_prompt=prompt, user="another").text == text
    assert Upload(service, beam_size=2, temperature=0.0).text == beams
    assert encoded == [1] and service.engines.outputs.hits == 4
    assert Upload(service, OTHER).text and sum(encoded) == 2
    kept = service.engines.outputs
    assert 0 < kept.nbytes <= kept.limit


def test_the_bound_holds(make: Make, room_for: Room, encoded: list[int]) -> None:
    """The model's windows are as long as their audio: 9 and 15 s, of 30."""
    room_for(0.6)
    service = make()
    for number, name in enumerate((PHONE, OTHER, PHONE), start=1):
        assert Upload(service, name).text and sum(encoded) == number
    assert Upload(service, PHONE).text and sum(encoded) == 3
    room_for(0.25)
    tight = make()
    for number in (4, 5):
        assert Upload(tight).text and sum(encoded) == number
    assert tight.engines.outputs.nbytes == 0


def test_both_at_the_same_time(make: Make, room_for: Room, encoded: list[int]) -> None:
    room_for(20)
    service = make()
    uploads = [Upload(service, user=str(n), initial_prompt=p) for n, p in enumerate((None, "two"))]
    assert all(upload.text for upload in uploads) and encoded == [1]


@pytest.mark.slow
def test_a_cancelled_request_leaves_no_window(
    make: Make, room_for: Room, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for(20)
    service = make(batch_size=1)
    one, other = Upload(service, LONG), Upload(service, LONG, user="other", initial_prompt="one")
    assert eventually(lambda: service.jobs.states()["running"] > 0)
    service.cancel(one.job)
    assert other.text and eventually(lambda: service.in_flight == 0)
    (shared,) = service.engines._engines.values()
    assert shared.engine.idle and shared.engine.free == shared.engine.slots
    assert Upload(service, LONG).text == Upload(make(), LONG).text


def test_another_model_has_none(make: Make, room_for: Room, encoded: list[int]) -> None:
    room_for(20)
    service = make(unload_after=0.2)
    assert Upload(service).text == Upload(service, model="other").text
    assert sum(encoded) == 2
    assert eventually(lambda: service.engines.model is None)
    assert service.engines.outputs.nbytes == 0


def test_what_is_live_is_not_kept(make: Make, room_for: Room, encoded: list[int]) -> None:
    room_for(20)
    service: Service = make(first=DIGITS)
    service.first.result(60)
    ended: list[object] = []
    stream = service.open_stream(DIGITS, LiveOptions(), ended.append)
    stream.append(slimwhisper.load_audio(SAMPLES / PHONE))
    stream.finish()
    assert eventually(lambda: None in ended) and encoded
    assert service.engines.outputs.nbytes == 0


def test_an_engine_without_a_limit_keeps_nothing(make: Make) -> None:
    service = make()
    assert Upload(service).text
    (shared,) = service.engines._engines.values()
    assert isinstance(shared.engine, Engine) and isinstance(shared.batch, Batch)
    assert shared.engine.runner.encoder.kept is None
