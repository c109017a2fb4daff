"""Cross-attention scores for word timestamps: how much each token attends to each frame."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from slimwhisper.engine.passes.prompts import PromptReader
from slimwhisper.engine.requests import Align, Alignment
from slimwhisper.engine.uploads import upload
from slimwhisper.kernels.linear import at_least_float32
from slimwhisper.model.decoder import ScoreRecorder
from slimwhisper.model.model import Model
from slimwhisper.types import SpecialTokens


def align(
    model: Model,
    vocabulary: SpecialTokens,
    requests: Sequence[Align],
    slots: Sequence[int],
    reader: PromptReader,
) -> Iterator[Alignment]:
    """Read whole texts in one pass and record the alignment heads' scores [heads, T, p]. slots: of
    each request's audio.
    """
    eot, end = vocabulary.eot, vocabulary.texts[-1].stop
    non_text = [i for ids in (*vocabulary.specials, vocabulary.timestamps) for i in ids if i < end]
    packed = reader.pack([[*a.before, *a.text, eot] for a in requests], 0, slots)
    tokens = [np.array(ids, dtype=np.int64) for ids in (non_text, *(a.text for a in requests))]
    numbers, banned, *texts = upload(model.device, packed, *tokens)
    recorder = ScoreRecorder(model.alignment_heads)
    hidden = reader.record(numbers, recorder)
    scores = torch.cat(recorder.scores, dim=1)  # [R, heads, T, p]
    scores = scores.to(at_least_float32(model.dtype))
    for i, (request, text) in enumerate(zip(requests, texts, strict=True)):
        begin, count = len(request.before) - 1, len(request.text)
        logits = model.decoder.logits(hidden[i, begin : begin + count])[:, :end]
        logits = logits.index_fill(1, banned, float("-inf"))
        probs = logits.softmax(dim=-1).gather(1, text[:, None]).squeeze(1).tolist()
        row = scores[i, :, : begin + count + 2].clone()
        yield Alignment(request.text, begin + 1, row, tuple(probs))
