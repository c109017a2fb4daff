"""Windows with the same audio share one output of the encoder: the same texts, encoded once."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.passes import encoder
from slimwhisper.engine.passes.outputs import EncoderOutputs
from slimwhisper.engine.requests import Search, Window
from slimwhisper.engine.tickets import Results, Ticket
from slimwhisper.model.model import Model
from tests.support.pretend.cuda import pretend_cuda
from tests.support.pretend.models import made, requests
from tests.support.windows import (
    GRADED_SEARCHES,
    VOCABULARY,
    Asker,
    assert_same,
    decode,
    run,
    short_model,
    short_windows,
)

ROOM = 1 << 24


@pytest.fixture
def encoded(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many windows each call of the encoder has."""
    counts: list[int] = []
    encode = model.encoder

    def counted(mel: Tensor) -> Tensor:
        counts.append(len(mel))
        return encode(mel)

    monkeypatch.setattr(model, "encoder", counted)
    yield counts


def in_pairs(windows: Sequence[Window]) -> list[Window]:
    """Windows, of which each two have the audio of the first, and prompts of their own."""
    mels = [w.mel for w in windows[::2] for _ in range(2)]
    return [replace(w, mel=m, may_recur=True) for w, m in zip(windows, mels, strict=False)]


def answers(
    model: Model,
    windows: Sequence[Window],
    slots: int,
    outputs: EncoderOutputs | None,
    search: Search | None = None,
) -> list[object]:
    engine = Engine(model, VOCABULARY, slots, search)
    engine.keep(outputs)
    found = run(engine, dict(enumerate(windows)))
    return [found[i][0] for i in range(len(windows))]


@pytest.mark.parametrize(("search", "temperatures"), GRADED_SEARCHES)
@pytest.mark.parametrize("slots", [pytest.param(1, marks=pytest.mark.slow), 2, 5])
def test_the_texts_are_those_of_separate_encodings(
    model: Model,
    encoded: list[int],
    search: Search | None,
    temperatures: Sequence[float],
    slots: int,
) -> None:
    windows = in_pairs(short_windows(8, temperatures=temperatures))
    alone = [decode(model, [w], 1, search)[0] for w in windows]
    assert len({a.tokens for a in alone}) == 8
    encoded.clear()
    outputs = EncoderOutputs(ROOM)
    assert_same(answers(model, windows, slots, outputs, search), alone)  # type: ignore[arg-type]
    assert sum(encoded) == 4 and outputs.hits == 4
    assert_same(answers(model, windows, slots, outputs, search), alone)  # type: ignore[arg-type]
    assert sum(encoded) == 4 and outputs.hits == 12  # another engine, the same outputs


def test_without_room_windows_share_what_is_encoded_at_the_same_time(
    model: Model, encoded: list[int]
) -> None:
    windows = in_pairs(short_windows(4))
    answers(model, windows, 4, outputs := EncoderOutputs(0))
    assert sum(encoded) == 2 and outputs.nbytes == 0
    answers(model, windows, 1, outputs)  # one after the other
    assert sum(encoded) == 6


def test_only_windows_that_may_recur_are_kept(model: Model, encoded: list[int]) -> None:
    windows = [replace(w, may_recur=False) for w in in_pairs(short_windows(4))]
    answers(model, windows, 4, outputs := EncoderOutputs(ROOM))
    assert sum(encoded) == 4 and outputs.nbytes == outputs.hits == 0
    answers(model, in_pairs(short_windows(4)), 4, None)
    assert sum(encoded) == 8


def test_the_least_recently_used_go_first() -> None:
    outputs = EncoderOutputs(3 * 40)
    rows = torch.arange(50.0).view(5, 1, 10)  # 40 bytes each

    a, b, c, d, e = (bytes([number]) for number in range(5))

    def kept() -> set[bytes]:
        return {key for key in (a, b, c, d, e) if key in outputs._outputs}

    outputs.put([a, None, b, c], rows[[0, 4, 1, 2]])
    assert kept() == {a, b, c} and outputs.nbytes == 120
    found = outputs.find(a)
    assert found is not None and torch.equal(found, rows[0])
    outputs.put([d], rows[3:4])
    assert kept() == {a, c, d} and outputs.nbytes == 120 and outputs.find(b) is None
    outputs.put([e], torch.zeros(1, 1, 31))  # larger than all the room
    assert kept() == {a, c, d}
    outputs.resize(80)
    assert len(kept()) == 2 and outputs.nbytes == 80
    outputs.clear()
    assert not kept() and outputs.nbytes == 0 and outputs.hits == 1


