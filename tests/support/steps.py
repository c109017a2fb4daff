"""A step of a self-attention layer without the decoder, whose norm would keep the tokens."""

from torch import Tensor

from slimwhisper.cache.base import SelfLayer, Step


def self_step(layer: SelfLayer, x: Tensor, step: Step) -> Tensor:
    """Keep each row's token, then attend: x [R, 1, d] -> [R, 1, d]."""
    place = layer.place(step)
    if place is not None:
        place.write(x[:, 0])
    return layer.step(x, step)
