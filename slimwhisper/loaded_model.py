"""What a loaded model is, and its network as scripts call it on `whisper`'s model."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from slimwhisper.checkpoint.load import Checkpoint, parse_head_dump
from slimwhisper.devices import choose_dtype
from slimwhisper.errors import OptionError
from slimwhisper.model.encoder import Encoder
from slimwhisper.model.model import Model, baseline_bytes
from slimwhisper.types import Dims

if TYPE_CHECKING:
    from slimwhisper.guard import Inspection

BUFFER = "encoder.positional_embedding"  # in a checkpoint, but no parameter of `whisper`'s


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """How to load a model again.

    Attributes:
        load: The function that loads it, and returns the `SlimWhisper`, with its arguments.
        read: The function that reads its checkpoint.
    """

    load: "partial[Any]"
    read: Callable[[], Checkpoint]


class LoadedModel:
    """What can be asked of a model without decoding.

    The methods from `embed_audio` on are those of `whisper`'s model, which is a `torch.nn.Module`.
    This class is not one: a model neither moves to another device nor trains.

    Attributes:
        network: The network. It is not public API, and may change in any version.
        origin: How the model was loaded. None means that it was not made by `load_model`.
        training: False.
    """

    network: Model
    origin: ModelOrigin | None = None
    training = False

    # -- what is loaded, and where ---------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name that was given to `load_model`, with the name of the adapter."""
        return self.network.name

    @property
    def dims(self) -> Dims:
        """The ten integers that define the model."""
        return self.network.dims

    @property
    def device(self) -> torch.device:
        """The device that the model computes on."""
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the model computes in.

        With int8 products it is float32; see `compute_type`.
        """
        return self.network.dtype

    @property
    def compute_type(self) -> str:
        """The name of the dtype, such as "float16", or "int8" for float32 with int8 products."""
        return self.network.compute_type

    @property
    def fastest_dtype(self) -> str:
        """The name of the dtype that `load_model` would choose on this machine for "auto"."""
        return str(choose_dtype("auto", self.device)).removeprefix("torch.")

    @property
    def forms(self) -> tuple[str, str]:
        """The forms of the caches of the audio and of the text that were requested."""
        cross, self_ = map(str, self.network.forms)
        return cross, self_

    @property
    def inspections(self) -> "list[Inspection]":
        """What the exactness check measured, layer by layer.

        It is empty for forms that need no check.
        """
        return list(self.network.plan.inspections)

    @property
    def fallbacks(self) -> list[str]:
        """A line of text for each form that is not exact here and was replaced in some layers."""
        return list(self.network.plan.fallbacks)

    @property
    def is_multilingual(self) -> bool:
        """Whether the model knows other languages than English."""
        return bool(self.network.vocabulary.languages)

    @property
    def num_languages(self) -> int:
        """The number of languages that the model knows."""
        return len(self.network.vocabulary.languages) or self.dims.num_languages

    def bytes_per_window(self) -> int:
        """Return the bytes of cache that one more window takes, with one text.

        Returns:
            The number of bytes.
        """
        return self.network.bytes_per_window()

    def baseline_bytes_per_window(self) -> int:
        """Return the bytes that one more window would take with the cache of `whisper`.

        That cache has the keys and values of every layer and token.

        Returns:
            The number of bytes.
        """
        return baseline_bytes(self.dims, self.dtype)

    def set_alignment_heads(self, dump: bytes) -> None:
        """Set the attention heads that the times of words are read from.

        Args:
            dump: The heads as `whisper` dumps them, which is base85 of gzipped booleans [layers,
                heads].

        Raises:
            OptionError: When this is not a dump for a model of this size.
        """
        self.network.alignment_heads = parse_head_dump(dump, self.dims)

    # -- the network, as `whisper` has it --------------------------------------------------------

    def embed_audio(self, mel: Tensor) -> Tensor:
        """Encode spectrograms.

        Args:
            mel: Spectrograms [B, n_mels, 3000].

        Returns:
            The encoder's output [B, 1500, d], in the model's dtype.

        Raises:
            OptionError: When they have another shape.
        """
        shape = [self.dims.n_mels, self.dims.window_frames]
        if mel.ndim != 3 or list(mel.shape[1:]) != shape:
            raise OptionError(f"mel: shape {list(mel.shape)}; give [B, {shape[0]}, {shape[1]}]")
        return self.network.encoder(mel)

    def logits(self, tokens: Tensor, audio_features: Tensor) -> Tensor:
        """Compute the logits after each token of some texts.

        One of the two arguments may have one row for all rows of the other.

        Args:
            tokens: The tokens [B, T], int64.
            audio_features: The encoder's output [B, 1500, d].

        Returns:
            The logits [B, T, V], in float32 or a wider dtype.
        """
        return self.network.logits(tokens, audio_features)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        """Compute the logits after each token of some texts. Calling the model does the same.

        Args:
            mel: Spectrograms [B, n_mels, 3000].
            tokens: The tokens [B, T], int64.

        Returns:
            The logits [B, T, V], in float32 or a wider dtype.

        Raises:
            OptionError: When the spectrograms have another shape.
        """
        return self.logits(tokens, self.embed_audio(mel))

    __call__ = forward

    # -- as a `torch.nn.Module`, which neither moves nor trains -----------------------------------

    def to(self, *devices: Any, **named: Any) -> Self:
        """Return the model itself, if it is on the given device.

        A dtype changes nothing; `load_model` chooses it.

        Args:
            *devices: Devices, dtypes or tensors, as `torch.nn.Module.to` takes them.
            **named: The same by name.

        Returns:
            The model itself.

        Raises:
            OptionError: When the device is another one.
        """
        for given in (*devices, *named.values()):
            device = given.device if isinstance(given, Tensor) else given
            if isinstance(device, int) and not isinstance(device, bool):
                device = f"cuda:{device}"
            if isinstance(device, str | torch.device):
                self._check_device(device)
        return self

    def cuda(self, device: int | str | torch.device | None = None) -> Self:
        """Return the model itself, if it is on a GPU.

        Args:
            device: The GPU. None means any.

        Returns:
            The model itself.

        Raises:
            OptionError: When it is on another device.
        """
        return self.to("cuda" if device is None else device)

    def cpu(self) -> Self:
        """Return the model itself, if it is on the CPU.

        Returns:
            The model itself.

        Raises:
            OptionError: When it is on another device.
        """
        return self.to("cpu")

    def eval(self) -> Self:
        """Return the model itself, which has no other mode.

        `half` and `float` do the same.

        Returns:
            The model itself.
        """
        return self

    half = float = eval

    def train(self, mode: bool = True) -> Self:
        """Return the model itself, which does not train.

        Args:
            mode: This has no effect.

        Returns:
            The model itself.
        """
        return self

    def parameters(self) -> Iterator[Tensor]:
        """Read the weights of the checkpoint, as `whisper` has them.

        They are on the model's device and in its dtype. They are read from the file again, because
        the engine keeps them in other layouts. So changing them changes nothing.

        Returns:
            The weights.

        Raises:
            OptionError: When the model was not made by `load_model`.
        """
        return (weight for _, weight in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Read the weights as `parameters` does, with OpenAI's names.

        Returns:
            The names with their weights.

        Raises:
            OptionError: When the model was not made by `load_model`.
        """
        return (pair for pair in self.state_dict().items() if pair[0] != BUFFER)

    def state_dict(self) -> dict[str, Tensor]:
        """Read the weights as `parameters` does, and the positions of the encoder.

        Returns:
            The weights by OpenAI's names: what OpenAI's files have under "model_state_dict".

        Raises:
            OptionError: When the model was not made by `load_model`.
        """
        state = self._origin().read().state
        return {name: t.to(self.network.device, self.network.dtype) for name, t in state.items()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *_: Any, **__: Any) -> None:
        """Refuse to change the weights of the model.

        Args:
            state_dict: The weights.

        Raises:
            OptionError: When this is called. The message says how to load other weights.
        """
        raise OptionError(
            "the weights of a model do not change; save these with torch.save, as "
            '{"dims": vars(model.dims), "model_state_dict": ...}, and load that file'
        )

    @property
    def encoder(self) -> Encoder:
        """The function that turns spectrograms [B, n_mels, 3000] into features [B, 1500, d].

        It has no modules to hook into.
        """
        return self.network.encoder

    @property
    def decoder(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The function that turns tokens and features into logits.

        It takes tokens [B, T], int64, and the encoder's output [B, 1500, d], and returns logits [B,
        T, V]. In place of the caches that `whisper` passes to it, use `transcribe` or `decode`.
        """
        return self.network.logits

    @property
    def alignment_heads(self) -> Tensor:
        """The attention heads that the times of words are read from.

        They are sparse booleans [layers, heads].
        """
        dims = self.network.dims
        chosen = torch.zeros(dims.n_text_layer, dims.n_text_head, dtype=torch.bool)
        for layer, heads in self.network.alignment_heads.items():
            chosen[layer, list(heads)] = True
        return chosen.to_sparse()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a model with the same weights, which never change, and caches of its own."""
        other = type(self)(copy.copy(self.network))  # type: ignore[call-arg]
        other.origin = self.origin
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of `load_model`, which is called again to read the pickle.

        A pickle has no weights.
        """
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
            what = f"device {str(device)!r} is not a device"
            raise OptionError(f"{what}, such as cpu or cuda") from None
        if requested.type != current.type or requested.index not in (None, current.index or 0):
            remedy = f'load it there, with load_model(name, device="{requested}")'
            raise OptionError(f"{self.network.name} is on {current} and does not move; {remedy}")
