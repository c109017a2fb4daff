"""transformers and PEFT, the oracles for Hugging Face folders and adapters; tests skip without."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Dims
from tests.support.checkpoints import State, hf_config, hf_name


def transformers() -> ModuleType:
    """The package. It asks for torchaudio wherever that is installed, also where it cannot load."""
    found = pytest.importorskip(
        "transformers", minversion="5", reason="needs transformers: pip install 'transformers>=5'"
    )
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        from transformers import utils

        utils.is_torchaudio_available = lambda: False
    found.logging.set_verbosity_error()
    found.logging.disable_progress_bar()
    return found


def peft() -> ModuleType:
    """The package, which needs transformers."""
    transformers()
    return pytest.importorskip("peft", reason="needs PEFT: pip install 'peft>=0.21'")  # type: ignore[no-any-return]


def their_model(dims: Dims, state: State, **config: Any) -> Any:
    """transformers' model of these weights, float32; the embedding is the output matrix."""
    width = 4 * dims.n_text_state
    values = hf_config(dims) | {"encoder_ffn_dim": width, "decoder_ffn_dim": width} | config
    del values["architectures"]
    whispers = get_vocabulary(dims)
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), whispers.eot)
    ids["decoder_start_token_id"] = whispers.sot
    library = transformers()
    model = library.WhisperForConditionalGeneration(library.WhisperConfig(**values, **ids)).eval()
    found = model.load_state_dict({hf_name(n): t for n, t in state.items()}, strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {"proj_out.weight"}
    return model


@torch.no_grad()
def their_logits(model: Any, mel: Tensor, tokens: Sequence[int]) -> Tensor:
    """mel [n_mels, frames] -> logits [T, V] in float64; the model becomes float64."""
    text = torch.tensor([list(tokens)])
    model = model.double()
    return model(input_features=mel[None].double(), decoder_input_ids=text).logits[0]


@dataclass(frozen=True)
class Sampled:
    """What `generate` did in its first window."""

    prompt: list[int]
    tokens: list[int]  # without <|endoftext|>
    ended: bool  # by <|endoftext|>, or by one token more, which was not seen


class _Done(Exception):
    """The first window has ended."""


class _Recorder:
    """A logits processor that sees each step's tokens so far."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.prompt: list[int] | None = None
        self.seen: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        row = input_ids[0].tolist()
        if self.prompt is not None and len(row) <= len(self.seen):
            raise _Done  # the next window: there is no token for the first one's end
        self.prompt = row if self.prompt is None else self.prompt
        self.seen = row
        if len(row) - len(self.prompt) == self.most:
            raise _Done
        return scores


def first_window_of(model: Any, mel: Tensor, most: int | None, **options: Any) -> Sampled:
    """What `model.generate(mel, **options)` samples in a window [n_mels, 3000]: `most` tokens, or
    up to the end. It would go on at the last timestamp, and return a text of several windows.
    """
    recorder = _Recorder(most)
    with contextlib.suppress(_Done):
        model.generate(mel[None], logits_processor=[recorder], **options)
    tokens = recorder.seen[len(recorder.prompt) :]
    return Sampled(recorder.prompt, tokens, len(tokens) != most)
