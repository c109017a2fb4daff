"""What is kept in float16 for products in float32: weights, with the same results, bit for bit; and
the audio's latent, which int8 lets it round.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from slimwhisper.cache.fold import Folded
from slimwhisper.commands.random_weights import random_checkpoint
from slimwhisper.guard import guarded_plan
from slimwhisper.kernels.cpu import library as module
from slimwhisper.kernels.cpu.library import NATIVE, Library, library
from slimwhisper.kernels.linear import Plain, Weight, in_half, linear, quantize
from slimwhisper.model.model import Model
from tests.support.few_tokens import WHISPERS, with_few_tokens
from tests.support.windows import CPU, DIMS, decode, windows

pytestmark = pytest.mark.skipif(library() is None, reason="kernels/cpu is not compiled here")


def noise(*shape: int, seed: int = 0) -> Tensor:
    """In numbers of float16, the smallest and the largest among them."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half().float()
    edges = torch.tensor([2.0**-24, -3 * 2.0**-24, 65504.0, -0.0, 2.0**-14])
    made.view(-1)[:5] = edges[: made.numel()]
    return made


def matrix_of(weight: Weight) -> Tensor:
    assert isinstance(weight, Plain)
    return weight.matrix


def test_which_weights() -> None:
    """Those that float16 holds exactly, in a shape and of a dtype that C multiplies by."""
    weight = noise(4, 32)
    assert torch.equal(in_half(weight), weight.half()) and in_half(weight).dtype == torch.float16
    finer, larger, spoiled = weight.clone(), weight.clone(), weight.clone()
    finer[3, 31], larger[0, 0], spoiled[1, 1] = 1 + 2.0**-11, 65536.0, torch.nan
    for other in (finer, larger, spoiled, noise(4, 24), weight.double(), weight.to("meta")):
        assert in_half(other) is other


def test_operators_that_are_watched() -> None:
    """PyTorch's own product takes them too."""
    x, weight = noise(2, 32) / 3, noise(4, 32, seed=1)
    with FlopCounterMode(display=False):
        found = linear(x, weight.half())
    torch.testing.assert_close(found, x @ weight.T)


@pytest.mark.parametrize(
    "forms", [("e", "x"), ("kv", "kv"), ("k", "k"), ("sparq_latent:r=9,k=7", "keyformer:budget=6")]
)
def test_a_model(forms: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrices of a checkpoint in float16 stay so, and texts and scores are the same."""
    checkpoint = with_few_tokens(random_checkpoint(WHISPERS))
    model = Model(checkpoint, CPU, torch.float32, forms, guarded_plan)
    decoder = model.decoder
    parts = [part for block in decoder.blocks for part in block.mlp.parts]
    kept = {matrix_of(layer.weight).dtype for part in parts for layer in part}
    head = matrix_of(decoder.head)
    assert kept == {head.dtype} == {torch.float16}
    assert head.data_ptr() == decoder.embedding.data_ptr()
    folded: list[Folded] = [*model.plan.cross, *model.plan.self_]
    assert {matrix_of(w).dtype for f in folded for w in (f.query, f.out)} == {torch.float16}
    exact = {f.value_map.dtype for f in folded if f.value_map is not None}
    assert exact == {("k", "k"): {torch.float32}, ("kv", "kv"): set()}.get(forms, {torch.float16})
    found = decode(model, windows(3), 2)
    for name in ("kernels.linear", "cache.fold", "model.decoder"):
        monkeypatch.setattr(f"slimwhisper.{name}.in_half", Tensor.contiguous)
    plain = Model(checkpoint, CPU, torch.float32, forms, guarded_plan)
    assert matrix_of(plain.decoder.head).dtype == torch.float32
    assert found == decode(plain, windows(3), 2)


def test_integers() -> None:
    """Of weights in float16, rows of zeros among them, they are the same."""
    weight = noise(40, 64)
    weight[7] = 0
    found, expected = (quantize(w) for w in (weight.half(), weight))
    for name in ("integers", "factors", "sums"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    model = Model(with_few_tokens(random_checkpoint(WHISPERS)), CPU, torch.float32, int8=True)
    assert model.decoder.embedding.dtype == torch.float16


@pytest.mark.parametrize("cross", ["e", "v", "compact:merge=0.5", "sparq_latent:r=9,k=7", "kv"])
def test_audio(cross: str) -> None:
    """Of latents that C reads, half of the bytes in int8 alone; scores as near as 16 bits are."""
    checkpoint = with_few_tokens(random_checkpoint(WHISPERS))
    shape = (CPU, torch.float32, (cross, "x"), guarded_plan)
    exact, half = Model(checkpoint, *shape), Model(checkpoint, *shape, int8=True)
    kinds = [m.allocate_cross(1).stores[0].tensors[0].dtype for m in (exact, half)]
    compiled = library()
    assert compiled is not None
    whole = torch.int16 if compiled.has_integers else torch.float16
    narrow = {"e": whole, "v": whole, "compact:merge=0.5": whole}.get(cross, torch.float32)
    assert kinds == [torch.float32, narrow]
    assert all(answer.tokens for answer in decode(half, windows(3), 2))
    half.encoder, half.decoder = exact.encoder, exact.decoder
    pairs = zip(exact.plan.cross, half.plan.cross, strict=True)
    half.plan = replace(exact.plan, cross=[replace(f, stored=g.stored) for f, g in pairs])
    tokens = torch.arange(50, 62).unflatten(0, (2, 6))
    features = torch.randn(2, DIMS.n_audio_ctx, DIMS.n_audio_state)
    expected, found = (model.logits(tokens, features) for model in (exact, half))
    off = (found - expected).norm() / expected.norm()
    assert (0 < off < 1e-3) if narrow != torch.float32 else off == 0


def test_another_version_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    with pytest.raises(AttributeError, match="version"):
        Library(NATIVE)
