"""The guard: whether a cache form is exact for these weights in this dtype, measured by layer.

`k`, `v` and `hybrid` rebuild keys or values through an inverse. This multiplies the rounding error
of what they store by up to the condition number, which reaches 5e9 in real checkpoints. In half
precision such a form is therefore seldom exact, and the guard replaces it with a form of the same
size that needs no inverse: `e` for cross-attention, `x` for self-attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.cache.fold import Attention, Context, Folded, fold
from slimwhisper.cache.forms import EXACT, Form

# A form counts as exact if its error is at most this many times the baseline's. At 3 the logits'
# error is at most 1.2 times openai-whisper's, at 6 up to 1.7 times, and at 15 more than the 2
# times that is allowed: docs/internals/numerics.md, bench/exactness.py.
MARGIN = 3.0


@dataclass(frozen=True, slots=True)
class Activations:
    """Of one window, or of several in a row; float32."""

    features: Tensor  # [p, d]: the encoder's output
    self_inputs: Sequence[Tensor]  # per layer: [T, d], the layer-normed input of self-attention
    cross_inputs: Sequence[Tensor]  # per layer: [T, d], the layer-normed input of cross-attention

    def source(self, attention: str, layer: int) -> Tensor:
        """[n, d]: from which a layer's "cross" or "self" attention makes keys and values."""
        return self.features if attention == "cross" else self.self_inputs[layer]

    def query_inputs(self, attention: str, layer: int) -> Tensor:
        """[T, d]: from which a layer's "cross" or "self" attention makes queries."""
        return (self.cross_inputs if attention == "cross" else self.self_inputs)[layer]

    @staticmethod
    def joined(windows: Sequence["Activations"]) -> "Activations":
        """Those of several windows as one."""
        parts = [(a.features, *a.self_inputs, *a.cross_inputs) for a in windows]
        features, *inputs = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
        return Activations(features, inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :])


@dataclass(frozen=True, slots=True)
class Inspection:
    """The guard's measurement of one layer's attention block, and its decision."""

    layer: int
    attention: str  # "cross" or "self"
    form: str  # requested
    used: str  # the same, or the exact form that replaces it
    condition: float  # of the matrix that the form inverts, else of W_K
    largest: float  # largest magnitude of the folded weights
    fits: bool  # whether that is finite in the dtype
    error: float  # relative, of the keys and values in the dtype; see `measure`
    baseline_error: float  # the same for form `kv`

    @property
    def fell_back(self) -> bool:
        return self.used != self.form


def condition_number(weight: Tensor) -> float:
    """Largest over smallest singular value of [d, d], in float64; inf when singular."""
    values = torch.linalg.svdvals(weight.double())
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """[...] -> [...], rounded to `dtype` but held in at least float32, as products accumulate."""
    return tensor.to(dtype).to(torch.promote_types(dtype, torch.float32))


def measure(
    block: Attention, folded: Folded, source: Tensor, dtype: torch.dtype
) -> tuple[float, float]:
    """(error of the form, error of the baseline) in `dtype` against float64.

    `source` [n, d]: what the block attends to, encoder output or layer-normed input. The error is
    that of the form's keys and values, stored or rebuilt: relative per token, root mean square over
    the tokens, for the worst head, and the worse of keys and values; NaN counts as inf. Queries are
    left out, so no attention pattern can hide an error. Products are rounded to `dtype` and
    accumulated in float32, as on a GPU, on any device.
    """
    x = _rounded(source, dtype)
    truth = [F.linear(x.double(), weight.double()) for weight in (block.key, block.value)]

    def project(data: Tensor, weight: Tensor) -> Tensor:
        """[n, in], [out, in] -> [n, out], rounded."""
        return _rounded(F.linear(data, _rounded(weight, dtype)), dtype)

    def error(keys_values: Sequence[Tensor]) -> float:
        """Of keys and values, each [n, d], against `truth`."""
        worst = 0.0
        for rounded, true in zip(keys_values, truth, strict=True):
            heads = true.unflatten(-1, (block.heads, -1))
            difference = rounded.double().unflatten(-1, (block.heads, -1)) - heads
            relative = (difference.norm(dim=-1) / heads.norm(dim=-1)).pow(2).mean(dim=0).sqrt()
            worst = max(worst, float(relative.nan_to_num(nan=float("inf")).max()))
        return worst

    baseline = error([project(x, block.key), project(x, block.value)])
    if folded.values is not None:  # keys and values are stored
        return baseline, baseline
    latent = project(x, folded.project) if isinstance(folded.project, Tensor) else x
    maps = (folded.key_map, folded.value_map)
    rebuilt = [latent if m is None else project(latent, m.flatten(0, 1)) for m in maps]
    return error(rebuilt), baseline


def fits_dtype(largest: float, dtype: torch.dtype) -> bool:
    """Whether a weight of this magnitude is finite in the dtype; False for NaN."""
    return largest <= torch.finfo(dtype).max


def inspect_block(
    block: Attention, context: Context, form: Form, activations: Activations, dtype: torch.dtype
) -> tuple[Folded, Inspection]:
    """Fold one decoder block for a form, measure it on activations, and fall back if it is not
    exact. Returns the weights of the form to use, not yet rounded, and the record.
    """
    folded, inverted = fold(block, form, context), block.key
    if form.inverse == "value":
        inverted = block.value
    elif form.inverse == "first_key":
        inverted = context.blocks[0].key
    maps = [t for t in (folded.key_map, folded.value_map) if t is not None]
    largest = max((float(t.abs().max()) for t in maps), default=0.0)
    source = activations.source(context.attention, context.layer)
    error, baseline_error = measure(block, folded, source, dtype)
    fits = fits_dtype(largest, dtype)
    exact = form.inverse is None or (fits and error <= MARGIN * baseline_error)
    used = form if exact else EXACT[context.attention]
    record = Inspection(
        layer=context.layer,
        attention=context.attention,
        form=str(form),
        used=str(used),
        condition=condition_number(inverted),
        largest=largest,
        fits=fits,
        error=error,
        baseline_error=baseline_error,
    )
    return (folded if exact else fold(block, used, context)), record
