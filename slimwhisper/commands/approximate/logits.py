"""How far the logits of a pair of caches are from exact ones, and what its steps read."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slimwhisper.cache.decoder_cache import DecoderCache
from slimwhisper.cache.rows import DecodeStep, Rows
from slimwhisper.model.model import Model


@dataclass(frozen=True, slots=True)
class ExactWindow:
    """30 s of a recording with its exact text."""

    mel: Tensor  # [n_mels, 3000] float32
    tokens: list[int]  # from <|startoftranscript|> on


@torch.inference_mode()
def compare_logits(
    exact: Model, approximate: Model, windows: Sequence[ExactWindow]
) -> tuple[float, float]:
    """(error of the logits, bytes that a step of one row reads), both over all windows.

    Both models are fed the windows' tokens, one by one, as in decoding: a prompt that is read at
    once would leave nothing out with most forms. The error is the root mean square of the
    difference, relative to the standard deviation of the exact logits over the vocabulary. What is
    read is that of the caches after the last step, with half of the text's context.
    """
    dims, device, count = exact.dims, exact.device, len(windows)
    rows = Rows.block(count, device=device)
    features = exact.encoder(torch.stack([window.mel for window in windows]))
    lengths = torch.tensor([len(window.tokens) for window in windows], device=device)
    tokens = torch.full((count, int(lengths.max())), exact.vocabulary.eot)
    for row, window in zip(tokens, windows, strict=True):
        row[: len(window.tokens)] = torch.tensor(window.tokens)
    tokens = tokens.to(device)
    caches = []
    for model in (exact, approximate):
        cache = DecoderCache(model.allocate_cross(count), model.allocate_self(count))
        cache.cross.put(rows.slots, features.to(model.dtype))
        caches.append(cache)

    different = torch.zeros((), dtype=torch.float64, device=device)
    spread = torch.zeros_like(different)
    for position in range(tokens.shape[1]):
        theirs, found = (
            _step(model, tokens, position, rows, cache).double()
            for model, cache in zip((exact, approximate), caches, strict=True)
        )
        real = (lengths > position)[:, None]
        different += ((found - theirs).pow(2) * real).sum()
        spread += ((theirs - theirs.mean(dim=-1, keepdim=True)).pow(2) * real).sum()

    half = dims.n_text_ctx // 2
    read = [
        sum(layer.read_bytes(i) for layer in caches[1].cross.layers)
        + sum(layer.read_bytes(i, half) for layer in caches[1].self_.layers)
        for i in range(count)
    ]
    return float((different / spread).sqrt()), sum(read) / count


def _step(model: Model, tokens: Tensor, position: int, rows: Rows, cache: DecoderCache) -> Tensor:
    """The logits [R, V] after one more token of tokens [R, T]."""
    if position == 0:
        hidden = model.decoder.prefill(tokens[:, :1], rows, cache)
        return model.decoder.logits(hidden[:, -1])
    positions = torch.full((len(tokens),), position, device=tokens.device)
    step = DecodeStep.at(rows, positions, position + 1, True, model.dtype)
    return model.decoder.step(tokens[:, position], step, cache)
