"""A checkpoint set up for use: encoder, decoder, and a plan of caches that the guard accepted."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from slimwhisper.cache.base import Rows
from slimwhisper.cache.decoder_cache import CachePlan, CrossCache, DecoderCache, Pages, SelfCache
from slimwhisper.cache.forms import Form, parse_form
from slimwhisper.checkpoint.load import Checkpoint, default_heads
from slimwhisper.devices import keep_heaps
from slimwhisper.errors import OptionError
from slimwhisper.kernels.dispatch import indexed
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from slimwhisper.option_group import ModelFacts
from slimwhisper.types import WHOLE, Dims

# the folded weights for forms of cross- and self-attention, in a dtype but not yet rounded to it
MakePlan = Callable[[Checkpoint, tuple[Form, Form], torch.dtype], CachePlan]


def exact_plan(checkpoint: Checkpoint, forms: tuple[Form, Form], dtype: torch.dtype) -> CachePlan:
    """A `MakePlan` of forms that are exact in any dtype."""
    assert not any(form.guarded for form in forms), "the guard makes such plans"
    return CachePlan.of(checkpoint.state, checkpoint.dims, *forms)


class Model:
    """Everything that does not change while windows are decoded."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        forms: tuple[str | Form, str | Form] = ("e", "x"),
        make_plan: MakePlan = exact_plan,
        int8: bool = False,
    ) -> None:
        """forms: (cross, self), or their specs. make_plan: `guarded_plan`, for forms that need the
        guard. int8: weights of the encoder, the decoder's matrices and the logits; on a CPU, with
        float32.
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
        self.plan = make_plan(checkpoint, self.forms, dtype).to(device, dtype).packed(int8)
        if not self.plan.exact_cross:  # others hold whole windows
            self.settings = replace(self.settings, audio_window=None)
        kernels = self.plan.kernels
        self.encoder = Encoder(checkpoint.state, self.dims, device, dtype, int8, kernels)
        self.decoder = Decoder(checkpoint.state, self.dims, device, dtype, int8, kernels)
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
        cache = DecoderCache(self.allocate_cross(count), self.allocate_self(count))
        rows = Rows.block(count, device=self.device)
        cache.cross.put(rows.slots, features.expand(count, -1, -1).to(self.device, self.dtype))
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


def baseline_bytes(dims: Dims, dtype: torch.dtype) -> int:
    """Bytes of the baseline's cache for one window: 2 (p + n) d L values."""
    tokens = dims.n_audio_ctx + dims.n_text_ctx
    return 2 * tokens * dims.n_text_state * dims.n_text_layer * dtype.itemsize
