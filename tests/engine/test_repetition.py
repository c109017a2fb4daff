"""The limits on what a text repeats, against plain loops over one text, and in the engine."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from whisper.decoding import BeamSearchDecoder, MaximumLikelihoodRanker

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.filters import (
    NEVER,
    Filters,
    Repetition,
    Texts,
    Timestamps,
    apply_timestamp_rules,
)
from slimwhisper.engine.requests import Attempt, Decoded, Search, Window
from slimwhisper.engine.sampling import fastest, waiting_times
from slimwhisper.engine.verification import verify
from slimwhisper.model.model import Model
from tests.support.pretend.models import assert_recorded_like_a_cpu, requests
from tests.support.windows import (
    CPU,
    DIMS,
    SEARCHES,
    VOCABULARY,
    assert_same,
    decode,
    run,
    short_model,
    short_windows,
)

LIMITS = [(1.0, 0), (1.3, 0), (1.0, 2), (0.7, 3), (50.0, 1), (1.0, 5)]  # penalty, n-gram


def plainly_limited(logits: Tensor, text: Sequence[int], penalty: float, ngram: int) -> Tensor:
    """One row's logits [V], limited by their definition."""
    limited = logits.clone()
    for token in set(text):
        score = logits[token]
        limited[token] = score * penalty if score < 0 else score / penalty
    if ngram and len(text) >= ngram - 1:
        last = tuple(text[len(text) - ngram + 1 :])
        grams = {tuple(text[i : i + ngram]) for i in range(len(text) - ngram + 1)}
        for token in range(len(logits)):
            if (*last, token) in grams:
                limited[token] = float("-inf")
    return limited


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_limited_as_by_plain_loops(dtype: torch.dtype) -> None:
    """Rows of all lengths and limits side by side; what is behind a text does not count."""
    generator = torch.Generator().manual_seed(0)
    rows, room, size = 10 * len(LIMITS), 24, 9  # few tokens, so that they repeat
    logits = torch.randn(rows, size, generator=generator, dtype=dtype)
    logits[:, 3] = float("-inf")
    texts = torch.randint(size, (rows, room), generator=generator)
    counts = torch.tensor([0, 1, 2, 3, 5, 8, 13, 20, 23, 24] * len(LIMITS))
    limits = Repetition(rows, VOCABULARY, CPU)
    chosen = [LIMITS[row // 10] for row in range(rows)]
    penalties, ngrams = zip(*chosen, strict=True)
    state = torch.tensor(penalties, dtype=torch.float64), torch.tensor(ngrams)
    found = logits.clone()
    limits.apply(found, Texts(texts, counts, {limits: state}), 5)
    changed = 0
    for row, (penalty, ngram) in enumerate(chosen):
        text = texts[row, : counts[row]].tolist()
        expected = plainly_limited(logits[row], text, penalty, ngram)
        assert torch.equal(found[row], expected), (text, penalty, ngram)
        changed += not torch.equal(expected, logits[row])
    assert 0.4 * rows < changed < rows
    assert torch.equal(found[:10], logits[:10])  # without limits, to the bit


def limited(window: Window, penalty: float, ngram: int, sample_len: int = 40) -> Window:
    assert window.rules is not None
    rules = replace(
        window.rules,
        sample_len=sample_len,
        repetition_penalty=penalty,
        no_repeat_ngram_size=ngram,
    )
    return replace(window, rules=rules)


def has_repeat(tokens: Sequence[int], ngram: int) -> bool:
    grams = [tuple(tokens[i : i + ngram]) for i in range(len(tokens) - ngram + 1)]
    return len(set(grams)) < len(grams)


@pytest.mark.parametrize(("search", "temperatures"), [SEARCHES[0], SEARCHES[-1]])
def test_texts_side_by_side_are_those_alone(
    model: Model, search: Search | None, temperatures: tuple[float, ...]
) -> None:
    """With and without limits in one batch; those without are unchanged to the bit."""
    plain = [limited(w, 1.0, 0) for w in short_windows(6, temperatures=temperatures)]
    mixed = [limited(w, *LIMITS[i]) for i, w in enumerate(plain)]
    found = decode(model, mixed, slots=6, search=search)
    for i, window in enumerate(mixed):
        assert_same([found[i]], decode(model, [window], slots=1, search=search))
        if LIMITS[i][1]:
            assert not has_repeat(found[i].tokens, LIMITS[i][1])
    free = decode(model, plain, slots=6, search=search)
    assert free[0] == found[0]
    assert any(has_repeat(text.tokens, 2) for text in free)
    assert sum(a.tokens != b.tokens for a, b in zip(free, found, strict=True)) > 2


class PlainLoop:
    """One window's text in float64, by whole forward passes over each candidate."""

    def __init__(self, model: Model, window: Window) -> None:
        assert window.rules is not None and window.mel is not None
        self.model, self.window, self.rules = model, window, window.rules
        self.features = model.encoder(window.mel[None])

    def logits(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """[n, V] of the next tokens, by all rules."""
        rules = self.rules
        tokens = torch.tensor([[*self.window.prompt, *text] for text in texts])
        features = self.features.expand(len(texts), -1, -1)
        logits = self.model.logits(tokens, features)[:, -1].clone()
        limits = rules.repetition_penalty, rules.no_repeat_ngram_size
        for row, text in enumerate(texts):
            logits[row] = plainly_limited(logits[row], text, *limits)
        logits.index_fill_(-1, rules.suppress, NEVER)
        if not texts[0]:
            logits.index_fill_(-1, rules.suppress_first, NEVER)
        if rules.timestamps:
            stamps = Timestamps(1, VOCABULARY, CPU)
            ends = [[t[-1] for t in stamps.along(rules, text)] for text in texts]
            state = [torch.tensor(np.array(t)) for t in zip(*ends, strict=True)]
            counts = torch.tensor([len(text) for text in texts])
            apply_timestamp_rules(logits, (*state, counts), VOCABULARY)
        return logits

    def one_text(self) -> list[int]:
        """Greedy, or random at the window's temperature."""
        attempt, text = self.window.attempt, list[int]()
        numbers = np.random.Generator(np.random.PCG64(attempt.seed))
        keys = torch.from_numpy(numbers.integers(-(2**63), 2**63, (1, DIMS.n_text_ctx // 2 + 1)))
        heat = torch.tensor([attempt.temperature], dtype=torch.float32)
        while len(text) < self.rules.sample_len:
            logits = self.logits([text])
            waits = waiting_times(keys[:, len(text)], VOCABULARY.size)
            drawn = fastest(logits, heat, waits) if heat else logits.argmax(dim=-1)
            if int(drawn) == VOCABULARY.eot:
                break
            text.append(int(drawn))
        return text

    def best_beam(self, width: int) -> list[int]:
        """By whisper's own beam search."""
        inference: Any = SimpleNamespace(rearrange_kv_cache=lambda _: None)
        decoder = BeamSearchDecoder(width, VOCABULARY.eot, inference)
        begin, scores = len(self.window.prompt), torch.zeros(width)
        tokens = torch.tensor([list(self.window.prompt)] * width)
        for _ in range(self.rules.sample_len):
            logits = self.logits(tokens[:, begin:].tolist())
            tokens, completed = decoder.update(tokens, logits, scores)
            if completed:
                break
        found, sums = decoder.finalize(tokens[None], scores[None])
        texts = [t[begin : (t == VOCABULARY.eot).nonzero()[0, 0]] for t in found[0]]
        (best,) = MaximumLikelihoodRanker(None).rank([texts], sums)
        return texts[best].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("search", "temperature"),
    [(Search(), 0.0), (Search(), 0.7), (Search(beams=3), 0.0)],
    ids=["greedy", "sampling", "beams"],
)
def test_texts_are_those_of_a_plain_loop(model: Model, search: Search, temperature: float) -> None:
    """All windows in one batch, with different limits."""
    exact = short_model(forms=("kv", "kv"), dtype=torch.float64)
    windows = [
        limited(w, *LIMITS[i + 1], sample_len=14)
        for i, w in enumerate(short_windows(2, temperatures=(temperature,)))
    ]
    found = decode(exact, windows, slots=2, search=search)
    for window, text in zip(windows, found, strict=True):
        loop = PlainLoop(exact, window)
        expected = loop.one_text() if search.beams is None else loop.best_beam(search.beams)
        assert list(text.tokens) == expected
    assert sum(len(text.tokens) for text in found) > 14


@pytest.mark.parametrize("limits", LIMITS[1:4])
def test_a_draft_is_accepted_as_far_as_its_limits_go(
    model: Model, limits: tuple[float, int]
) -> None:
    """All of a text that follows them; of one that repeats itself, the part before."""
    window = limited(short_windows(1)[0], 1.0, 0)
    (free,) = decode(model, [window], slots=1)
    window = limited(window, *limits)
    (expected,) = decode(model, [window], slots=1)
    assert free.tokens != expected.tokens
    for draft in (expected.tokens, free.tokens):
        drafted = replace(window, draft=draft[:-1])
        (found,) = decode(model, [drafted], slots=1)
        assert_same([found], [expected])
        common = next(
            (i for i, (a, b) in enumerate(zip(draft, expected.tokens, strict=False)) if a != b),
            len(draft) - 1,
        )
        assert found.drafted == common


def test_a_preempted_text_goes_on_within_its_limits(model: Model) -> None:
    asked = [limited(w, 1.3, 3, sample_len=130) for w in short_windows(4)]
    expected = decode(model, asked, slots=4)
    engine = Engine(model, VOCABULARY, 4, pages=28)
    answers = run(engine, dict(enumerate(asked)))
    assert engine.preemptions > 0
    assert_same([a for i in range(4) for a in answers[i] if isinstance(a, Decoded)], expected)


def test_off_costs_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor is allocated, and nothing is called, until a text has limits."""
    monkeypatch.setattr(Repetition, "apply", lambda *_: pytest.fail("it was called"))
    engine = Engine(model, VOCABULARY, 2)
    run(engine, dict(enumerate(limited(w, 1.0, 0) for w in short_windows(2))))
    (runner,) = engine.group_runners
    assert Repetition not in runner.state.filters.made
    monkeypatch.undo()
    run(engine, {0: limited(short_windows(1)[0], 1.2, 0)})
    assert Repetition in runner.state.filters.made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:divide by zero")  # the interpreter's log(0)
@pytest.mark.parametrize("search", [None, Search(beams=2)])
def test_limits_are_part_of_the_graphs(search: Search | None) -> None:
    """On a pretend GPU: texts with and without limits, in recorded steps that read nothing."""
    asked = [limited(w, *LIMITS[i % 4], sample_len=24) for i, w in enumerate(requests(4))]
    assert_recorded_like_a_cpu(asked, search)


def test_verify_reads_each_position_once(model: Model) -> None:
    """A draft that repeats itself is cut where its limits cut it, whatever comes after."""
    window = limited(replace(short_windows(3)[2], attempt=Attempt()), 1.0, 2)
    draft = (300, 301, 300, 301, 300)
    logits = torch.full((len(draft), VOCABULARY.size), -20.0)
    for row, token in enumerate(draft):
        logits[row, token] = 5.0
    filters = Filters(1, VOCABULARY, CPU)
    assert window.rules is not None and not filters.prepare([window.rules])
    found = verify(window, draft, logits, filters, model.plan.kernels)
    assert found.tokens == draft[:3]
