"""The encoder's layout: what it computes is compared with openai-whisper's in test_logits.py."""

import torch

from slimwhisper.model.encoder import Encoder
from slimwhisper.model.layers import Residual
from tests.support.checkpoints import random_state, tiny_dims


def test_every_layer_reads_rows_in_order() -> None:
    """The convolutions leave the channels outermost, in which every layer would be slower."""
    dims = tiny_dims(width=64, heads=1, audio_layers=3)
    encoder = Encoder(random_state(dims, seed=0), dims, torch.device("cpu"), torch.float32)
    seen: list[tuple[int, ...]] = []

    def watch(block):  # type: ignore[no-untyped-def]
        def run(stream: Residual) -> None:
            seen.append(stream.x.stride())
            block(stream)

        return run

    encoder.blocks = [watch(block) for block in encoder.blocks]
    mel = torch.randn(2, 80, 3000, generator=torch.Generator().manual_seed(1))
    features = encoder(mel)
    assert seen == [(1500 * 64, 64, 1)] * 3
    assert features.is_contiguous()
