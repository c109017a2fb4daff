"""Is a cache form exact for these weights in this dtype? Measured, layer by layer.

`k`, `v` and `hybrid` rebuild what they drop through an inverse, which multiplies the rounding of
what they keep by up to the condition number. Real checkpoints reach 5e9, so in half precision such
a form is seldom exact, and the guard puts a form of the same size without an inverse in its place:
`e` for cross-attention, `x` for self-attention.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.fold import Attention, Folded, fold

EXACT = {"cross": "e", "self": "x"}  # what takes a refused form's place
INVERSE_FREE = ("kv", "e", "x")
MARGIN = 2.0  # a form is exact if its error is at most so many times the baseline's rounding


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
    error: float  # of the attention's output in the dtype, relative, against float64
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


def _attend(
    block: Attention, folded: Folded, x: Tensor, source: Tensor, causal: bool, dtype: torch.dtype
) -> Tensor:
    """x [Q, d] attends to source [T, d] with every product rounded to `dtype` as a GPU does it.

    Products accumulate in float32 (float64 for float64), whatever the device here: half precision
    on a CPU is slow, and no measure of a GPU's.
    """
    h, width = block.heads, block.query.shape[0] // block.heads

    def r(tensor: Tensor) -> Tensor:
        return _rounded(tensor, dtype)

    def by_head(tensor: Tensor) -> Tensor:  # [n, d] -> [h, n, d_k]
        return tensor.unflatten(-1, (h, width)).transpose(0, 1)

    queries = by_head(r(F.linear(r(x), r(folded.query), r(folded.query_bias))))
    kept = r(source) if folded.project is None else r(F.linear(r(source), r(folded.project)))
    if folded.values is not None:  # `kv`
        keys, values = by_head(kept), by_head(r(F.linear(r(source), r(folded.values))))
    else:
        keys = by_head(kept) if folded.key_map is None else kept.expand(h, -1, -1)
        values = by_head(kept) if folded.value_map is None else kept.expand(h, -1, -1)
    if folded.key_map is not None:
        queries = r(queries @ r(folded.key_map))
    scores = queries @ keys.transpose(1, 2) * width**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), float("-inf"))
    mixed = r(r(scores.softmax(dim=-1)) @ values)
    if folded.value_map is not None:
        mixed = r(mixed @ r(folded.value_map).transpose(1, 2))
    return r(F.linear(mixed.transpose(0, 1).flatten(1), r(folded.out), r(folded.out_bias)))


def measure(
    block: Attention, folded: Folded, x: Tensor, source: Tensor, causal: bool, dtype: torch.dtype
) -> tuple[float, float]:
    """(error of the form, error of the baseline) in `dtype` against float64.

    `x` [Q, d] and `source` [T, d] are activations: the layer-normed input, and the encoder output
    or the same input. Errors are of the block's output, relative, Frobenius; NaN counts as inf.
    """
    x, source = _rounded(x, dtype).double(), _rounded(source, dtype).double()
    plain = fold(block, "kv")
    true = _attend(block, plain, x, source, causal, torch.float64)

    def error(candidate: Folded) -> float:
        found = _attend(block, candidate, x, source, causal, dtype).double()
        relative = float((found - true).norm() / true.norm())
        return relative if relative == relative else float("inf")

    baseline = error(plain)
    return (baseline if folded.form == "kv" else error(folded)), baseline


def fits_dtype(largest: float, dtype: torch.dtype) -> bool:
    """Whether a weight of this magnitude is finite in the dtype; NaN is not."""
    return largest <= torch.finfo(dtype).max


def inspect_layer(
    state: Mapping[str, Tensor],
    layer: int,
    attention: str,
    form: str,
    heads: int,
    activations: tuple[Tensor, Tensor],
    dtype: torch.dtype,
) -> tuple[Folded, Inspection]:
    """Fold one decoder block for `form`, measure it, and fall back when it is not exact.

    Arguments: `state` with OpenAI's names; `attention` "cross" or "self"; `activations`
    (x [Q, d], source [T, d]) as `measure` takes them.
    Returns the folded weights of the form to use, not yet rounded, and the record.
    """

    def read(index: int) -> Attention:
        name = "cross_attn" if attention == "cross" else "attn"
        return Attention.from_state(state, f"decoder.blocks.{index}.{name}.", heads)

    block = read(layer)
    first_key = read(0).key if form == "hybrid" else None
    folded = fold(block, form, first_key)
    inverted = {"v": block.value, "hybrid": first_key}.get(form)
    maps = [t for t in (folded.key_map, folded.value_map) if t is not None]
    largest = max((float(t.abs().max()) for t in maps), default=0.0)
    error, baseline_error = measure(block, folded, *activations, attention == "self", dtype)
    fits = fits_dtype(largest, dtype)
    exact = form in INVERSE_FREE or (fits and error <= MARGIN * baseline_error)
    used = form if exact else EXACT[attention]
    record = Inspection(
        layer=layer,
        attention=attention,
        form=form,
        used=used,
        condition=condition_number(block.key if inverted is None else inverted),
        largest=largest,
        fits=fits,
        error=error,
        baseline_error=baseline_error,
    )
    return (folded if exact else fold(block, used)), record
