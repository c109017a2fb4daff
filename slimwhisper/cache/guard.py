"""Is a cache form exact for these weights in this dtype? Measured, layer by layer.

`k`, `v` and `hybrid` rebuild what they drop through an inverse, which multiplies the rounding of
what they keep by up to the condition number. Real checkpoints reach 5e9, so in half precision such
a form is seldom exact, and the guard puts a form of the same size without an inverse in its place:
`e` for cross-attention, `x` for self-attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.cache.fold import Attention, Context, Folded, fold
from slimwhisper.cache.forms import EXACT, FORMS

# A form is exact if its error is at most so many times the baseline's. Up to here logits err at
# most 1.2 times as much as openai-whisper's, at 6 up to 1.7 times, at 15 more than the 2 that is
# allowed: docs/numerics.md, bench/exactness.py.
MARGIN = 3.0


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the guard saw of one layer's attention block, and what it decided."""

    layer: int
    attention: str  # "cross" or "self"
    form: str  # asked for
    used: str  # the same, or the exact form in its place
    condition: float  # of the matrix that the form inverts, else of W_K
    largest: float  # largest magnitude among the folded weights
    fits: bool  # whether that is finite in the dtype
    error: float  # of the keys and values in the dtype, relative, see `measure`
    baseline_error: float  # the same of form `kv`

    @property
    def fell_back(self) -> bool:
        return self.used != self.form


def condition_number(weight: Tensor) -> float:
    """Largest over smallest singular value of [d, d], in float64; inf when singular."""
    values = torch.linalg.svdvals(weight.double())
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to `dtype`, held in the dtype that its products accumulate in."""
    return tensor.to(dtype).to(torch.promote_types(dtype, torch.float32))


def measure(
    block: Attention, folded: Folded, source: Tensor, dtype: torch.dtype
) -> tuple[float, float]:
    """(error of the form, error of the baseline) in `dtype` against float64.

    `source` [n, d]: what the block attends to, encoder output or layer-normed input. Each error is
    that of the keys and values that the form stands for, whether kept or rebuilt: relative, token
    by token (root mean square), of the worst head and of the worse of the two; NaN counts as inf.
    Queries do not enter, so no attention pattern can hide it. Products are rounded to `dtype` and
    accumulated in float32, as a GPU does it, whatever the device here.
    """
    x = _rounded(source, dtype)
    truth = [F.linear(x.double(), weight.double()) for weight in (block.key, block.value)]

    def project(data: Tensor, weight: Tensor) -> Tensor:
        return _rounded(F.linear(data, _rounded(weight, dtype)), dtype)

    def error(found: Sequence[Tensor]) -> float:
        worst = 0.0
        for ours, true in zip(found, truth, strict=True):
            heads = true.unflatten(-1, (block.heads, -1))
            difference = ours.double().unflatten(-1, (block.heads, -1)) - heads
            relative = (difference.norm(dim=-1) / heads.norm(dim=-1)).pow(2).mean(dim=0).sqrt()
            worst = max(worst, float(relative.nan_to_num(nan=float("inf")).max()))
        return worst

    baseline = error([project(x, block.key), project(x, block.value)])
    if folded.form == "kv":
        return baseline, baseline
    kept = project(x, folded.project) if isinstance(folded.project, Tensor) else x
    maps = (folded.key_map, folded.value_map)
    rebuilt = [kept if m is None else project(kept, m.flatten(0, 1)) for m in maps]
    return error(rebuilt), baseline


def fits_dtype(largest: float, dtype: torch.dtype) -> bool:
    """Whether a weight of this magnitude is finite in the dtype; NaN is not."""
    return largest <= torch.finfo(dtype).max


@dataclass(frozen=True, slots=True)
class Site:
    """Which attention block of a decoder."""

    layer: int
    attention: Literal["cross", "self"]
    heads: int

    def read(self, state: Mapping[str, Tensor], layer: int | None = None) -> Attention:
        """Its weights, under OpenAI's names; those of the same attention in another `layer`."""
        name = "cross_attn" if self.attention == "cross" else "attn"
        prefix = f"decoder.blocks.{self.layer if layer is None else layer}.{name}."
        return Attention.from_state(state, prefix, self.heads)


def inspect_layer(
    state: Mapping[str, Tensor], site: Site, form: str, source: Tensor, dtype: torch.dtype
) -> tuple[Folded, Inspection]:
    """Fold one decoder block for `form`, measure it, and fall back when it is not exact.

    `state` has OpenAI's names; `source` [n, d] is as `measure` takes it.
    Returns the folded weights of the form to use, not yet rounded, and the record.
    """
    block = site.read(state)
    first_key, inverse = site.read(state, layer=0).key, FORMS[form].inverse
    folded = fold(block, form, Context(first_key))
    inverted = {"value": block.value, "first_key": first_key}.get(inverse or "", block.key)
    maps = [t for t in (folded.key_map, folded.value_map) if t is not None]
    largest = max((float(t.abs().max()) for t in maps), default=0.0)
    error, baseline_error = measure(block, folded, source, dtype)
    fits = fits_dtype(largest, dtype)
    exact = inverse is None or (fits and error <= MARGIN * baseline_error)
    used = form if exact else EXACT[site.attention]
    record = Inspection(
        layer=site.layer,
        attention=site.attention,
        form=form,
        used=used,
        condition=condition_number(inverted),
        largest=largest,
        fits=fits,
        error=error,
        baseline_error=baseline_error,
    )
    return (folded if exact else fold(block, used)), record
