"""Whole texts with forms that evict: the engine tells them how long prompts are, and what one
window keeps does not depend on the others.
"""

from collections.abc import Sequence

import pytest
import torch

from slimwhisper.cache.base import Rows, Step
from slimwhisper.cache.plan import DecoderCache
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Align, Answer, Attempt, Decoded, Request, Retry, Search
from slimwhisper.model.model import Model
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.windows import (
    CPU,
    TOKENIZER,
    VOCABULARY,
    assert_same,
    random_model,
    run,
    windows,
)

FORMS = [
    ("evict:budget=100,after=0", "keyformer:budget=8"),
    ("evict:budget=100,after=2", "keyformer_latent:budget=8"),
]


SEARCHES = [None, Search(beams=2)]


@pytest.mark.parametrize(
    ("forms", "search"), [*zip(FORMS, SEARCHES, strict=True)], ids=["greedy", "beams"]
)
def test_neighbours_do_not_matter(
    forms: tuple[str, str], search: Search | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do attempts before, or word timestamps in between; prompts are read together, padded."""
    monkeypatch.setattr("slimwhisper.engine.engine.CPU_POSITIONS", 4500)
    model = random_model(forms=forms)
    before = (*TOKENIZER.sot_sequence, TOKENIZER.no_timestamps)
    requests = windows(4, sample_len=9)

    def answers(tags: Sequence[int], slots: int) -> dict[int, list[Answer]]:
        seen = dict.fromkeys(tags, 0)

        def then(tag: int, _: Answer) -> Request | None:
            seen[tag] += 1
            wanted = (Align(before, (500, 501)), Retry(Attempt(0.0)))
            return wanted[seen[tag] - 1] if seen[tag] <= 2 * (tag % 2) else None

        return run(Engine(model, VOCABULARY, slots, search), {t: requests[t] for t in tags}, then)

    together = answers(range(4), 3)
    for tag in range(4):
        (alone,) = answers([tag], 1).values()
        ours, other = (
            [a for a in found if isinstance(a, Decoded)] for found in (together[tag], alone)
        )
        assert_same(ours, other)
        assert len(ours) == 1 + tag % 2 and ours[0].tokens == ours[-1].tokens
    assert len({a[0].tokens for a in together.values() if isinstance(a[0], Decoded)}) == 4


@pytest.mark.parametrize("forms", FORMS, ids=lambda forms: forms[0])
def test_prompts_of_different_lengths(forms: tuple[str, str]) -> None:
    """Logits of a padded batch are those of each text alone; one prompt is a single token."""
    dims = tiny_dims(multilingual=False, width=32, heads=2, text_layers=2)
    checkpoint = Checkpoint("random", dims, random_state(dims, seed=1))
    small = Model(checkpoint, CPU, torch.float64, forms)
    features = torch.randn(3, 1500, 32, dtype=torch.float64)
    tokens, lengths = torch.arange(60).view(3, 20) * 7, [1, 14, 5]

    def logits(chosen: list[int]) -> torch.Tensor:
        count, own = len(chosen), [lengths[i] for i in chosen]
        cross, self_ = small.allocate_cross(count), small.allocate_self(count)
        cache = DecoderCache(cross, self_)
        rows = Rows.block(count)
        cross.put(rows.slots, features[chosen])
        given = Rows.of(rows.ids, lengths=torch.tensor(own)) if count > 1 else rows
        small.decoder.prefill(tokens[chosen, : max(own)], given, cache)
        found = []
        for n in range(6):
            positions = torch.tensor(own) + n
            step = Step.at(rows, positions, int(positions.max()) + 1, False, torch.float64)
            found.append(small.decoder.step(tokens[chosen, positions], step, cache))
        return torch.stack(found, dim=1)

    together = logits([0, 1, 2])
    for i in range(3):
        torch.testing.assert_close(together[i], logits([i])[0])
