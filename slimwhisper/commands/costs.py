"""What the caches cost: the paper's predictions from a model's dimensions, and the live buffers.

Predictions are those of slim attention (arXiv 2503.05840, Whisper table), in VALUES: they do not
depend on the dtype, and nothing was timed. Allocations are BYTES of the engine's own
`DecoderCache`, built on PyTorch's meta device, where buffers have everything except memory.

The paper's count of E differs from any real engine's: it assumes that E stays in on-chip memory
and leaves it out. Both counts are given. Its `large` has 51,865 tokens and 80 mels, which is now
called `large-v2`; here, as in `whisper`, `large` means large-v3, which has one token more. At the
table's precision the two are equal.
"""

from dataclasses import asdict, dataclass
from os import PathLike, fspath
from typing import Any

import torch

from slimwhisper.cache.fold import Attention, Folded, fold
from slimwhisper.cache.forms import PRESETS
from slimwhisper.cache.plan import CachePlan, DecoderCache
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.checkpoint.names import HUB_MODELS
from slimwhisper.devices import as_dtype
from slimwhisper.errors import OptionError
from slimwhisper.types import Dims

SOURCE = "slim attention, arXiv 2503.05840, Whisper table"
PAPER_MODELS = ("tiny", "base", "small", "medium", "large-v2")  # the paper's columns
MAX_BATCH = 1_000_000  # above any machine, below the overflow of 64-bit sizes
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
class Predicted:
    """One of the paper's options; values, not bytes."""

    option: str  # "baseline", "option1" or "option2"
    cache: int  # per window, without E
    cache_with_e: int  # per window, with E if the option reads it
    saving: float  # baseline's cache / cache
    saving_with_e: float
    parameters: int  # of the decoder, read for every token
    reads_at_batch_1: float  # per token: parameters / batch + cache
    reads: float  # per token, at the report's batch
    speedup_at_batch_1: float  # baseline's reads / reads; predicted, never timed
    speedup: float  # the same at the report's batch
    speedup_with_e: float  # the same if every layer reads E, as where no cache of the chip holds it
    cross_phase: int  # multiplications and additions to keep a window's audio, encoder not counted


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


@dataclass(frozen=True, slots=True)
class Report:
    """What one model's caches cost, for `batch` windows in `dtype`."""

    model: str
    dims: Dims
    batch: int
    dtype: str  # such as "float16"
    e_cache: int  # values per window: p d
    cross_kv: int  # values per window: 2 p d L
    self_kv: int  # values per window: 2 n d L
    predicted: tuple[Predicted, ...]
    allocated: tuple[Allocated, ...]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: every field, numbers not rounded."""
        units = {"predicted": "values", "allocated": "bytes, E counted"}
        return {**asdict(self), "source": SOURCE, "units": units}


def known_dims(name: str) -> Dims | None:
    """The dimensions of an official or well-known model, by its short name or Hugging Face id."""
    if name == "openai/whisper-large":  # this is the first large model
        name = "large-v1"
    shapes = {m.repository: m.shape for m in HUB_MODELS.values()}
    named = HUB_MODELS[name].repository if name in HUB_MODELS else name
    short = shapes.get(named) or named.removeprefix("openai/whisper-")
    return OFFICIAL_DIMS.get(short)


def predict(dims: Dims, batch: int) -> tuple[Predicted, ...]:
    """The paper's numbers for baseline, option 1 and option 2 at a batch of windows.

    Matrices that decoding reads in each layer, in units of d^2: 8 in the MLP, 4 in self-attention,
    and in cross-attention W_Q and W_O (baseline), plus W_KV (option 1), or W_K and W_V (option 2).
    Biases, positions and norms are not counted. The cross-phase makes K and V of E in every layer,
    4 p d^2 operations (baseline), or K alone (option 1); option 2 keeps E as it is.
    """
    d, layers = dims.n_text_state, dims.n_text_layer
    e = dims.n_audio_ctx * d
    cross, self_ = 2 * e * layers, 2 * dims.n_text_ctx * d * layers
    base_cache = cross + self_
    matrices, embedding = d * d * layers, dims.n_vocab * d
    base_parameters = embedding + 14 * matrices
    base_reads = base_parameters / batch + base_cache

    def option(
        name: str, cache: int, cache_with_e: int, per_layer: int, e_reads: int, projections: int
    ) -> Predicted:
        parameters = embedding + per_layer * matrices
        reads = parameters / batch + cache
        return Predicted(
            option=name,
            cache=cache,
            cache_with_e=cache_with_e,
            saving=base_cache / cache,
            saving_with_e=base_cache / cache_with_e,
            parameters=parameters,
            reads_at_batch_1=float(parameters + cache),
            reads=reads,
            speedup_at_batch_1=(base_parameters + base_cache) / (parameters + cache),
            speedup=base_reads / reads,
            speedup_with_e=base_reads / (reads + e_reads * e),
            cross_phase=2 * e * d * projections * layers,
        )

    return (
        option("baseline", base_cache, base_cache, 14, 0, 2),
        option("option1", base_cache // 2, base_cache // 2, 15, 0, 1),
        option("option2", self_ // 2, self_ // 2 + e, 16, layers, 0),
    )


def allocate(dims: Dims, batch: int, dtype: torch.dtype) -> tuple[Allocated, ...]:
    """The size of the engine's caches for `batch` windows, by preset; allocates no memory."""
    d = dims.n_text_state
    square, bias = torch.empty((d, d), device=META), torch.empty(d, device=META)
    block = Attention(square, bias, square, square, square, bias, dims.n_text_head)

    def folded(form: str) -> list[Folded]:
        return [fold(block, form).to(META, dtype)] * dims.n_text_layer

    found: list[Allocated] = []
    for preset, forms in PRESETS.items():  # the baseline comes first
        crossing, inner = map(folded, forms)
        plan = CachePlan(crossing, inner)
        cache = DecoderCache.allocate(plan, batch, dims.n_audio_ctx, dims.n_text_ctx)
        cross, self_ = cache.cross.nbytes(), cache.self_.nbytes()
        total = cross + self_
        saving = (found[0].total_bytes if found else total) / total
        found.append(Allocated(preset, *forms, cross, self_, total, total // batch, saving))
    return tuple(found)


def make_report(
    model: str | PathLike[str] | Dims,
    batch: int = 64,
    dtype: str | torch.dtype = torch.float16,
) -> Report:
    """Report on a model: an official name (nothing is loaded), a file or folder, or dimensions.

    Raises `OptionError` for an invalid batch or dtype, `CheckpointError` for the model.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise OptionError(f"batch {batch!r} is not between 1 and {MAX_BATCH:,}")
    number = as_dtype(dtype)
    if isinstance(model, Dims):
        name, dims = f"d={model.n_text_state} L={model.n_text_layer}", model
    else:
        name = fspath(model)
        dims = known_dims(name) or load_checkpoint(model).dims
    e = dims.n_audio_ctx * dims.n_text_state
    return Report(
        model=name,
        dims=dims,
        batch=batch,
        dtype=str(number).removeprefix("torch."),
        e_cache=e,
        cross_kv=2 * e * dims.n_text_layer,
        self_kv=2 * dims.n_text_ctx * dims.n_text_state * dims.n_text_layer,
        predicted=predict(dims, batch),
        allocated=allocate(dims, batch, number),
    )
