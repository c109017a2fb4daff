"""The engine on pretend GPUs: the texts of a CPU, and nobody waits for the GPU."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Search
from slimwhisper.hot_words.filter import hot_words
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


@pytest.mark.parametrize(
    ("forms", "search", "temperatures"),
    [(("e", "x"), *GREEDY), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_the_answers_of_a_cpu(
    forms: tuple[str, str], search: Search | None, temperatures: Temperatures
) -> None:
    """From graphs: few are recorded, many replayed, and again where buffers have moved."""
    model, windows = made(forms, CPU), requests(7, temperatures)
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
    *asked, _ = of_every_kind(requests(7, temperatures), exact=True)
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
        owner = Asker()
        for n in lengths:
            prompt = (*range(100, 100 + n), *window.prompt)
            asked = replace(window, prompt=prompt, sot_index=n + window.sot_index)
            engine.submit(owner, with_rules(asked, sample_len=1 + n % 5))
        while not engine.idle:
            step(engine)
    assert len(owner.answers) == 70
    assert 8 < len(gpu.attention_shapes) <= 30, sorted(gpu.attention_shapes)
