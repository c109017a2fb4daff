"""The engine on a pretend GPU: the same texts, and few launches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.cache.forms import PRESETS
from slimwhisper.cache.rows import DecodeStep, Rows, pages_of
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Decoded, Search
from slimwhisper.model.model import Model
from tests.support.pretend.cuda import pretend_cuda
from tests.support.pretend.kernels import WORK
from tests.support.pretend.models import CUDA, made, requests, small, then
from tests.support.windows import CPU, SEARCHES, VOCABULARY, Asker, assert_same, run, step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:divide by zero"),  # the interpreter's log(0)
]

SLOW = [
    *((forms, None, (0.0,)) for forms in [("k", "k"), ("v", "v"), ("hybrid", "x")]),
    (("compact:merge=0.5,float8=true", "compact:float8=true"), None, (0.0,)),
    (("e", "x"), *SEARCHES[1]),
    (("kv", "kv"), Search(beams=3), (0.0,)),
    (("compact:merge=0.5", "compact"), Search(beams=2), (0.0,)),
]
CASES = [
    (("e", "x"), *SEARCHES[-1]),
    (("e8", "x8"), Search(beams=2), (0.0,)),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
]


@pytest.mark.parametrize(("forms", "search", "temperatures"), CASES)
def test_the_same_texts(
    forms: tuple[str, str], search: Search | None, temperatures: Sequence[float]
) -> None:
    asked = [replace(w, logprobs=i != 1) for i, w in enumerate(requests(5, temperatures))]
    # Where processors differ by the last bit, a value between two float8 numbers falls to either.
    tolerance = 1e-2 if "e8" in forms else 1e-4
    cpu = Engine(made(forms, CPU), VOCABULARY, 3, search, 4)
    expected = run(cpu, dict(enumerate(asked)), then)
    with pretend_cuda(count=2):
        model = made(forms)
        engine = Engine(model, VOCABULARY, 3, search, 4)
        found = run(engine, dict(enumerate(asked)), then)
        graphs = [runner.graphs for runner in engine.group_runners]
    for tag, answers in expected.items():
        texts = [[a for a in of[tag] if isinstance(a, Decoded)] for of in (found, expected)]
        assert_same(*texts)
        for ours, other in zip(*texts, strict=True):
            assert bool(ours.logprobs) == asked[tag].logprobs
            assert ours.logprobs == pytest.approx(other.logprobs, abs=tolerance)
        assert len(found[tag]) == len(answers)
    assert model.plan.kernels.failures == {}
    assert sum(g.replays for g in graphs if g) > 0 and not any(g.failure for g in graphs if g)
    assert {path for _, path in model.plan.kernels.used} <= {"cuda", "triton", "torch"}
    assert model.plan.kernels.used["add_norm", "triton"] > 0


def test_interpreted_kernels_as_well() -> None:
    """One case by the kernels themselves, with their own reads and writes."""
    asked = requests(2)
    cpu = Engine(Model(small(1), CPU, torch.float32), VOCABULARY, 2, None, 4)
    expected = run(cpu, dict(enumerate(asked)))
    with pretend_cuda(count=2, interpreted=True):
        engine = Engine(Model(small(1), CUDA, torch.float32), VOCABULARY, 2, None, 4)
        found = run(engine, dict(enumerate(asked)))
    assert_same([found[i][0] for i in range(2)], [expected[i][0] for i in range(2)])


def launches(
    forms: tuple[str, str], dtype: torch.dtype, tokens: int = 1
) -> tuple[int, int, Counter[str]]:
    """Kernels of a step of 4 texts: a layer, and all others; and a layer's by name."""
    counted = []
    with pretend_cuda(count=2) as gpu:
        for layers in (2, 3):
            model = made(forms, CUDA, dtype, layers)
            cache = DecoderCache(model.allocate_cross(4), model.allocate_self(4))
            pages = pages_of(model.dims.n_text_ctx)
            rows = Rows.block(4, pages=pages, device=CUDA).spread(tokens)
            positions = torch.arange(7, 7 + tokens, device=CUDA).repeat(4)
            with gpu.counting() as counts:
                step = DecodeStep.at(rows, positions, 7 + tokens, False, dtype)
                model.decoder.step(positions, step, cache)
            assert not counts.uploads and not counts.reads
            counted.append(counts.kernels)
    layer = counted[1] - counted[0]
    each = layer.total()
    return each, counted[0].total() - 2 * each, layer


BESIDE = 11  # kernels of the decoder outside its layers
# kernels a layer
LAUNCHES, LAUNCHES_BESIDE = 15, 33  # of a decoder layer in a step, and of a step besides its layers
CEILINGS = {"slim": LAUNCHES, "baseline": LAUNCHES, "option1": 17, "option2": 17}


