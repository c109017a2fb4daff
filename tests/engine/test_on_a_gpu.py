"""The engine on a pretend GPU: the same texts, nothing that a GPU forbids, and few launches."""

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.gpu_model import LAUNCHES, LAUNCHES_BESIDE
from slimwhisper.cache.base import DecodeStep, Rows
from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.cache.forms import FORMS, PRESETS
from slimwhisper.cache.pool import pages_of
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine.engine import ENCODE_BATCH, Engine
from slimwhisper.engine.passes.encoder import AsyncEncoder
from slimwhisper.engine.requests import Align, Answer, Decoded, Request, Search, Window
from slimwhisper.engine.tickets import Ticket
from slimwhisper.kernels.graphs import CUDAGraphs, Graphs
from slimwhisper.model.calibration import Guard
from slimwhisper.model.model import Model
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.pretend.cuda import pretend_cuda
from tests.support.pretend.device import Forbidden
from tests.support.pretend.kernels import WORK
from tests.support.reference import set_spectrum
from tests.support.windows import CPU, SEARCHES, VOCABULARY, Asker, assert_same, run, windows

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")  # the interpreter's log(0)

CUDA = torch.device("cuda", 1)  # not the current one, so that whatever assumes it is seen
FRAMES = 24  # positions of a window: few, to be quick
SLOW = [
    *((forms, None, (0.0,)) for forms in [("k", "k"), ("e8", "x8"), ("v", "v"), ("hybrid", "x")]),
    (("compact:merge=0.5,float8=true", "compact:float8=true"), None, (0.0,)),
    *((("e", "x"), search, temperatures) for search, temperatures in SEARCHES[1:-1]),
    *((("kv", "kv"), search, (0.0,)) for search in (None, Search(beams=3))),
    (("compact:merge=0.5", "compact"), Search(beams=2), (0.0,)),
]
CASES = [
    (("e", "x"), *SEARCHES[-1]),
    (("e8", "x8"), Search(beams=2), (0.0,)),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
]


def small(layers: int = 2) -> Checkpoint:
    dims = tiny_dims(multilingual=False, text_layers=layers)
    dims = replace(dims, n_audio_ctx=FRAMES)
    return Checkpoint("random", dims, set_spectrum(random_state(dims, seed=1), dims, 3.0))


def made(
    forms: tuple[str, str],
    device: torch.device = CUDA,
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
) -> Model:
    """A random model whose guard hears a window as short as ours."""
    guard = Guard(mel=requests(1)[0].mel)
    model = Model(small(layers), device, dtype, forms, guard)
    assert not model.fallbacks
    return model


def requests(count: int, temperatures: Sequence[float] = (0.0,)) -> list[Window]:
    made = windows(count, temperatures=temperatures)
    return [replace(w, mel=w.mel[:, : 2 * FRAMES]) for w in made if w.mel is not None]


def then(tag: int, answer: Answer) -> Request | None:
    """The first window's words are asked for, too."""
    if tag == 0 and isinstance(answer, Decoded):
        text = tuple(t for t in answer.tokens if t < VOCABULARY.eot)[:5]
        return Align((VOCABULARY.sot,), text or (5,))
    return None


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
    assert {path for _, path in model.plan.kernels.used} <= {"triton", "torch"}
    assert model.plan.kernels.used["add_norm", "triton"] > 0


@pytest.mark.slow
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
CEILINGS = dict.fromkeys(("slim", "slim fp8", "baseline"), LAUNCHES) | {
    "option1": 18,
    "option2": 18,
}


@pytest.mark.parametrize("name", CEILINGS)
def test_launches_of_a_step(name: str) -> None:
    preset, _, eight = name.partition(" ")
    forms = PRESETS[preset]
    if eight:
        forms = tuple(str(FORMS[form].float8) for form in forms)  # type: ignore[assignment]
    each, others, by_name = launches(forms, torch.float16)
    assert (each, others) == (CEILINGS[name], BESIDE), by_name


@pytest.mark.parametrize("forms", [("e", "x"), ("e8", "x"), ("kv", "kv")])
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

    for kernel in ("split_latent", "split_latent8", "split_heads"):
        seen(kernel)
    each, others, by_name = launches(forms, torch.float16, tokens=3)
    assert (each, others) == (LAUNCHES, BESIDE), by_name
    assert read == [4] * 10, "two attentions of 2 and of 3 layers"


