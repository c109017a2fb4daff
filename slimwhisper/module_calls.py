"""What scripts call on `whisper`'s model because it is a `torch.nn.Module`."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.errors import OptionError
from slimwhisper.model.encoder import Encoder
from slimwhisper.model.model import Model

BUFFER = "encoder.positional_embedding"  # in a checkpoint, but no parameter of `whisper`'s


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """How to load a model again."""

    load: Callable[[], Any]  # returns the `SlimWhisper`
    read: Callable[[], Checkpoint]


class ModuleCalls:
    """The methods of `torch.nn.Module` for a model that neither moves nor trains."""

    network: Model
    origin: ModelOrigin | None = None  # None: it was not made by `load_model`
    training = False

    def to(self, *places: Any, **named: Any) -> Self:
        """The model itself, if it is on that device; a dtype changes nothing, see `load_model`.

        Raises OptionError for another device.
        """
        for place in (*places, *named.values()):
            if isinstance(place, Tensor):
                place = place.device
            elif isinstance(place, int) and not isinstance(place, bool):
                place = f"cuda:{place}"
            if isinstance(place, str | torch.device):
                self._check_device(place)
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

    def _check_device(self, place: str | torch.device) -> None:
        here = self.network.device
        try:
            wanted = torch.device(place)
        except RuntimeError:
            raise OptionError(
                f"device {str(place)!r} is not a device, such as cpu or cuda"
            ) from None
        if wanted.type != here.type or wanted.index not in (None, here.index or 0):
            remedy = f'load it there, with load_model(name, device="{wanted}")'
            raise OptionError(f"{self.network.name} is on {here} and does not move; {remedy}")