@pytest.mark.parametrize("name", CEILINGS)
def test_launches_of_a_step(name: str) -> None:
    each, others, by_name = launches(PRESETS[name], torch.float16)
    assert (each, others) == (CEILINGS[name], BESIDE), by_name


@pytest.mark.parametrize("forms", [("e", "x"), ("kv", "kv")])
def test_tokens_of_a_step_read_their_caches_together(
    forms: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many launches as for one token each, and the programs are those of 4 texts."""
    read: list[int] = []  # texts of each attention

    def seen(kernel: str) -> None:
        work = WORK[kernel]

        def counted(a: dict[str, Any]) -> None:
            read.append(len(a["queries"]) // a["group"])
            work(a)

        monkeypatch.setitem(WORK, kernel, counted)

    for kernel in ("split_latent", "split_heads"):
        seen(kernel)
    each, others, by_name = launches(forms, torch.float16, tokens=3)
    assert (each, others) == (LAUNCHES, BESIDE), by_name
    assert read == [4] * 10, "two attentions of 2 and of 3 layers"


@pytest.mark.parametrize(
    ("search", "logprobs", "beside"),
    [
        (None, False, LAUNCHES_BESIDE),
        (None, True, LAUNCHES_BESIDE + 1),  # the log-probabilities are written once more
        (Search(beams=3), False, 145),
        (Search(beams=3), True, 151),
    ],
)
def test_nobody_waits_for_the_gpu(search: Search | None, logprobs: bool, beside: int) -> None:
    """Neither steps nor looks read from it, and a step is one graph."""
    owner = Asker()
    with pretend_cuda() as gpu:
        model = made(("e", "x"), torch.device("cuda"), torch.float16)
        engine = Engine(model, VOCABULARY, 3, search, 4)
        for window in requests(3):
            rules = replace(window.rules, sample_len=60)  # type: ignore[type-var]
            engine.submit(owner, replace(window, rules=rules, logprobs=logprobs))
        with gpu.counting() as counts:
            step(engine)
        assert not counts.reads
        looks = 0
        for i in range(12):
            with gpu.counting() as counts:
                step(engine)
            given = counts.kernels.pop("index_put_", 0) if i else 0  # pages: one upload, pinned
            assert counts.uploads.total() == given <= 1
            assert not counts.reads - Counter({"event.synchronize": 1})
            looks += bool(counts.downloads)
            if i == 0:  # it is being captured
                launched = counts.kernels - Counter({"graph": 1})
                layers = model.dims.n_text_layer * LAUNCHES
                assert launched.total() == layers + beside, launched
            else:
                assert counts.kernels == {"graph": 1}
        assert looks == 3 and not owner.answers


def test_an_admission_is_one_upload_and_one_graph() -> None:
    with pretend_cuda() as gpu:
        model = made(("e", "x"), torch.device("cuda"), torch.float16)
        engine, owner = Engine(model, VOCABULARY, 1), Asker()
        for window in requests(1) * 4:
            prompt = (*range(100, 110), *window.prompt)
            rules = replace(window.rules, sample_len=3)  # type: ignore[type-var]
            index = window.sot_index + 10
            engine.submit(owner, replace(window, rules=rules, prompt=prompt, sot_index=index))
        started: list[Counter[str]] = []
        tickets = engine.group_runners[0].group.tickets
        while not engine.idle:
            before, encoded = list(tickets), engine.runner.encoder.graphs["encoder"]._seen.copy()
            with gpu.counting() as counts:
                step(engine)
            assert not counts.reads - Counter({"event.synchronize": 1})
            if tickets and tickets != before:
                first = not encoded  # the mel, and the slots of what was encoded
                assert counts.uploads == ({"to": 2, "copy_": 1} if first else {"to": 1})
                started.append(counts.kernels)
        assert len(owner.answers) == len(started) == 4
        # the prompt's and the step's; not in a graph, the first token's logits
        assert started[-1]["graph"] == 2 and started[-1]["linear"] == 1


@pytest.mark.slow
def test_attention_has_few_shapes_whatever_the_prompts() -> None:
    lengths = torch.randint(1, 225, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    (window,) = requests(1)
    with pretend_cuda() as gpu:
        model = made(("e", "x"), torch.device("cuda"), torch.float16, 1)
        engine, owner = Engine(model, VOCABULARY, 8), Asker()
        for n in lengths:
            prompt = (*range(100, 100 + n), *window.prompt)
            rules = replace(window.rules, sample_len=1 + n % 5)  # type: ignore[type-var]
            asked = replace(window, rules=rules, prompt=prompt, sot_index=n + window.sot_index)
            engine.submit(owner, asked)
        while not engine.idle:
            step(engine)
    assert len(owner.answers) == 200
    assert 8 < len(gpu.attention_shapes) <= 30, sorted(gpu.attention_shapes)
