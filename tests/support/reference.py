"""openai-whisper's own modules as the reference, in any dtype, float64 included."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
import whisper.model
from torch import Tensor, nn

from slimwhisper.types import Dims


def whisper_model(dims: Dims, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32):
    """openai-whisper's model with these weights. float64: its layer norms too, which it rounds."""
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(dims)))
    model.load_state_dict({name: t.float() for name, t in state.items()})
    if dtype == torch.float64:
        model = model.double()
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, whisper.model.LayerNorm):
                    norm = nn.LayerNorm(child.normalized_shape, dtype=dtype)
                    norm.load_state_dict(child.state_dict())
                    setattr(parent, name, norm)
    return model.eval()


@torch.no_grad()
def whisper_logits(model, tokens: Sequence[int], features: Tensor) -> Tensor:
    """Logits [T, V] of one text given encoder output [p, d], in the features' dtype.

    The modules are openai-whisper's; its `TextDecoder.forward` would round a float64 result.
    """
    decoder = model.decoder
    x = decoder.token_embedding(torch.tensor(tokens)) + decoder.positional_embedding[: len(tokens)]
    x = x.to(features.dtype).unsqueeze(0)
    for block in decoder.blocks:
        x = block(x, features.unsqueeze(0), mask=decoder.mask)
    x = decoder.ln(x)
    return (x @ decoder.token_embedding.weight.to(x.dtype).T)[0].double()


def set_spectrum(state: dict[str, Tensor], dims: Dims, condition: float) -> dict[str, Tensor]:
    """Give the decoder's W_K and W_V log-spaced singular values with this condition number.

    Their singular vectors and Frobenius norms stay as they are.
    """
    changed = dict(state)
    for layer in range(dims.n_text_layer):
        for block in ("attn", "cross_attn"):
            for name in ("key", "value"):
                key = f"decoder.blocks.{layer}.{block}.{name}.weight"
                u, s, vh = torch.linalg.svd(state[key].double())
                exponent = -torch.log10(torch.tensor(condition, dtype=torch.float64))
                shaped = torch.logspace(0, float(exponent), len(s), dtype=torch.float64)
                shaped *= s.norm() / shaped.norm()
                changed[key] = (u * shaped @ vh).float()
    return changed
