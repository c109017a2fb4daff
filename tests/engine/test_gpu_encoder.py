"""The encoder on a pretend GPU: on its own stream, beside the steps."""

from collections.abc import Sequence
from dataclasses import replace

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
from tests.support.pretend.device import Forbidden
from tests.support.pretend.models import made, requests
from tests.support.windows import CPU, VOCABULARY, Asker, step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:divide by zero"),  # the interpreter's log(0)
]


def encoded(slots: int, windows: int) -> list[tuple[int, bool, int]]:
    """The batches of an engine's encoder: windows, whether half of the GPU encodes them, and how
    many rows are free then. All windows are the same.
    """
    engine = Engine(made(("e", "x"), torch.device("cuda"), layers=1), VOCABULARY, slots)
    assert (engine.batch_size, engine.slots) == (slots, slots + 2 * ENCODE_BATCH)
    owner, batches = Asker(), list[tuple[int, bool, int]]()
    begin, group = engine.runner.encoder.begin, engine.scheduler.main_group

    def noted(tickets: Sequence[Ticket], mels: Sequence[Tensor], beside: bool) -> None:
        batches.append((len(tickets), beside, group.room))
        begin(tickets, mels, beside)

    engine.runner.encoder.begin = noted  # type: ignore[method-assign]
    (window,) = requests(1)
    for _ in range(windows):
        engine.submit(owner, window)
    while not engine.idle:
        step(engine)
        assert len(group.tickets) <= slots
    assert len(owner.answers) == windows
    return batches


def test_windows_are_encoded_together_before_there_are_rows() -> None:
    with pretend_cuda():
        assert [count for count, *_ in encoded(2, 40)] == [12, 12, 12, 4]


def test_a_stream_waits_for_what_it_reads() -> None:
    with pretend_cuda():
        stream, x = torch.cuda.Stream(), torch.zeros(3, device="cuda")
        with torch.cuda.stream(stream), pytest.raises(Forbidden, match="another stream"):
            x + 1
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x + 1


def test_the_encoder_is_recorded_for_each_number_of_windows() -> None:
    """And what it found is kept when the next batch runs in the same memory."""
    asked = requests(5)
    mels = torch.stack([w.mel for w in asked if w.mel is not None])
    expected = made(("e", "x"), CPU).encoder(mels)
    with pretend_cuda(count=2) as gpu:
        encoder = AsyncEncoder(made(("e", "x")), 3)
        for turn in range(3):  # directly, recorded, replayed
            with gpu.counting() as counts:
                for some in (slice(0, 3), slice(3, 5)):
                    tickets = [Ticket(i, w, i, slot=i) for i, w in enumerate(asked)][some]
                    encoder.begin(tickets, list(mels[some]))
            assert counts.kernels["conv1d"] == (0 if turn == 2 else 4)
            assert not counts.reads
            found: dict[int, Tensor] = {}
            while len(found) < 5:
                for tickets, features in encoder.completed(wait=True):
                    found |= {t.slot: f.cpu() for t, f in zip(tickets, features, strict=True)}
            for slot, features in found.items():
                torch.testing.assert_close(features, expected[slot])
        whole = made(("e", "x"), CPU).dims.window_frames
        assert sorted(encoder.graphs["encoder"].recorded) == [(2, whole), (3, whole)]
        assert encoder.graphs["encoder"].failure is None


@pytest.mark.parametrize("divides", [True, False])
def test_half_of_the_gpu_encodes_what_no_row_waits_for(divides: bool) -> None:
    """The same buffers serve both halves, one after the other, and the graphs of both."""
    asked = requests(4)
    mels = [w.mel for w in asked if w.mel is not None]
    expected = made(("e", "x"), CPU).encoder(torch.stack(mels))
    with pretend_cuda(divides=divides):
        encoder = AsyncEncoder(made(("e", "x")), 2)
        for _ in range(3):
            for first, beside in ((0, False), (2, True)):
                some = slice(first, first + 2)
                tickets = [Ticket(i, w, i, slot=i) for i, w in enumerate(asked)][some]
                encoder.begin(tickets, mels[some], beside)
            found = [f.cpu() for _ in range(2) for _, f in encoder.completed(wait=True)]
            torch.testing.assert_close(torch.cat(found), expected)
        recorded = {role: len(graphs.recorded) for role, graphs in encoder.graphs.items()}
        assert recorded == ({"encoder": 1, "beside": 1} if divides else {"encoder": 1})
        if divides:
            streams = [stream_of(torch.device("cuda", 0), role) for role in ("encoder", "beside")]
            assert streams[0].number != streams[1].number  # type: ignore[attr-defined]


def test_the_encoder_leaves_half_of_the_gpu_to_full_rows() -> None:
    """While rows are free it has all of it."""
    with pretend_cuda():
        batches = encoded(16, 60)
    assert {beside for _, beside, _ in batches} == {True, False}
    assert all(room == 0 for _, beside, room in batches if beside)


def test_how_many_windows_are_encoded_ahead() -> None:
    """Up to as many as there are rows, where their audio is small."""
    small, large = (made(forms, CPU) for forms in (("e", "x"), ("kv", "kv")))
    assert [slots_ahead(small, n) for n in (1, 24, 40, 64, 256)] == [24, 24, 40, 64, 64]
    size = CrossCache(large.plan, 1, large.dims.n_audio_ctx).nbytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "AHEAD_BYTES", 30 * size)
        assert [slots_ahead(large, n) for n in (1, 64, 256)] == [24, 30, 30]
        patch.setattr(engine_module, "AHEAD_BYTES", 3 * size)
        assert slots_ahead(large, 64) == 24


def test_others_decode_while_a_window_is_encoded() -> None:
    """And a window that is given up meanwhile leaves its slot."""
    first, second = requests(2)
    rules = replace(first.rules, sample_len=30)  # type: ignore[type-var]
    with pretend_cuda() as gpu:
        model = made(("e", "x"), torch.device("cuda"))
        engine = Engine(model, VOCABULARY, 2, None, 4)
        owners = Asker(), Asker()
        engine.submit(owners[0], replace(first, rules=rules))
        step(engine)
        engine.submit(owners[1], second)
        with gpu.counting() as counts:
            step(engine)
        assert counts.kernels["conv1d"] == 2 and len(engine.group_runners[0].group.tickets) == 1
        assert counts.kernels["graph"] == 2  # it, and a step beside it
        assert engine.slots - engine.free == 2
        engine.stop(owners[1:])
        assert engine.slots - engine.free == 1
        while not engine.idle:
            step(engine)
        assert [len(owner.answers) for owner in owners] == [1, 0]
        assert engine.free == engine.slots
