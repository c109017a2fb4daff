"""Computes the sizes of the engine's buffers, in bytes: those of its own caches, built on
PyTorch's meta device, where buffers have everything except memory.
"""

from dataclasses import dataclass

import torch

from slimwhisper.cache.decoder_cache import CachePlan, CrossCache, SelfCache
from slimwhisper.cache.fold import Attention, fold
from slimwhisper.cache.forms import PRESETS
from slimwhisper.formats.names import HUB_MODELS
from slimwhisper.types import Dims

META = torch.device("meta")

_SIZES = {  # width, encoder layers, decoder layers: the models of that size
    (384, 4, 4): "tiny tiny.en",
    (512, 6, 6): "base base.en",
    (768, 12, 12): "small small.en",
    (1024, 24, 24): "medium medium.en",
    (1280, 32, 32): "large-v1 large-v2 large-v3 large",
    (1280, 32, 4): "large-v3-turbo turbo",
    (768, 12, 4): "distil-small.en",
    (1024, 24, 2): "distil-medium.en",
    (1280, 32, 2): "distil-large-v2 distil-large-v3 distil-large-v3.5",
}


def _dims(name: str, width: int, audio_layers: int, text_layers: int) -> Dims:
    n_vocab, n_mels = 51_864 if name.endswith(".en") else 51_865, 80
    if "-v3" in name or name in ("large", "turbo"):
        n_vocab, n_mels = 51_866, 128
    encoder = (1500, width, width // 64, audio_layers)
    return Dims(n_mels, *encoder, n_vocab, 448, width, width // 64, text_layers)


OFFICIAL_DIMS = {name: _dims(name, *size) for size, ns in _SIZES.items() for name in ns.split()}


@dataclass(frozen=True, slots=True)
class Allocated:
    """One preset's live caches for the whole batch; bytes, E counted once."""

    preset: str
    cross_form: str
    self_form: str
    cross_bytes: int
    self_bytes: int
    total_bytes: int
    bytes_per_window: int
    saving: float  # baseline's bytes / bytes


def known_dims(name: str) -> Dims | None:
    """The dimensions of an official or well-known model, by its short name or Hugging Face id."""
    if name == "openai/whisper-large":  # this is the first large model
        name = "large-v1"
    shapes = {m.repository: m.shape for m in HUB_MODELS.values()}
    named = HUB_MODELS[name].repository if name in HUB_MODELS else name
    return OFFICIAL_DIMS.get(shapes.get(named) or named.removeprefix("openai/whisper-"))


class _Shapes(Attention):
    """A block of which only the shapes are of use."""

    def solve(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Nothing is solved: for the meta device, PyTorch would import sympy."""
        return self.by_head(target)


def cache_sizes(plan: CachePlan, batch: int, dims: Dims) -> tuple[int, int]:
    """The bytes of the caches of `batch` windows, and of as many texts; allocates no memory."""
    cross = CrossCache(plan, batch, dims.n_audio_ctx, META)
    return cross.nbytes(), SelfCache(plan, batch, dims.n_text_ctx, META).nbytes()


def allocate(dims: Dims, batch: int, dtype: torch.dtype) -> tuple[Allocated, ...]:
    """The size of the engine's caches for `batch` windows, by preset; allocates no memory."""
    d = dims.n_text_state
    square, bias = torch.empty((d, d), device=META), torch.empty(d, device=META)
    block = _Shapes(square, bias, square, square, square, bias, dims.n_text_head)
    allocations: list[Allocated] = []
    for preset, forms in PRESETS.items():  # the baseline comes first
        crossing, inner = (fold(block, form).to(META, dtype) for form in forms)
        plan = CachePlan([crossing] * dims.n_text_layer, [inner] * dims.n_text_layer)
        cross, self_ = cache_sizes(plan, batch, dims)
        total = cross + self_
        saving = (allocations[0].total_bytes if allocations else total) / total
        allocations.append(Allocated(preset, *forms, cross, self_, total, total // batch, saving))
    return tuple(allocations)
