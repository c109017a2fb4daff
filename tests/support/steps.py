"""Steps of attention layers without the decoder, whose norm would keep the tokens."""

import torch
from torch import Tensor

from slimwhisper.cache.base import SelfLayer
from slimwhisper.cache.decoder_cache import CachePlan, DecoderCache
from slimwhisper.cache.rows import DecodeStep, Rows


def self_step(layer: SelfLayer, x: Tensor, step: DecodeStep) -> Tensor:
    """Keep each row's token, then attend: x [R, 1, d] -> [R, 1, d]."""
    place = layer.cache_write(step)
    if place is not None:
        place.write(x[:, 0])
    return layer.step(x, step)


def assert_steps_read_no_value(plan: CachePlan, frames: int, length: int) -> None:
    """Prompts and steps of every layer on the "meta" device, where reading a value raises."""
    meta, dtype = torch.device("meta"), torch.float32
    cache = DecoderCache.allocate(plan.to(meta, dtype), 2, frames, length, group=2)
    x = torch.zeros(4, 3, plan.cross[0].width, device=meta, dtype=dtype)
    every, locations = torch.arange(4, device=meta), torch.full((4,), 3, device=meta)
    cache.cross.put(every[:2], torch.zeros(2, frames, x.shape[2], device=meta, dtype=dtype))
    for rows in (Rows.block(2, 2, device=meta), Rows.of(every, every // 2)):
        for cross, own in zip(cache.cross.layers, cache.self_.layers, strict=True):
            own.prefill(x, rows)
            assert cross.attend(x, rows).shape == x.shape
            for full in (True, False):
                step = DecodeStep.at(rows, locations, 4, full, dtype)
                assert self_step(own, x[:, :1], step).shape == (4, 1, x.shape[2])
                assert cross.attend(x[:, :1], rows).shape == (4, 1, x.shape[2])


def run_text(layer: SelfLayer, text: Tensor, prompt: int) -> Tensor:
    """[n, d] -> [n, d]: its beginning as a prompt, the rest step by step."""
    results = [layer.prefill(text[None, :prompt], Rows.of(torch.tensor([0])))[0]]
    for n in range(prompt, len(text)):
        step = DecodeStep.at(Rows.block(1), torch.tensor([n]), n + 1, True, text.dtype)
        results.append(self_step(layer, text[None, n : n + 1], step)[0])
    return torch.cat(results)
