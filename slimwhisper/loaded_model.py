"""A loaded model: what it is, and its network, as scripts call it on `whisper`'s model."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.checkpoint.settings import parse_head_dump
from slimwhisper.devices import choose_dtype
from slimwhisper.errors import OptionError
from slimwhisper.model.encoder import Encoder
from slimwhisper.model.model import Model
from slimwhisper.types import Dims

if TYPE_CHECKING:
    from slimwhisper.cache.guard import Inspection

BUFFER = "encoder.positional_embedding"  # in a checkpoint, but no parameter of `whisper`'s


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """How to load a model again."""

    load: Callable[[], Any]  # returns the `SlimWhisper`
    read: Callable[[], Checkpoint]


class LoadedModel:
    """What can be asked of a model without an engine."""

    network: Model
    origin: ModelOrigin | None = None  # None: it was not made by `load_model`
    training = False

    # -- what is loaded, and where ---------------------------------------------------------------

    @property
    def name(self) -> str:
        """As given to `load_model`, with the name of its adapter."""
        return self.network.name

    @property
    def dims(self) -> Dims:
        """The ten integers that define a Whisper model."""
        return self.network.dims

    @property
    def device(self) -> torch.device:
        """The device it computes on."""
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype it computes in; with int8 it is float32, see `compute_type`."""
        return self.network.dtype

    @property
    def compute_type(self) -> str:
        """Such as "float16"; "int8" means float32 with int8 products."""
        return self.network.compute_type

    @property
    def fastest_dtype(self) -> str:
        """What `load_model` would choose here for dtype "auto"."""
        return str(choose_dtype("auto", self.device)).removeprefix("torch.")

    @property
    def forms(self) -> tuple[str, str]:
        """The requested forms of the cross-attention and the self-attention cache."""
        cross, self_ = map(str, self.network.forms)
        return cross, self_

    @property
    def inspections(self) -> "list[Inspection]":
        """The guard's measurements, layer by layer; empty for forms that need no guard."""
        return self.network.plan.inspections

    @property
    def fallbacks(self) -> list[str]:
        """One line for each form that is not exact here and was replaced in some layers."""
        return self.network.fallbacks

    @property
    def is_multilingual(self) -> bool:
        return bool(self.network.vocabulary.languages)

    @property
    def num_languages(self) -> int:
        languages = self.network.vocabulary.languages
        return len(languages) or self.dims.num_languages

    def bytes_per_window(self) -> int:
        """Bytes of cache that one more window takes, with one text."""
        return self.network.bytes_per_window()

    def baseline_bytes_per_window(self) -> int:
        """The same with keys and values for every layer and token, as in `whisper`."""
        return self.network.baseline_bytes_per_window()

    def set_alignment_heads(self, dump: bytes) -> None:
        """Set the heads that word timestamps are read from, as dumped by `whisper`: base85 of
        gzipped booleans [layers, heads]. Raises OptionError for another model's dump.
        """
        self.network.alignment_heads = parse_head_dump(dump, self.dims)

    # -- the network, as `whisper` has it --------------------------------------------------------

    def embed_audio(self, mel: Tensor) -> Tensor:
        """mel [B, n_mels, 3000] -> the encoder's output [B, 1500, d], in the model's dtype."""
        return self.network.encoder(mel)

    def logits(self, tokens: Tensor, audio_features: Tensor) -> Tensor:
        """tokens [B, T] int64, audio_features [B, 1500, d] -> logits [B, T, V], float32 or more.
        One of the two may have one row for all of the other.
        """
        return self.network.logits(tokens, audio_features)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        """mel [B, n_mels, 3000], tokens [B, T] int64 -> logits [B, T, V]."""
        return self.logits(tokens, self.embed_audio(mel))

    __call__ = forward

    # -- as a `torch.nn.Module`, which neither moves nor trains -----------------------------------

    def to(self, *devices: Any, **named: Any) -> Self:
        """The model itself, if it is on that device; a dtype changes nothing, see `load_model`.

        Raises OptionError for another device.
        """
        for given in (*devices, *named.values()):
            device = given.device if isinstance(given, Tensor) else given
            if isinstance(device, int) and not isinstance(device, bool):
                device = f"cuda:{device}"
            if isinstance(device, str | torch.device):
                self._check_device(device)
        return self

    def cuda(self, device: int | str | torch.device | None = None) -> Self:
        """As `to`."""
        return self.to("cuda" if device is None else device)

    def cpu(self) -> Self:
        """As `to`."""
        return self.to("cpu")

    def eval(self) -> Self:
        """The model itself, which has no other mode."""
        return self

    half = float = eval

    def train(self, mode: bool = True) -> Self:
        """The model itself, which does not train."""
        return self

    def parameters(self) -> Iterator[Tensor]:
        """The checkpoint's weights, as `whisper` has them, on the model's device in its dtype.

        They are read from the file again, as the engine keeps them in other layouts: changing them
        changes nothing. Raises OptionError for a model that was not made by `load_model`.
        """
        for _, weight in self.named_parameters():
            yield weight

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """As `parameters`, with OpenAI's names."""
        for name, weight in self.state_dict().items():
            if name != BUFFER:
                yield name, weight

    def state_dict(self) -> dict[str, Tensor]:
        """As `parameters`, by OpenAI's names, with the encoder's positions: what OpenAI's files
        have under "model_state_dict".
        """
        state = self._origin().read().state
        return {name: t.to(self.network.device, self.network.dtype) for name, t in state.items()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *_: Any, **__: Any) -> None:
        """Raises OptionError: the weights of a model do not change."""
        raise OptionError(
            "the weights of a model do not change; save these with torch.save, as "
            '{"dims": vars(model.dims), "model_state_dict": ...}, and load that file'
        )

    @property
    def encoder(self) -> Encoder:
        """mel [B, n_mels, 3000] -> [B, 1500, d]. A function, without modules to hook into."""
        return self.network.encoder

    @property
    def decoder(self) -> Callable[[Tensor, Tensor], Tensor]:
        """tokens [B, T] int64, the encoder's output [B, 1500, d] -> logits [B, T, V]. A function;
        for its caches, which `whisper` passes in, use `transcribe` or `decode`.
        """
        return self.network.logits

    @property
    def alignment_heads(self) -> Tensor:
        """Which heads word timestamps are read from: sparse bool [layers, heads]."""
        dims = self.network.dims
        chosen = torch.zeros(dims.n_text_layer, dims.n_text_head, dtype=torch.bool)
        for layer, heads in self.network.alignment_heads.items():
            chosen[layer, list(heads)] = True
        return chosen.to_sparse()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A model with the same weights, which never change, and caches of its own."""
        other = type(self)(copy.copy(self.network))  # type: ignore[call-arg]
        other.origin = self.origin
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has no weights: `load_model` is called again with the same arguments."""
        return self._origin().load, (), self.network.alignment_heads

    def __setstate__(self, heads: Any) -> None:
        self.network.alignment_heads = heads

    def _origin(self) -> ModelOrigin:
        if self.origin is None:
            raise OptionError("this model has no file to read again; make it with load_model")
        return self.origin

    def _check_device(self, device: str | torch.device) -> None:
        current = self.network.device
        try:
            requested = torch.device(device)
        except RuntimeError:
            raise OptionError(
                f"device {str(device)!r} is not a device, such as cpu or cuda"
            ) from None
        if requested.type != current.type or requested.index not in (None, current.index or 0):
            remedy = f'load it there, with load_model(name, device="{requested}")'
            raise OptionError(f"{self.network.name} is on {current} and does not move; {remedy}")
