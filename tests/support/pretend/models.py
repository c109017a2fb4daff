"""Random models and windows that are small enough for a pretend GPU."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Align, Answer, Decoded, Request, Search, Window
from slimwhisper.kernels.graphs import Graphs
from slimwhisper.model.model import Guard, Model
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.pretend.cuda import pretend_cuda
from tests.support.reference import set_spectrum
from tests.support.windows import VOCABULARY, assert_same, run, windows

CUDA = torch.device("cuda", 1)  # not the current one, so that whatever assumes it is seen
FRAMES = 24  # positions of a window: few, to be quick


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


def assert_recorded_like_a_cpu(asked: Sequence[Window], search: Search | None) -> Graphs:
    """Steps that a pretend GPU replays from graphs give the answers of a CPU."""
    by_tag = dict(enumerate(asked))
    expected = run(Engine(made(("e", "x"), torch.device("cpu")), VOCABULARY, 2, search, 4), by_tag)
    with pretend_cuda(count=2):
        engine = Engine(made(("e", "x")), VOCABULARY, 2, search, 4)
        found = run(engine, by_tag)
        graphs = engine.group_runners[0].graphs
    for tag, answers in expected.items():
        assert_same(*([a for a in of if isinstance(a, Decoded)] for of in (found[tag], answers)))
    assert graphs is not None and graphs.failure is None and graphs.replays > 0
    return graphs
