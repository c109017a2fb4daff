"""The engine on pretend GPUs: the texts of a CPU, and nobody waits for the GPU."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.decoder_cache import CrossCache
from slimwhisper.engine import engine as engine_module
from slimwhisper.engine.engine import ENCODE_BATCH, Engine, slots_ahead
from slimwhisper.engine.passes import AsyncEncoder
from slimwhisper.engine.requests import Search
from slimwhisper.engine.scheduler import Ticket
from slimwhisper.hot_words.filter import hot_words
from slimwhisper.kernels.graphs import stream_of
from tests.support.marks import slow
from tests.support.pretend.cuda import pretend_cuda, pretend_other
from tests.support.pretend.models import made, requests
from tests.support.windows import (
    CPU,
    SEARCHES,
    VOCABULARY,
    Asked,
    Asker,
    answers,
    assert_same_answers,
    of_every_kind,
    step,
    with_rules,
)

CURRENT = torch.device("cuda")
GREEDY = SEARCHES[0]
Temperatures = tuple[float, ...]
SLOW = [
    *((forms, *GREEDY) for forms in [("k", "k"), ("v", "v"), ("hybrid", "x")]),
    (("compact:merge=0.5,float8=true", "x8"), *GREEDY),
    (("e", "x"), *SEARCHES[1]),
    (("kv", "kv"), Search(beams=3), (0.0,)),
    (("compact:merge=0.5", "x"), Search(beams=2), (0.0,)),
    (("e8", "x8"), Search(beams=2), (0.0,)),
    (("e", "x"), *SEARCHES[-1]),
]


@pytest.mark.parametrize(("forms", "search", "temperatures"), [(("e", "x"), *GREEDY), *slow(*SLOW)])
def test_the_answers_of_a_cpu(
    forms: tuple[str, str], search: Search | None, temperatures: Temperatures
) -> None:
    """From graphs: few are recorded, many replayed, and again where buffers have moved."""
    model, windows = made(forms, CPU), requests(7, temperatures=temperatures)
    *every, _ = of_every_kind(windows, model.plan.exact_cross)  # of NaN, any token may come
    turns = [[Asked(w) for w in windows], every]
    cpu = Engine(model, 3, search, 4)
    expected = [answers(cpu, asked) for asked in turns]
    with pretend_cuda(count=2):
        engine = Engine(made(forms), 3, search, 4)
        found = [answers(engine, asked) for asked in turns]
        graphs = [r.graphs for r in engine.group_runners if r.graphs is not None]
        assert not any(r.pending for r in engine.group_runners), "nobody's owners are kept"
    # where processors differ by the last bit, a value between two float8 numbers falls to either
    for ours, others in zip(found, expected, strict=True):
        assert_same_answers(ours, others, 1e-2 if "8" in "".join(forms) else 1e-4)
    assert graphs and not any(g.failure for g in graphs)
    assert sum(g.replays for g in graphs) > sum(len(g.recorded) for g in graphs) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "search", "temperatures"),
    [("mps", Search(beams=2), (0.0,)), ("xpu", None, (0.0, 0.8))],
)
def test_gpus_without_cuda(kind: str, search: Search | None, temperatures: Temperatures) -> None:
    """By PyTorch's operators alone. On MPS, tokens that are drawn are others: from float32."""
    *asked, _ = of_every_kind(requests(7, temperatures=temperatures), exact=True)
    if kind == "mps":
        asked = [replace(a, then=()) for a in asked]
    expected = answers(Engine(made(("e", "x"), CPU), 2, search), asked)
    with pretend_other(kind) as gpu:
        engine = Engine(made(("e", "x"), torch.device(kind, 0)), 2, search)
        engine.share_cores(True)
        with gpu.counting() as counts:
            assert_same_answers(answers(engine, asked), expected)
    assert counts.kernels["linear"] > 50 and not counts.kernels["graph"]


@pytest.mark.slow
@pytest.mark.parametrize("search", [None, Search(beams=3)])
@pytest.mark.parametrize("phrases", [None, 1000])
def test_nobody_waits_for_the_gpu(search: Search | None, phrases: int | None) -> None:
    """Neither steps nor looks read from it, and a step is one graph, with hot words too."""
    lines = tuple(f"{VOCABULARY.tokenizer().decode([t])}x y" for t in range(1000, 2000))[:phrases]
    words = hot_words(VOCABULARY, lines, 1e-3) if phrases else None
    owner = Asker()
    with pretend_cuda() as gpu:
        model = made(("e", "x"), CURRENT, torch.float16)
        engine = Engine(model, 3, search, 4)
        for window in requests(3):
            changed = with_rules(window, sample_len=60, bonuses=words)
            engine.submit(owner, replace(changed, logprobs=True))
        step(engine)
        looks = 0
        for i in range(12):
            with gpu.counting() as counts:
                step(engine)
            assert not counts.reads - Counter({"event.synchronize": 1})
            looks += bool(counts.downloads)
            assert counts.kernels["graph"] == 1
            if i:  # recorded: pages are one upload, pinned
                assert counts.uploads.total() == counts.kernels["__setitem__"] <= 1
                assert counts.kernels.total() <= 1 + counts.uploads.total() + 2 * looks
        assert looks == 3 and not owner.answers


@pytest.mark.slow
def test_an_admission_is_one_upload_and_one_graph() -> None:
    with pretend_cuda() as gpu:
        engine = Engine(made(("e", "x"), CURRENT, torch.float16), 1)
        owner, started, uploads = Asker(), list[Counter[str]](), list[int]()
        for window in requests(1) * 4:
            engine.submit(owner, with_rules(window, sample_len=3))
        tickets = engine.group_runners[0].group.tickets
        while not engine.idle:
            before = list(tickets)
            with gpu.counting() as counts:
                step(engine)
            assert not counts.reads - Counter({"event.synchronize": 1})
            if tickets and tickets != before:
                uploads.append(counts.uploads.total())
                started.append(counts.kernels)
    assert len(owner.answers) == len(started) == 4
    assert uploads[-1] == 1
    # the prompt's and the step's; not in a graph, the first token's logits
    assert started[-1]["graph"] == 2 and started[-1]["linear"] == 1


@pytest.mark.slow
def test_attention_has_few_shapes_whatever_the_prompts() -> None:
    lengths = torch.randint(1, 225, (70,), generator=torch.Generator().manual_seed(0)).tolist()
    (window,) = requests(1)
    with pretend_cuda() as gpu:
        engine = Engine(made(("e", "x"), CURRENT, torch.float16, 1), 8)
        asked = []
        for n in lengths:
            prompt = (*range(100, 100 + n), *window.prompt)
            long = replace(window, prompt=prompt, sot_index=n + window.sot_index)
            asked.append(Asked(with_rules(long, sample_len=1 + n % 5)))
        assert len(answers(engine, asked)) == 70
    assert 8 < len(gpu.attention_shapes) <= 30, sorted(gpu.attention_shapes)


# The encoder: on its own stream, beside the steps


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
