"""The encoder on a pretend GPU: on its own stream, beside the steps."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.decoder_cache import CrossCache
from slimwhisper.engine import engine as engine_module
from slimwhisper.engine.engine import ENCODE_BATCH, Engine, slots_ahead
from slimwhisper.engine.passes import AsyncEncoder
from slimwhisper.engine.scheduler import Ticket
from slimwhisper.kernels.graphs import stream_of
from tests.support.pretend.cuda import pretend_cuda
from tests.support.pretend.models import made, requests
from tests.support.windows import CPU, Asker, step, with_rules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "windows", "most"), [(2, 40, ENCODE_BATCH), (16, 60, 12), (8, 40, 3)]
)
def test_windows_are_encoded_together(slots: int, windows: int, most: int) -> None:
    """As many as a batch holds, before there are rows, on half of the GPU while none is free; fewer
    with little memory for activations.
    """
    batches, each = list[tuple[int, bool, int]](), 20 * 24 * 64 * 4
    with pretend_cuda(memory=4 * most * each):
        engine = Engine(made(("e", "x"), torch.device("cuda"), layers=1), slots)
        assert (engine.batch_size, engine.slots) == (slots, slots + max(2 * most, slots))
        owner, begin, group = Asker(), engine.runner.encoder.begin, engine.scheduler.main_group

        def noted(tickets: Sequence[Ticket], mels: Sequence[Tensor], beside: bool) -> None:
            batches.append((len(tickets), beside, group.room))
            begin(tickets, mels, beside)

        engine.runner.encoder.begin = noted  # type: ignore[method-assign]
        for window in requests(1) * windows:
            engine.submit(owner, window)
        while not engine.idle:
            step(engine)
            assert len(group.tickets) <= slots
    counts = [count for count, *_ in batches]
    assert len(owner.answers) == sum(counts) == windows and max(counts) == most
    assert len(counts) <= -(-windows // most) + 2
    assert any(beside for _, beside, _ in batches) or slots == 2
    assert all(room == 0 for _, beside, room in batches if beside)


@pytest.mark.parametrize("divides", [True, False])
def test_batches_are_recorded_by_size_and_half(divides: bool) -> None:
    """What was found is kept when the next batch runs in the same memory, on either half."""
    asked = requests(5)
    mels = [w.mel for w in asked if w.mel is not None]
    expected = made(("e", "x"), CPU).encoder(torch.stack(mels))
    with pretend_cuda(count=2, divides=divides) as gpu:
        encoder = AsyncEncoder(made(("e", "x")), 3)
        for turn in range(3):  # directly, recorded, replayed
            with gpu.counting() as counts:
                for some, beside in ((slice(0, 3), False), (slice(3, 5), True)):
                    tickets = [Ticket(i, w, i, slot=i) for i, w in enumerate(asked)][some]
                    encoder.begin(tickets, mels[some], beside)
            assert counts.kernels["conv1d"] == (0 if turn == 2 else 4) and not counts.reads
            found: dict[int, Tensor] = {}
            while len(found) < 5:
                for tickets, features in encoder.completed(wait=True):
                    found |= {t.slot: f.cpu() for t, f in zip(tickets, features, strict=True)}
            for slot, features in found.items():
                torch.testing.assert_close(features, expected[slot])
        assert not any(graphs.failure for graphs in encoder.graphs.values())
        recorded = {role: len(graphs.recorded) for role, graphs in encoder.graphs.items()}
        assert recorded == ({"encoder": 1, "beside": 1} if divides else {"encoder": 2})
        if divides:
            streams = [stream_of(torch.device("cuda", 1), role) for role in ("encoder", "beside")]
            assert streams[0].number != streams[1].number  # type: ignore[attr-defined]


def test_how_many_windows_are_encoded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to as many as there are rows, where their audio is small, or memory is free."""
    small, large = (made(forms, CPU) for forms in (("e", "x"), ("kv", "kv")))
    size = CrossCache(large.plan, 1, large.dims.n_audio_ctx).nbytes()
    monkeypatch.setattr(engine_module, "choose_encode_batch", lambda _: ENCODE_BATCH)
    monkeypatch.setattr(engine_module, "free_bytes", lambda _: 1000 * size)
    assert [slots_ahead(small, n) for n in (1, 24, 40, 64, 256)] == [24, 24, 40, 64, 64]
    monkeypatch.setattr(engine_module, "AHEAD_BYTES", 30 * size)
    assert [slots_ahead(large, n) for n in (1, 64, 256)] == [24, 30, 30]
    monkeypatch.setattr(engine_module, "AHEAD_BYTES", 3 * size)
    assert slots_ahead(large, 64) == 24
    monkeypatch.setattr(engine_module, "free_bytes", lambda _: 30 * size)
    assert [slots_ahead(large, n) for n in (2, 10, 30, 40)] == [7, 5, 0, 0]


def test_others_decode_while_a_window_is_encoded() -> None:
    """And a window that is given up meanwhile leaves its slot."""
    first, second = requests(2)
    with pretend_cuda() as gpu:
        engine = Engine(made(("e", "x"), torch.device("cuda")), 2, None, 4)
        owners = Asker(), Asker()
        engine.submit(owners[0], with_rules(first, sample_len=30))
        step(engine)
        engine.submit(owners[1], second)
        with gpu.counting() as counts:
            step(engine)
        assert counts.kernels["conv1d"] == 2 and counts.kernels["graph"] == 2
        assert len(engine.group_runners[0].group.tickets) == 1
        assert engine.slots - engine.scheduler.free == 2
        engine.stop(owners[1:])
        assert engine.slots - engine.scheduler.free == 1
        while not engine.idle:
            step(engine)
        assert [len(owner.answers) for owner in owners] == [1, 0]
        assert engine.room == engine.slots
