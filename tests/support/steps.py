"""Steps of attention layers without the decoder, whose norm would keep the tokens."""

import torch
from torch import Tensor

from slimwhisper.cache.base import SelfLayer
from slimwhisper.cache.rows import DecodeStep, Rows


def self_step(layer: SelfLayer, x: Tensor, step: DecodeStep) -> Tensor:
    """Keep each row's token, then attend: x [R, 1, d] -> [R, 1, d]."""
    place = layer.cache_write(step)
    if place is not None:
        place.write(x[:, 0])
    return layer.step(x, step)


def run_text(layer: SelfLayer, text: Tensor, prompt: int) -> Tensor:
    """[n, d] -> [n, d]: its beginning as a prompt, the rest step by step."""
    results = [layer.prefill(text[None, :prompt], Rows.of(torch.tensor([0])))[0]]
    for n in range(prompt, len(text)):
        step = DecodeStep.at(Rows.block(1), torch.tensor([n]), n + 1, True, text.dtype)
        results.append(self_step(layer, text[None, n : n + 1], step)[0])
    return torch.cat(results)
