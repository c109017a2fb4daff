"""Every approximate form of the table, in float64: with the settings at which nothing is left out
it is the exact form, whatever happens to slots and rows.
"""

import pytest
import torch

from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.forms import FORMS, Form, form_of, settings_of
from slimwhisper.cache.plan import CachePlan, DecoderCache
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.model.calibration import exact_plan, record_activations
from tests.cache.test_caches import noise
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.steps import self_step
from tests.support.windows import CPU

WIDTH, HEADS, FRAMES, LENGTH = 96, 3, 50, 20  # heads no power of two
DIMS = tiny_dims(width=WIDTH, heads=HEADS, text_layers=2, multilingual=False, n_text_ctx=LENGTH)
STATE = random_state(DIMS, seed=0)
APPROXIMATE = [form for form in FORMS.values() if not form.exact]
CROSS = [form.name for form in APPROXIMATE if form.cross is not None]
SELF = [form.name for form in APPROXIMATE if form.self_ is not None]


def whole(name: str) -> str:
    """The spec with which nothing is left out."""
    form = form_of(name)
    return f"{name}:{form.whole}" if form.whole else name


def plan(cross: str, own: str) -> CachePlan:
    learns = form_of(cross).learns or form_of(own).learns
    activations = record_activations(Checkpoint("random", DIMS, STATE)) if learns else None
    return exact_plan(STATE, DIMS, cross, own, activations).to(CPU, torch.float64)


def allocate(cross: str, own: str, slots: int, group: int = 1) -> DecoderCache:
    return DecoderCache.allocate(plan(cross, own), slots, FRAMES, LENGTH, group)


@pytest.mark.parametrize("tokens", [1, 60], ids=["step", "prompt"])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("name", CROSS)
def test_whole_cross(name: str, group: int, tokens: int) -> None:
    features, x = noise(3, FRAMES, WIDTH, seed=2), noise(3 * group, tokens, WIDTH, seed=3)
    rows = Rows.block(3, group)
    scattered = Rows.of(rows.ids, torch.tensor([2, 0, 1]).repeat(group))
    found = []
    for form in (whole(name), "kv"):
        cache = allocate(form, "x", 3, group)
        cache.cross.put(torch.arange(3), features)
        cache.cross.swap(0, 2)
        cache.cross.put(torch.tensor([1]), features[1:2])  # a slot is used again
        layers = cache.cross.layers
        heads = torch.tensor([HEADS - 1, 0])
        found.append(
            [f(x, r) for layer in layers for r in (rows, scattered) for f in (layer.attend,)]
            + [layer.scores(x, rows, heads) for layer in layers]
        )
        assert 0 < layers[0].read_bytes(0) <= cache.cross.nbytes()
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("name", SELF)
def test_whole_self(name: str) -> None:
    """Prompts of different lengths, steps, copies of rows, rows that move or are used again."""
    found = []
    for form in (whole(name), "kv"):
        layer = allocate("e", form, 4).self_.layers[1]
        layer.prefill(noise(4, 9, WIDTH, seed=9), Rows.of(torch.arange(4)))  # an earlier text
        outputs = [layer.prefill(noise(4, 7, WIDTH, seed=1), Rows.of(torch.arange(4)))[:, :3]]
        lengths = torch.tensor([3, 7, 5, 4])
        for n in range(8):
            if n == 2:
                layer.reorder(torch.tensor([0, 1]), torch.tensor([1, 0]), int(lengths.max()))
                lengths[:2] = lengths[:2].flip(0)
            if n == 4:
                layer.swap(0, 3)
                layer.move(1, 2)
                lengths = lengths[[3, 1, 1, 0]]
            rows = Rows.block(4) if n % 2 else Rows.of(torch.arange(4))
            step = Step.at(rows, lengths, int(lengths.max()) + 1, False, torch.float64)
            outputs.append(self_step(layer, noise(4, 1, WIDTH, seed=20 + n), step))
            lengths = lengths + 1
        assert 0 < layer.read_bytes(0, 5) < layer.read_bytes(0, 10)
        found.append(outputs)
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("form", APPROXIMATE, ids=lambda form: form.name)
def test_settings(form: Form) -> None:
    """They have defaults, which the spec may leave out."""
    assert settings_of(form.name) is not None
    assert settings_of(whole(form.name)) is not None
