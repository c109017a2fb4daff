"""Form `evict`: frames of the encoder's output that no layer has looked at are no longer read.

Keyformer's score function (arXiv 2403.09054, Algorithm 1; `slimwhisper.cache.approximate.eviction`)
for cross-attention: a frame's score is summed over the layers and heads, and over the queries of
the prompt and of the first `after` steps; of a window's rows, the mean. From then on, the `budget`
best frames are read. There is no recent window, as no frame is newer than another. All layers share
E, so they share the choice, as do beams and samples. A new text in the slot begins with all frames.

What is saved is what a step reads. No memory is saved: the prompt, the first steps, another attempt
and word timestamps need all of E, and the kept frames are copied beside it, so that steps read
contiguous memory. With after=0 they are copied at the end of the prompt, on every device. With
after > 0 rows reach that step at different times, which a recorded step of fixed shapes cannot
follow: on a CPU, steps read the kept frames as soon as all windows of the call have chosen; on a
GPU all of E is read and the rest is masked, so the results are the same but nothing is saved.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.approximate.eviction import Noise, check_noise
from slimwhisper.cache.base import CrossStore, Room, Rows
from slimwhisper.cache.fold import Attention, Context, Folded, fold_float8, fold_latent
from slimwhisper.cache.latent import LatentCross, LatentStore
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.kernels.reads import Reads


@dataclass(frozen=True, slots=True)
class EvictSettings:
    """Of `evict`."""

    budget: int | None = 750  # frames that are kept: half of Whisper's 1500; all: all of them
    after: int = 4  # steps that read all frames; 0: the prompt's queries alone choose
    noise: str = "gumbel"  # or none
    tau: float = 1.0  # the paper's tau_init: frames are chosen when generation begins
    seed: int = 0  # of the noise
    float8: bool = False  # keep what `e8` does

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"budget={self.budget}: give at least 1 frame, or all")
        if self.after < 0:
            raise ValueError(f"after={self.after}: give 0 or more steps")
        if self.tau <= 0:
            raise ValueError(f"tau={self.tau}: give a temperature above 0")
        check_noise(self.noise, self.seed)


def fold_evict(block: Attention, context: Context) -> Folded:
    """As `e`, or as `e8`."""
    folder = fold_float8 if context.settings.float8 else fold_latent
    return folder(block, context)


class EvictStore(LatentStore):
    """E, [slots, p, d], its scores, and the frames that are kept, [slots, budget, d]."""

    def __init__(self, weights: Folded, room: Room) -> None:
        super().__init__(weights, room)
        settings: EvictSettings = weights.settings
        self.settings, frames, device = settings, room.length, room.device
        self.budget, self.layers = min(settings.budget or frames, frames), 0
        self.whole = self.budget == frames  # nothing is ever evicted
        # whether kept frames are read; the device itself, where `room` only measures sizes
        self.copies = settings.after == 0 or room.kernels.device.type == "cpu"
        self.wide = at_least_float32(room.dtype)
        if self.whole:
            return
        self.scores = torch.zeros(room.count, frames, device=device, dtype=self.wide)  # -1: evicted
        self.steps = torch.zeros(room.count, device=device, dtype=torch.int32)
        self.tensors = (*self.tensors, self.scores, self.steps)
        if self.copies:
            shape = (room.count, self.budget, weights.width)
            self.kept = Latent.allocate(shape, device, room.dtype, settings.float8)
            self.tensors = (*self.tensors, *self.kept.tensors())

    def put(self, slots: Tensor, features: Tensor) -> None:
        """features [G, p, d] -> E in `slots` [G] int64; until a prompt asks, evenly spaced frames
        are the kept ones.
        """
        super().put(slots, features)
        if self.whole:
            return
        self.begin(slots)
        if self.copies:
            spaced = torch.arange(self.budget, device=slots.device) * len(features[0])
            self.copy(slots, (spaced // self.budget).expand(len(slots), -1))

    def begin(self, slots: Tensor) -> None:
        """A new text asks `slots` [R] int64."""
        self.scores[slots] = 0
        self.steps[slots] = 0

    def add(self, rows: Rows, shares: Tensor) -> None:
        """Add what rows give to the scores of their slots' frames, the mean of a slot's rows:
        shares [R, p].
        """
        if rows.group is None:
            counts = torch.zeros_like(self.scores[:, 0])
            counts.index_add_(0, rows.slots, torch.ones_like(shares[:, 0]))
            self.scores.index_add_(0, rows.slots, shares / counts[rows.slots, None])
            return
        mean = shares.unflatten(0, (-1, rows.group)).mean(dim=1)
        self.scores[rows.first_slot : rows.first_slot + len(mean)] += mean

    def choose(self, slots: Tensor) -> None:
        """Evict all but the best frames of `slots` [S] int64, and copy those."""
        best = self.scores[slots].topk(self.budget).indices.sort(dim=-1).values
        self.scores[slots] = torch.full_like(self.scores[slots], -1).scatter(1, best, 0)
        self.copy(slots, best)

    def choose_after(self, slots: Tensor) -> None:
        """Count a step of `slots` [R] int64; evict where it was the last that reads all frames."""
        steps = (self.steps[slots] + 1).clamp(max=self.settings.after + 1)
        self.steps[slots] = steps
        now = steps == self.settings.after
        if self.copies:  # on a CPU, where looking costs nothing and no step is recorded
            if bool(now.any()):
                self.choose(slots[now].unique())
            return
        scores = self.scores[slots]
        best = scores.topk(self.budget).indices
        evicted = torch.full_like(scores, -1).scatter(1, best, 0)
        self.scores[slots] = torch.where(now[:, None], evicted, scores)

    def copy(self, slots: Tensor, frames: Tensor) -> None:
        """Copy frames [S, budget] int64 of E in `slots` [S] int64 to where steps read them."""
        for t, kept in zip(self.latent.tensors(), self.kept.tensors(), strict=True):
            if t.dtype.itemsize == 1:  # float8 is not indexed everywhere
                t, kept = t.view(torch.uint8), kept.view(torch.uint8)
            kept[slots] = t[slots[:, None], frames]


class EvictCross(LatentCross):
    """Cross-attention of one layer to E, or to the frames of it that are kept."""

    store: EvictStore

    def __init__(self, weights: Folded, room: Room, store: CrossStore | None = None) -> None:
        if store is None:
            store = EvictStore(weights, room)
        assert isinstance(store, EvictStore)
        super().__init__(weights, room, store)
        self.number = store.layers
        store.layers += 1
        self.settings: EvictSettings = weights.settings
        self.noise = Noise(self.settings.seed, weights.layer, weights.heads, room.device)

    @property
    def last(self) -> bool:
        """Whether all layers have asked when this one has."""
        return self.number == self.store.layers - 1

    def read_bytes(self, slot: int) -> float:
        """Of a step after the choice."""
        store = self.store
        if store.whole:
            return super().read_bytes(slot)
        if store.copies:
            return sum(t[slot].nbytes for t in store.kept.tensors())
        return sum(t[slot].nbytes for t in (*store.latent.tensors(), store.scores, store.steps))

    def attend(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, T, d] -> [R, T, d], prompts that begin new texts."""
        if not self.store.whole:
            self._hear(x, rows)
        return super().attend(x, rows)

    def step(self, x: Tensor, rows: Rows) -> Tensor:
        """x [R, 1, d] -> [R, 1, d]."""
        if self.store.whole:
            return super().attend(x, rows)
        q, store = self.attention.queries(x), self.store
        if store.copies and self._chosen(rows.slots):
            kept, slots = rows.of_slots(store.kept)
            mixed = self.attention.by_latent(q.flatten(0, 1), kept, Reads(slots))
        else:
            mixed = self._step(q[:, 0], rows)
        if self.last and self.settings.after:
            store.choose_after(rows.slots)
        return self.attention.output(mixed.view_as(q))

    def _chosen(self, slots: Tensor) -> bool:
        """Whether all `slots` [R] read their kept frames."""
        after = self.settings.after
        return after == 0 or bool((self.store.steps[slots] >= after).all())

    def _share(self, x: Tensor, head: Tensor, queries: Tensor) -> Tensor:
        """What queries add to the scores: logits x [..., p], keys of heads and numbers of queries
        that broadcast to x -> like x.
        """
        if self.settings.noise != "none":
            frames = torch.arange(x.shape[-1], device=x.device)
            x = x + self.noise(head, queries, frames, x.dtype)
        return (x / self.settings.tau).softmax(dim=-1)

    def _hear(self, x: Tensor, rows: Rows) -> None:
        """Score all frames by the prompts x [R, T, d], one head at a time; then, of the last layer
        and with after=0, choose.
        """
        store, attention, slots = self.store, self.attention, rows.slots
        if self.number == 0:
            store.begin(slots)
        maps = attention.weights.key_map
        assert maps is not None
        count, length = x.shape[:2]
        lengths = rows.prompt_lengths(length)
        # a prompt's queries are numbered up to -1, so that steps begin at 0
        queries = (torch.arange(length, device=x.device) - lengths[:, None])[:, :, None]
        q = attention.queries(x).to(store.wide) * attention.scale
        latent = store.latent[slots].plain(store.wide).to(store.wide).transpose(1, 2)  # [R, d, p]
        total = torch.zeros(count, latent.shape[-1], device=x.device, dtype=store.wide)
        for i, a in enumerate(maps.to(store.wide)):  # [d_k, d]
            asked = q[:, :, i]
            logits = (asked @ a) @ latent if length < len(a) else asked @ (a @ latent)
            share = self._share(logits, self.noise.keys[i], queries)  # [R, T, p]
            total += share.masked_fill(queries >= 0, 0).sum(dim=1)
        store.add(rows, total)
        if self.last and self.settings.after == 0:
            store.choose(slots)

    def _step(self, q: Tensor, rows: Rows) -> Tensor:
        """q [R, h, d_k] -> the same over all frames but the evicted, and the frames' scores."""
        store, attention, slots = self.store, self.attention, rows.slots
        held, chosen = rows.of_slots(store.latent)
        latent = (held if chosen is None else held[chosen]).plain(store.wide).to(store.wide)
        folded = attention.fold_queries(q).to(store.wide) * attention.scale  # [R, h, d]
        together = folded.reshape(len(latent), -1, folded.shape[-1])
        logits = (together @ latent.transpose(1, 2)).view(*folded.shape[:2], -1)  # [R, h, p]
        logits = logits.masked_fill((store.scores[slots] < 0)[:, None], float("-inf"))
        steps = store.steps[slots].long()
        share = self._share(logits, self.noise.keys[:, None], steps[:, None, None]).sum(dim=1)
        store.add(rows, share)  # of a window that has chosen, it changes nothing
        weights = logits.softmax(dim=-1).view(len(latent), -1, latent.shape[1])
        mix = (weights @ latent).view_as(folded).to(q.dtype)
        maps = attention.weights.value_map
        assert maps is not None
        return torch.bmm(mix.transpose(0, 1), maps.transpose(1, 2)).transpose(0, 1)
