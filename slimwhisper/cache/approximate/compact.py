"""Form `compact`: `e` and `x` with fewer frames, fewer columns and fewer bits, alone or together.

    merge   neighbouring frames that are nearly equal become one: see `neighbours`
    rank    r columns are kept, in one basis for all layers of cross-attention: see `basis`
    float8  what is kept is rounded to e4m3, with a factor for each position, as in `e8`

The frames are merged once, when a window arrives, so every layer, step and beam reads less. Whether
two frames are nearly equal is measured in the basis, thus in how differently the layers see them.
A text's tokens are not merged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slimwhisper.cache.approximate.basis import learn_basis
from slimwhisper.cache.approximate.neighbours import merge_neighbours
from slimwhisper.cache.base import Room, Rows
from slimwhisper.cache.fold import Attention, Context, Folded
from slimwhisper.cache.latent import LatentCross, LatentStore, kept
from slimwhisper.errors import OptionError
from slimwhisper.kernels.linear import at_least_float32, linear


@dataclass(frozen=True, slots=True)
class Compact:
    """The settings; by default nothing is left out."""

    merge: float = 1.0  # the share of the audio's frames that is left
    rank: int | None = None  # columns kept; None: all
    float8: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.merge <= 1:
            raise ValueError(f"merge={self.merge}: give the share to be left, above 0, at most 1")
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank={self.rank}: give at least 1, or all")

    def groups(self, frames: int) -> int:
        """m = ceil(merge p), how many of p frames are left."""
        return math.ceil(self.merge * frames - 1e-9)  # 0.07 of 1500 is 105


def fold_compact(block: Attention, context: Context) -> Folded:
    """`compact`: the maps of `e` and `x`, from the columns that are kept. Its `learned` is the
    basis, as `learn_basis` returns it.

    Raises `OptionError` for settings that do not suit the model or the attention.
    """
    settings: Compact = context.settings
    d = len(block.query_bias)
    rank = settings.rank or d
    if rank > d:
        raise OptionError(f"compact: rank={rank}: the model has {d} columns; give at most {d}")
    if settings.merge < 1 and context.attention == "self":
        merge = settings.merge
        raise OptionError(f"compact: merge={merge}: a text's tokens are not merged; give merge=1")
    basis = _basis(block, context, rank) if context.learned is None else context.learned
    most = len(basis["encode"])
    if most < rank:
        raise OptionError(f"compact: rank={rank}: {most} columns were learned; give at most {most}")
    mean, decode = basis["mean"], basis["decode"][:, :rank]
    columns = basis["scales"][:rank] if settings.float8 else None

    def folded(weight: Tensor) -> Tensor:
        """[d, d] -> [h, d_k, r]."""
        maps = weight.double() @ decode
        return (maps if columns is None else maps * columns).unflatten(0, (block.heads, -1))

    return Folded(
        form="",
        heads=block.heads,
        query=block.query,
        query_bias=block.query_bias,
        out=block.out,
        out_bias=block.out_bias + block.out.double() @ (block.value.double() @ mean),
        project=basis["encode"][:rank],
        key_map=folded(block.key),
        value_map=folded(block.value),
        columns=columns,
        offset=mean,
        learned=basis,
    )


def _basis(block: Attention, context: Context, rank: int) -> Mapping[str, Tensor]:
    """Of all layers' cross-attention, which share the encoder's output, or one layer's text."""
    seen, layer = context.activations, context.layer
    assert seen is not None, "compact learns from recorded activations"
    cross = context.attention == "cross"
    blocks = context.blocks if cross else [block]
    asking = seen.asking if cross else [seen.self_[layer]]
    return learn_basis(blocks, asking, seen.of(context.attention, layer), rank)


class CompactStore(LatentStore):
    """What is kept of the audio, for all layers: [slots, m, r]; where frames are merged also
    log n of each group, [slots, m], and the group of each frame, [slots, p] int16.
    """

    def __init__(self, weights: Folded, room: Room) -> None:
        self.frames = room.length
        self.groups = weights.settings.groups(room.length)
        super().__init__(weights, replace(room, length=self.groups))
        self.group_of: Tensor | None = None
        if self.groups < self.frames:
            wide, device = at_least_float32(room.dtype), room.device
            self.position_bias = torch.zeros((room.count, self.groups), device=device, dtype=wide)
            shape = (room.count, self.frames)
            self.group_of = torch.zeros(shape, device=device, dtype=torch.int16)
            self.tensors += (self.position_bias, self.group_of)

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, p, d] -> latents [G, m, r] in `slots` [G] int64."""
        z = kept(self.weights, features)
        if self.position_bias is not None and self.group_of is not None:
            z, sizes, group_of = merge_neighbours(z, self.groups, self.weights.columns)
            self.position_bias[slots] = sizes.log()
            self.group_of[slots] = group_of.to(torch.int16)
        self.latent.write(slots, z.to(features.dtype))


class CompactCross(LatentCross):
    """Cross-attention of one layer to the store that all layers share."""

    store: CompactStore

    def __init__(self, weights: Folded, room: Room, store: CompactStore | None = None) -> None:
        super().__init__(weights, room, store or CompactStore(weights, room))

    def scores(self, x: Tensor, rows: Rows, heads: Tensor) -> Tensor:
        """x [R, T, d], heads [n] int64 -> [R, n, T, p], before the softmax: of each frame, that of
        its group, without log n, which the frames share. With few columns, all of a query's scores
        are off by one number.
        """
        weights, attention = self.attention.weights, self.attention
        assert weights.project is not None and weights.offset is not None
        shift = linear(weights.offset[None], weights.project)  # the mean's place in the basis
        shift = shift if weights.columns is None else shift / weights.columns
        queries = attention.queries(x).transpose(1, 2)[:, heads] * attention.scale
        latent = self.store.latent[rows.slots].plain(x.dtype) + shift
        found = queries @ attention.keys(latent)[:, heads].transpose(2, 3)
        if self.store.group_of is None:
            return found
        group_of = self.store.group_of[rows.slots].long()[:, None, None]
        return found.gather(3, group_of.expand(*found.shape[:3], -1))

    def read_bytes(self, slot: int) -> float:
        """Of latents and their log n: the map of the frames serves word timestamps alone."""
        read, bias = self.store.latent.tensors(), self.store.position_bias
        return sum(t[slot].nbytes for t in (read if bias is None else (*read, bias)))