@pytest.mark.parametrize(
    ("search", "logprobs", "beside"),
    [
        (None, False, LAUNCHES_BESIDE),
        (None, True, LAUNCHES_BESIDE + 1),  # the log-probabilities are written once more
        (Search(beams=3), False, 149),
        (Search(beams=3), True, 156),
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
            engine.step()
        assert not counts.reads
        looks = 0
        for i in range(12):
            with gpu.counting() as counts:
                engine.step()
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
            window = replace(window, rules=rules, prompt=prompt, sot_index=window.sot_index + 10)
            engine.submit(owner, window)
        started: list[Counter[str]] = []
        tickets = engine.group_runners[0].group.tickets
        while not engine.idle:
            before, encoded = list(tickets), engine.runner.encoder.graphs._seen.copy()
            with gpu.counting() as counts:
                engine.step()
            assert not counts.reads - Counter({"event.synchronize": 1})
            if tickets and tickets != before:
                first = not encoded  # the mel, and the slots of what was encoded
                assert counts.uploads == ({"to": 2, "copy_": 1} if first else {"to": 1})
                started.append(counts.kernels)
        assert len(owner.answers) == len(started) == 4
        # the prompt's and the step's; not in a graph, the first token's logits
        assert started[-1]["graph"] == 2 and started[-1]["linear"] == 1


def test_windows_are_encoded_together_before_there_are_rows() -> None:
    owner, encoded = Asker(), list[int]()
    with pretend_cuda():
        engine = Engine(made(("e", "x"), torch.device("cuda"), layers=1), VOCABULARY, 2)
        assert (engine.batch_size, engine.slots) == (2, 2 + 2 * ENCODE_BATCH)
        begin = engine.runner.encoder.begin

        def counted(tickets: Sequence[Ticket], mel: Tensor) -> None:
            encoded.append(len(tickets))
            begin(tickets, mel)

        engine.runner.encoder.begin = counted  # type: ignore[method-assign]
        (window,) = requests(1)
        for _ in range(40):
            engine.submit(owner, window)
        while not engine.idle:
            engine.step()
            assert len(engine.scheduler.main_group.tickets) <= 2
    assert len(owner.answers) == 40 and encoded == [8, 8, 2, 8, 8, 6]


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
            engine.step()
    assert len(owner.answers) == 200
    assert 8 < len(gpu.attention_shapes) <= 30, sorted(gpu.attention_shapes)


# -- what a GPU forbids, or breaks ---------------------------------------------------------------


def test_devices_do_not_mix() -> None:
    with pretend_cuda(count=2) as gpu:
        ours = torch.zeros(3, device="cuda:0")
        with pytest.raises(Forbidden, match="host and a GPU"):
            ours + torch.zeros(3)
        with pytest.raises(Forbidden, match="two GPUs"):
            ours + torch.zeros(3, device="cuda:1")
        with gpu.counting() as counts:
            assert ours.sum().item() == 0
        assert counts.reads.total() == 1


def record(graphs: Graphs, key: str, body) -> None:  # type: ignore[no-untyped-def]
    for _ in range(2):
        graphs.run(key, body)


def test_a_capture_reads_nothing() -> None:
    with pretend_cuda():
        graphs = Graphs(CUDAGraphs(torch.device("cuda")))
        x = torch.zeros(3, device="cuda")
        with pytest.raises(Forbidden, match="not allowed"):
            record(graphs, "reads", lambda: x.add_(float(x.sum())))


def test_graphs_after_discard_are_recorded_in_a_new_pool() -> None:
    with pretend_cuda(count=2):
        graphs = Graphs(CUDAGraphs(CUDA))
        x = torch.zeros(3, device=CUDA)
        record(graphs, "adds", lambda: x.add_(1))
        graphs.discard()
        record(graphs, "adds", lambda: x.add_(1))
        graphs.run("adds", lambda: x.add_(1))
        assert graphs.failure is None and x.tolist() == [5, 5, 5]


def test_other_threads_work_beside_a_capture() -> None:
    with pretend_cuda():
        graphs = Graphs(CUDAGraphs(torch.device("cuda")))
        x, y = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")

        def body() -> None:
            x.add_(1)
            other = threading.Thread(target=lambda: y.copy_(torch.ones(3)))
            other.start()
            other.join()

        record(graphs, "adds", body)
        graphs.run("adds", lambda: None)
        assert graphs.failure is None and x.tolist() == [3, 3, 3] and y.tolist() == [1, 1, 1]


def test_a_capture_that_cannot_be_ended_leaves_its_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pretend_cuda() as gpu, caplog.at_level(logging.WARNING):
        graphs = Graphs(CUDAGraphs(torch.device("cuda")))
        x = torch.zeros(3, device="cuda")
        gpu.breaks = True
        record(graphs, "adds", lambda: x.add_(1))
        assert graphs.failure is not None and "invalid" in graphs.failure
        assert gpu.stream.number == 0 and not gpu.capturing
        assert "cannot be recorded" in caplog.text


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_that_runs_out_is_reported(recorded: bool) -> None:
    """A kernel is not given up for a way that needs more."""

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pretend_cuda(count=2):
        model = Model(small(), CUDA, torch.float32)
        with pytest.raises(torch.OutOfMemoryError):
            if recorded:
                graphs = Graphs(CUDAGraphs(CUDA))
                graphs._seen.add("full")
                graphs.run("full", full)
            else:
                model.plan.kernels._run("latent", [("triton", full)])
        assert model.plan.kernels.failures == {}


# -- the encoder on its own stream ---------------------------------------------------------------


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
                    encoder.begin(tickets, mels[some])
            assert counts.kernels["conv1d"] == (0 if turn == 2 else 4)
            assert not counts.reads
            found: dict[int, Tensor] = {}
            while len(found) < 5:
                for tickets, features in encoder.completed(wait=True):
                    found |= {t.slot: f.cpu() for t, f in zip(tickets, features, strict=True)}
            for slot, features in found.items():
                torch.testing.assert_close(features, expected[slot])
        assert sorted(encoder.graphs.recorded) == [2, 3] and encoder.graphs.failure is None


def test_others_decode_while_a_window_is_encoded() -> None:
    """And a window that is given up meanwhile leaves its slot."""
    first, second = requests(2)
    rules = replace(first.rules, sample_len=30)  # type: ignore[type-var]
    with pretend_cuda() as gpu:
        model = made(("e", "x"), torch.device("cuda"))
        engine = Engine(model, VOCABULARY, 2, None, 4)
        owners = Asker(), Asker()
        engine.submit(owners[0], replace(first, rules=rules))
        engine.step()
        engine.submit(owners[1], second)
        with gpu.counting() as counts:
            engine.step()
        assert counts.kernels["conv1d"] == 2 and len(engine.group_runners[0].group.tickets) == 1
        assert counts.kernels["graph"] == 2  # it, and a step beside it
        assert engine.slots - engine.free == 2
        engine.stop(owners[1:])
        assert engine.slots - engine.free == 1
        while not engine.idle:
            engine.step()
        assert [len(owner.answers) for owner in owners] == [1, 0]
        assert engine.free == engine.slots
