"""Computes the costs of caches: the paper's predictions, and the sizes of the engine's buffers.

Predictions are those of slim attention (arXiv 2503.05840, Whisper table), in VALUES: they do not
depend on the dtype, and nothing was timed. Allocations are BYTES of the engine's own
`DecoderCache`, built on PyTorch's meta device, where buffers have everything except memory.

The paper's count of E differs from any real engine's: it assumes that E stays in on-chip memory
and leaves it out. Both counts are given. Its `large` has 51,865 tokens and 80 mels, which is now
called `large-v2`; here, as in `whisper`, `large` means large-v3, which has one token more. At the
table's precision the two are equal.
"""

from dataclasses import dataclass

import torch

from slimwhisper.cache.decoder_cache import CachePlan, DecoderCache
from slimwhisper.cache.fold import Attention, Folded, fold
from slimwhisper.cache.forms import PRESETS
from slimwhisper.checkpoint.names import HUB_MODELS
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
class PaperOption:
    """One of the paper's options; values, not bytes."""

    option: str  # "baseline", "option1" or "option2"
    cache: int  # per window, without E
    cache_with_e: int  # per window, with E if the option reads it
    parameters: int  # of the decoder, read for every token
    reads: float  # per token: parameters / batch + cache
    reads_with_e: float  # the same if every layer reads E, as where no on-chip memory holds it
    cross_phase: int  # multiplications and additions to make a window's cache, without the encoder


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
    short = shapes.get(named) or named.removeprefix("openai/whisper-")
    return OFFICIAL_DIMS.get(short)


def predict(dims: Dims, batch: int) -> tuple[PaperOption, ...]:
    """The paper's numbers for baseline, option 1 and option 2 at a batch of windows.

    Matrices that decoding reads in each layer, in units of d^2: 8 in the MLP, 4 in self-attention,
    and in cross-attention W_Q and W_O (baseline), plus W_KV (option 1), or W_K and W_V (option 2).
    Biases, positions and norms are not counted. The cross-phase makes K and V of E in every layer,
    4 p d^2 operations (baseline), or K alone (option 1); option 2 keeps E as it is.
    """
    d, layers = dims.n_text_state, dims.n_text_layer
    e, self_ = dims.n_audio_ctx * d, 2 * dims.n_text_ctx * d * layers
    whole = 2 * e * layers + self_

    def option(name: str, cache: int, copies: int, matrices: int, projections: int) -> PaperOption:
        """copies: of E in the cache. projections: of E, in each layer."""
        parameters = dims.n_vocab * d + matrices * d * d * layers
        reads = parameters / batch + cache
        with_e, phase = reads + copies * layers * e, 2 * e * d * projections * layers
        return PaperOption(name, cache, cache + copies * e, parameters, reads, with_e, phase)

    return (
        option("baseline", whole, 0, 14, 2),
        option("option1", whole // 2, 0, 15, 1),
        option("option2", self_ // 2, 1, 16, 0),
    )


def allocate(dims: Dims, batch: int, dtype: torch.dtype) -> tuple[Allocated, ...]:
    """The size of the engine's caches for `batch` windows, by preset; allocates no memory."""
    d = dims.n_text_state
    square, bias = torch.empty((d, d), device=META), torch.empty(d, device=META)
    block = Attention(square, bias, square, square, square, bias, dims.n_text_head)

    def folded(form: str) -> list[Folded]:
        return [fold(block, form).to(META, dtype)] * dims.n_text_layer

    allocations: list[Allocated] = []
    for preset, forms in PRESETS.items():  # the baseline comes first
        crossing, inner = map(folded, forms)
        plan = CachePlan(crossing, inner)
        cache = DecoderCache.allocate(plan, batch, dims.n_audio_ctx, dims.n_text_ctx)
        cross, self_ = cache.cross.nbytes(), cache.self_.nbytes()
        total = cross + self_
        saving = (allocations[0].total_bytes if allocations else total) / total
        allocations.append(Allocated(preset, *forms, cross, self_, total, total // batch, saving))
    return tuple(allocations)
