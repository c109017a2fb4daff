"""A checkpoint set up for use: encoder, decoder, and a plan of caches that the guard accepted."""

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from slimwhisper.cache.decoder_cache import CrossCache, DecoderCache, Pages, SelfCache, fold_plan
from slimwhisper.cache.forms import Form, parse_form
from slimwhisper.cache.rows import Rows
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.checkpoint.settings import default_heads
from slimwhisper.devices import keep_heaps
from slimwhisper.errors import CacheError, OptionError
from slimwhisper.kernels.dispatch import indexed
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from slimwhisper.option_group import ModelFacts
from slimwhisper.types import WHOLE, Dims

logger = logging.getLogger("slimwhisper.cache")


@dataclass(frozen=True, slots=True)
class Guard:
    """How to check the forms that need an inverse."""

    strict: bool = False  # raise if a form is not exact, instead of falling back
    mel: Tensor | None = None  # [n_mels, 3000] of real speech to measure on; None: noise


class Model:
    """Everything that does not change while windows are decoded."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        forms: tuple[str | Form, str | Form] = ("e", "x"),
        guard: Guard | None = None,
        int8: bool = False,
        encoder: Encoder | None = None,
    ) -> None:
        """forms: (cross, self), or their specs; those that have learned nothing yet learn from the
        guard's mel. guard: None means `Guard()`. int8: weights of the encoder, the MLPs and the
        logits; on a CPU, with float32. encoder: of another model with the same weights.

        Raises `CacheError` if a form is not exact and the guard is strict.
        """
        self.device = device = indexed(device)
        self.dtype = dtype
        if device.type == "cpu":
            keep_heaps()
        self.name, self.dims = checkpoint.name, checkpoint.dims
        self.vocabulary, self.settings = checkpoint.tokens, checkpoint.settings
        self.forms = parse_form(forms[0]), parse_form(forms[1])  # as requested
        self.int8 = int8
        self.alignment_heads = checkpoint.alignment_heads or default_heads(self.dims)
        guard = guard or Guard()
        if any(form.inverse or form.learns for form in self.forms):
            from slimwhisper.model.calibration import guarded_plan

            self.plan = guarded_plan(checkpoint, self.forms, dtype, guard.mel)
        else:
            self.plan = fold_plan(checkpoint.state, self.dims, *self.forms)
        if self.fallbacks and guard.strict:
            first = self.fallbacks[0].partition(";")[0]
            raise CacheError(
                f"{self.name}: {first}; choose cache slim, which is always exact, or allow the "
                "fall-back"
            )
        for line in self.fallbacks:
            logger.warning("%s: %s", self.name, line)
        self.plan = self.plan.to(device, dtype).packed()
        if not self.plan.exact_cross:  # others hold whole windows
            self.settings = replace(self.settings, audio_window=None)
        kernels = self.plan.kernels
        self.encoder = encoder or Encoder(checkpoint.state, self.dims, device, dtype, int8, kernels)
        self.decoder = Decoder(checkpoint.state, self.dims, device, dtype, int8, kernels)
        # of this model, an engine's search and slots -> what makes its drafter, if there is one
        self.draft: Callable[[Model, Any, int], Any] | None = None
        self.cache_memory: int | None = None  # bytes for the text's pages of an engine

    def shortened(self, positions: int) -> "Model":
        """The same weights, not copied, for shorter windows of `positions` encoder positions (20 ms
        each). The results differ from those of a whole window, which has silence after the audio.
        """
        other = copy(self)
        other.dims = replace(self.dims, n_audio_ctx=positions)
        other.encoder = self.encoder.shortened(other.dims)
        return other

    @property
    def facts(self) -> ModelFacts:
        """What options depend on."""
        return ModelFacts(self.name, self.dims, self.vocabulary, self.settings)

    def check_audio_window(self, audio_window: str | None) -> None:
        """Raise OptionError for short windows with caches that hold whole ones only."""
        if audio_window not in WHOLE and not self.plan.exact_cross:
            what = f"audio_window {audio_window}: not with cross_cache {self.forms[0]}"
            raise OptionError(f"{what}; leave one out")

    @property
    def fallbacks(self) -> list[str]:
        """One line for each form that the guard replaced in some layers."""
        lines = []
        for attention in ("cross", "self"):
            layers = [r for r in self.plan.inspections if r.attention == attention]
            if rejected := [r for r in layers if r.fell_back]:
                worst = max(rejected, key=lambda r: r.error)
                lines.append(
                    f"{attention}-attention cache {worst.form!r} is not exact in {len(rejected)} "
                    f"of {len(layers)} layers (error up to {worst.error:.1e}, baseline "
                    f"{worst.baseline_error:.1e}); they use {worst.used!r}, no larger"
                )
        return lines

    @property
    def compute_type(self) -> str:
        """The type of its numbers, such as "float16"; "int8" means float32 with int8 products."""
        return "int8" if self.int8 else str(self.dtype).removeprefix("torch.")

    def allocate_cross(self, slots: int, device: torch.device | None = None) -> CrossCache:
        """A cache for the audio of `slots` windows; `device` as in `CrossCache`."""
        return CrossCache(self.plan, slots, self.dims.n_audio_ctx, device)

    def allocate_self(
        self, rows: int, pages: Pages | None = None, device: torch.device | None = None
    ) -> SelfCache:
        """A cache for `rows` texts; `pages` and `device` as in `SelfCache`."""
        return SelfCache(self.plan, rows, self.dims.n_text_ctx, device, pages)

    @torch.inference_mode()
    def logits(self, tokens: Tensor, features: Tensor) -> Tensor:
        """tokens [B, T] int64 from the start, features [B, p, d] -> logits [B, T, V].

        One of the two may have one row for all of the other.
        """
        count = max(len(tokens), len(features))
        tokens = tokens.to(self.device).expand(count, -1)
        features = features.expand(count, -1, -1)
        cache = DecoderCache(self.allocate_cross(count), self.allocate_self(count))
        rows = Rows.block(count, device=self.device)
        cache.cross.put(rows.slots, features.to(self.device, self.dtype))
        return self.decoder.logits(self.decoder.prefill(tokens, rows, cache))

    def audio_bytes(self, slots: int) -> int:
        """Bytes of `allocate_cross`."""
        return self.allocate_cross(slots, torch.device("meta")).nbytes()

    def text_bytes(self) -> int:
        """Bytes of the cache for one text."""
        return self.allocate_self(1, device=torch.device("meta")).nbytes()

    def bytes_per_window(self) -> int:
        """Bytes of one more slot with one row."""
        return self.audio_bytes(1) + self.text_bytes()

    def baseline_bytes_per_window(self) -> int:
        """The same with keys and values for every layer and token."""
        return baseline_bytes(self.dims, self.dtype)


def baseline_bytes(dims: Dims, dtype: torch.dtype) -> int:
    """Bytes of the baseline's cache for one window: 2 (p + n) d L values."""
    tokens = dims.n_audio_ctx + dims.n_text_ctx
    return 2 * tokens * dims.n_text_state * dims.n_text_layer * dtype.itemsize
