"""What word timestamps are made of: how much each token of a text attends to each frame."""

from collections.abc import Iterator, Sequence

import torch

from slimwhisper.cache.base import Rows
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.engine.requests import Align, Alignment
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.model.decoder import Watch
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary


def align(
    model: Model, vocabulary: Vocabulary, asked: Sequence[Align], rows: Rows, cache: DecoderCache
) -> Iterator[Alignment]:
    """Read whole texts in one pass each and keep the alignment heads' scores [heads, T, p].

    Arguments:
        rows: R rows of `cache`, one for each request; their self-cache is overwritten.
    """
    device, eot = model.device, vocabulary.eot
    end = vocabulary.texts[-1].stop
    others = [i for ids in (*vocabulary.specials, vocabulary.timestamps) for i in ids if i < end]
    banned = torch.tensor(others, dtype=torch.int64, device=device)
    texts = [[*a.before, *a.text, eot] for a in asked]
    longest = max(map(len, texts))
    padded = torch.tensor([[*t, *[eot] * (longest - len(t))] for t in texts], device=device)
    watch = Watch(model.alignment_heads)
    hidden = model.decoder.prefill(padded, rows, cache, watch)
    scores = torch.cat(watch.scores, dim=1)  # [R, heads, T, p]
    scores = scores.to(at_least_float32(model.dtype))
    for i, request in enumerate(asked):
        begin = len(request.before) - 1
        logits = model.decoder.logits(hidden[i, begin : begin + len(request.text)])
        logits = logits[:, :end]
        if others:
            logits = logits.index_fill(1, banned, float("-inf"))
        text = torch.tensor(request.text, device=device)[:, None]
        probs = logits.softmax(dim=-1).gather(1, text).squeeze(1).tolist()
        own = scores[i, :, : len(texts[i])].clone()
        yield Alignment(request.text, len(request.before), own, tuple(probs))
