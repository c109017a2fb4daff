"""An encoder in a thread of its own on a CPU: the same answers, and torch's threads given back."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from slimwhisper.engine import passes
from slimwhisper.engine.engine import LIVE_PREFETCH, Engine
from slimwhisper.engine.requests import Decoded
from slimwhisper.engine.scheduler import Results
from slimwhisper.model.model import Model
from tests.support.windows import Asker, assert_same, decode, run, short_model, short_windows, step

Test = Callable[..., None]


def in_a_thread(test: Test) -> Test:
    """It keeps the number of threads that it was given, and so does this one."""

    @wraps(test)
    def called(**fixtures: object) -> None:
        before = torch.get_num_threads()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test, **fixtures).result()
        assert torch.get_num_threads() == before

    return called


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "usual_threads", lambda: 4)


def watched(model: Model, names: list[str]) -> Model:
    """The names of the threads in which it encodes."""
    encode = model.encoder

    def call(mel: Tensor) -> Tensor:
        names.append(f"{threading.current_thread().name}, {torch.get_num_threads()}")
        return encode(mel)

    model.encoder = call  # type: ignore[assignment]
    return model


@in_a_thread
def test_the_same_answers(four: None) -> None:
    requests = short_windows(9)
    expected = decode(short_model(), requests, 3)
    names: list[str] = []
    engine = Engine(watched(short_model(), names), 3)
    for share in (True, False, True):
        engine.share_cores(share)
        assert engine.prefetch == (LIVE_PREFETCH if share else engine.encode_batch)
        assert torch.get_num_threads() == (2 if share else 4)
        done = run(engine, dict(enumerate(requests)))
        found = [done[i][0] for i in range(len(requests))]
        assert all(isinstance(f, Decoded) for f in found)
        assert_same(found, expected)  # type: ignore[arg-type]
    engine.share_cores(False)
    assert {n for n in names if n.startswith("slimwhisper-encoder")} == {"slimwhisper-encoder_0, 2"}
    assert sum(n.startswith("slimwhisper-encoder") for n in names) == 18, "one window at a time"
    assert 0 < sum(n.endswith(", 4") for n in names) <= 9


@in_a_thread
def test_windows_that_are_given_up_while_they_are_encoded(four: None) -> None:
    release, started = threading.Event(), threading.Event()
    model = short_model()
    encode = model.encoder

    def slow(mel: Tensor) -> Tensor:
        started.set()
        assert release.wait(10)
        return encode(mel)

    model.encoder = slow  # type: ignore[assignment]
    engine = Engine(model, 2)
    engine.share_cores(True)
    first, second = short_windows(2)
    owners = Asker(), Asker()
    engine.submit(owners[0], first)
    engine.submit(owners[1], second)
    threading.Thread(target=lambda: started.wait(10) and release.set()).start()
    plan = engine.scheduler.plan(2, synchronous=False)
    engine.runner.encode(plan, Results())
    engine.stop(owners[:1])
    while not engine.idle:
        step(engine)
    assert engine.scheduler.free == 2
    engine.share_cores(False)
    assert [len(owner.answers) for owner in owners] == [0, 1]


@in_a_thread
def test_an_encoder_that_fails_is_reported(four: None) -> None:
    model = short_model()
    model.encoder = Mock(side_effect=RuntimeError("broken"))  # type: ignore[assignment]
    engine = Engine(model, 1)
    engine.share_cores(True)
    engine.submit(Asker(), short_windows(1)[0])
    with pytest.raises(RuntimeError, match="broken"):
        step(engine)
    engine.share_cores(False)


@in_a_thread
def test_one_thread_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "usual_threads", lambda: 1)
    engine = Engine(short_model(), 1)
    engine.share_cores(True)
    assert engine.prefetch == engine.encode_batch and torch.get_num_threads() == 1