def test_what_is_kept_is_a_copy() -> None:
    outputs, row = EncoderOutputs(ROOM), torch.ones(1, 2, 2)
    outputs.put([b"a"], row)
    row.zero_()
    found = outputs.find(b"a")
    assert found is not None and found.sum() == 4


def test_other_audio_has_another_key() -> None:
    mel = torch.zeros(2, 6)
    assert EncoderOutputs.key_of(mel) != EncoderOutputs.key_of(mel.int())
    keys = {EncoderOutputs.key_of(m) for m in (mel, mel.view(3, 4), mel + 1, mel.view(6, 2).T)}
    assert len(keys) == 3  # the last is equal to the first
    assert EncoderOutputs.key_of(mel.repeat(1, 2)[:, :6]) in keys  # not contiguous


def test_one_that_is_given_up_does_not_take_the_other_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor the output: the request may come again."""
    monkeypatch.setattr(encoder, "usual_threads", lambda: 4)
    model, encoded, release = short_model(), list[int](), threading.Event()
    first, second = in_pairs(short_windows(2))
    alone = decode(model, [second], 1)
    encode = model.encoder

    def slow(mel: Tensor) -> Tensor:
        assert release.wait(10)
        encoded.append(len(mel))
        return encode(mel)

    model.encoder = slow  # type: ignore[assignment]

    def body() -> None:
        engine = Engine(model, VOCABULARY, 3)
        engine.share_cores(True)
        engine.keep(outputs := EncoderOutputs(ROOM))
        owners = Asker(), Asker()
        engine.submit(owners[0], first)
        engine.runner.encode(engine.scheduler.plan(2, synchronous=False), Results())
        engine.submit(owners[1], second)
        engine.runner.encode(engine.scheduler.plan(2, synchronous=False), Results())
        engine.stop(owners[:1])
        assert outputs.hits == 1 and engine.free == 2 and not outputs.nbytes
        release.set()
        while not engine.idle:
            engine.step()
        assert engine.free == 3 and not owners[0].answers
        assert_same(owners[1].answers, alone)  # type: ignore[arg-type]
        engine.submit(third := Asker(), first)
        while not engine.idle:
            engine.step()
        assert len(third.answers) == 1 and encoded == [1] and outputs.hits == 2
        engine.share_cores(False)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(body).result()


@pytest.mark.filterwarnings("ignore:divide by zero")  # the interpreter's log(0)
def test_on_a_gpu_too() -> None:
    """A request finds a window that is still in the encoder, or that was in it."""
    pairs = [replace(w, may_recur=True) for w in requests(3) for _ in range(2)]
    with pretend_cuda():
        model = made(("e", "x"), torch.device("cuda"), layers=1)
        engine = Engine(model, VOCABULARY, 2)
        batches: list[int] = []
        begin = engine.runner.encoder.begin

        def counted(tickets: Sequence[Ticket], mels: Sequence[Tensor], beside: bool) -> None:
            batches.append(len(mels))
            begin(tickets, mels, beside)

        engine.runner.encoder.begin = counted  # type: ignore[method-assign]
        alone = run(engine, dict(enumerate(pairs)))
        assert sum(batches) == 6
        engine.keep(outputs := EncoderOutputs(ROOM))
        shared = run(engine, dict(enumerate(pairs)))
        assert sum(batches) == 9 and outputs.hits == 3
        later = run(engine, dict(enumerate(pairs)))
        assert sum(batches) == 9 and outputs.hits == 9
    for number in range(6):
        for found in (shared, later):
            assert_same(found[number], alone[number])  # type: ignore[arg-type]


@pytest.mark.parametrize("forms", [("kv", "kv"), ("k", "k"), ("compact:merge=0.5", "x")])
def test_every_form_stores_a_shared_output(forms: tuple[str, str]) -> None:
    model = short_model(forms=forms)
    windows = in_pairs(short_windows(4))
    alone = [decode(model, [w], 1)[0] for w in windows]
    outputs = EncoderOutputs(ROOM)
    assert_same(answers(model, windows, 3, outputs), alone)  # type: ignore[arg-type]
    assert outputs.hits == 2
