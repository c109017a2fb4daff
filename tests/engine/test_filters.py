"""Limits on what a text repeats, and hot words: in the engine, against a text's definition."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.filters import Repetition, Texts
from slimwhisper.engine.requests import Attempt, Decoded, Search, Window
from slimwhisper.hot_words.filter import HotWordFilter, hot_words
from slimwhisper.model.model import Model
from tests.support import plain_text
from tests.support.fuzz import examples
from tests.support.plain_text import Phrases, PlainText
from tests.support.windows import (
    CPU,
    GRADED_SEARCHES,
    VOCABULARY,
    assert_same,
    decode,
    rules_of,
    run,
    short_model,
    short_windows,
    with_rules,
)

LIMITS = [(1.0, 0), (1.3, 0), (1.0, 2), (0.7, 3), (50.0, 1), (1.0, 5)]  # penalty, n-gram


@examples(60)
@given(
    texts=st.lists(st.lists(st.integers(0, 8), max_size=24), min_size=1, max_size=9),
    limits=st.lists(st.sampled_from(LIMITS), min_size=9, max_size=9),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_rows_are_limited_as_by_plain_loops(
    texts: list[list[int]], limits: list[tuple[float, int]], dtype: torch.dtype
) -> None:
    """Rows of all lengths and limits side by side; what is behind a text does not count."""
    rows, generator = len(texts), torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 9, generator=generator, dtype=dtype)
    logits[:, 3] = float("-inf")
    padded = torch.randint(9, (rows, 24), generator=generator)
    for row, text in enumerate(texts):
        padded[row, : len(text)] = torch.tensor(text)
    penalties, ngrams = zip(*limits[:rows], strict=True)
    repetition = Repetition(rows, VOCABULARY, CPU)
    state = torch.tensor(penalties, dtype=torch.float64), torch.tensor(ngrams)
    counts, found = torch.tensor([*map(len, texts)]), logits.clone()
    repetition.apply(found, Texts(padded, counts, {repetition: state}), 5)
    for row, (text, limit) in enumerate(zip(texts, limits, strict=False)):
        assert torch.equal(found[row], plain_text.limited(logits[row], text, *limit))


def limited(window: Window, penalty: float, ngram: int, sample_len: int | None = None) -> Window:
    kept = with_rules(window, repetition_penalty=penalty, no_repeat_ngram_size=ngram)
    return with_rules(kept, sample_len=sample_len) if sample_len else kept


@cache
def likely_words(model: Model) -> tuple[str, ...]:
    """Phrases that the model nearly writes: next to those of its texts."""
    tokenizer, phrases = VOCABULARY.tokenizer(), list[str]()
    for text in decode(model, free(6), slots=6):
        for i in range(0, len(text.tokens) - 3, 3):
            phrase = " ".join(tokenizer.decode(list(text.tokens[i : i + 2])).split())
            if phrase and "\ufffd" not in phrase:
                phrases.append(phrase)
    others = ("york\t6", "new city", "seven of nine\t8", "the deal\t7", "in the")
    return (*dict.fromkeys(phrases), *others)


def free(count: int, temperature: float = 0.0, sample_len: int = 14) -> list[Window]:
    """Windows without timestamps."""
    rules = rules_of(without_timestamps=True, sample_len=sample_len)
    windows = short_windows(count, temperatures=(temperature,))
    return [replace(w, rules=rules, logprobs=True) for w in windows]


def biased(window: Window, lines: tuple[str, ...] | None, bonus: float = 5.0) -> Window:
    words = None if lines is None else hot_words(VOCABULARY, lines, bonus)
    return with_rules(window, bonuses=words)


def by_limits(model: Model, windows: Sequence[Window]) -> list[Window]:
    return [limited(w, *LIMITS[i % 6]) for i, w in enumerate(windows)]


def by_words(model: Model, windows: Sequence[Window]) -> list[Window]:
    """None, two lists, and an empty one."""
    lines = likely_words(model)
    lists = [(None, 0), (lines, 5.0), (lines[::2], 9.0), ((), 2.0)]
    return [biased(w, *lists[i % 4]) for i, w in enumerate(windows)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "temperature"),
    [(Search(), 0.0), (Search(), 0.7), (Search(beams=3), 0.0)],
    ids=["greedy", "sampling", "beams"],
)
def test_texts_are_those_of_the_definition(
    model: Model, search: Search, temperature: float
) -> None:
    """All windows in one batch; log-probabilities are those without a bonus."""
    exact = short_model(forms=("kv", "kv"), dtype=torch.float64)
    lines = likely_words(model)
    some = [replace(w, logprobs=True) for w in short_windows(2, 14, (temperature,))]
    (plain,) = free(1, temperature)
    asked = [
        *(limited(w, *LIMITS[i + 2]) for i, w in enumerate(some)),
        biased(plain, lines),
        biased(limited(plain, 50.0, 1), lines),
    ]
    found = decode(exact, asked, slots=4, search=search)
    for window, text in zip(asked, found, strict=True):
        assert window.rules is not None
        phrases = None if window.rules.bonuses is None else Phrases(lines, 5.0)
        definition = PlainText(exact, window, phrases)
        beams = search.beams
        expected, mean = definition.greedy() if beams is None else definition.best_beam(beams)
        assert list(text.tokens) == expected
        assert text.avg_logprob == pytest.approx(mean, abs=1e-5)
        assert sum(text.logprobs) == pytest.approx(mean * (len(expected) + 1), abs=1e-4)
    (without,) = decode(exact, [plain], slots=1, search=search)
    assert len({without.tokens, *(f.tokens for f in found)}) >= 4


@pytest.mark.parametrize(("search", "temperatures"), GRADED_SEARCHES)
def test_texts_side_by_side_are_those_alone(
    model: Model, search: Search | None, temperatures: tuple[float, ...]
) -> None:
    """Those without limits are unchanged to the bit; of words, `test_lists_come_and_go`."""
    plain = short_windows(6, 25, temperatures)
    mixed = by_limits(model, plain)
    found = decode(model, mixed, slots=6, search=search)
    for window, text in zip(mixed, found, strict=True):
        assert window.rules is not None
        assert_same([text], decode(model, [window], slots=1, search=search))
        if ngram := window.rules.no_repeat_ngram_size:
            count = len(text.tokens) - ngram + 1
            assert len({text.tokens[i : i + ngram] for i in range(count)}) == max(count, 0)
    without = decode(model, plain, slots=6, search=search)
    assert found[0] == without[0]
    assert sum(a.tokens != b.tokens for a, b in zip(found, without, strict=True)) >= 2


@pytest.mark.parametrize(("search", "temperatures"), GRADED_SEARCHES)
def test_an_empty_list_changes_nothing_to_the_bit(
    model: Model, search: Search | None, temperatures: tuple[float, ...]
) -> None:
    """Nor do words that no text comes near, or a bonus of 0, side by side with others."""
    asked = [replace(w, logprobs=True) for w in short_windows(5, 25, temperatures)]
    expected = decode(model, asked, slots=3, search=search)
    assert rules_of(hot_words=()) is rules_of()
    lines = tuple(w.partition("\t")[0] for w in likely_words(model))
    for words, bonus in (((), 2.0), (lines, 0.0), (("qzxj vkwq",), 1e-6)):
        found = decode(model, [biased(w, words, bonus) for w in asked], slots=3, search=search)
        assert found == expected


@pytest.mark.parametrize("kind", [Repetition, HotWordFilter])
def test_off_costs_nothing(model: Model, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor is allocated until a text has limits, or words."""
    engine = Engine(model, 2)
    run(engine, dict(enumerate(limited(w, 1.0, 0) for w in short_windows(2))))
    (runner,) = engine.group_runners
    assert kind not in runner.state.filters.made
    run(engine, {0: biased(limited(short_windows(1)[0], 1.2, 0), ("new york",))})
    assert kind in runner.state.filters.made


def test_lists_come_and_go(model: Model) -> None:
    """Texts in progress stay in their lists while new ones replace those that are gone."""
    lines = likely_words(model)
    asked = []
    for i, window in enumerate(short_windows(12, 4)):
        several = biased(window, lines[i % 5 :: 1 + i % 3], 4.0 + i % 5)
        asked.append(limited(several, 1.0, 0, 3 + 9 * (i % 3)))  # they end at different times
    found = decode(model, asked, slots=3)
    for window, text in zip(asked, found, strict=True):
        assert_same([text], decode(model, [window], slots=1))


@pytest.mark.parametrize("change", [by_limits, by_words])
def test_drafts_and_preempted_texts_go_on_within_their_rules(
    model: Model, change: Callable[[Model, Sequence[Window]], list[Window]]
) -> None:
    """A draft is accepted as far as they go; a preempted text goes on in its phrase."""
    plain = free(2, sample_len=40)
    window = change(model, plain)[1]
    ((expected,), (without,)) = (decode(model, [w], slots=1) for w in (window, plain[1]))
    assert expected.tokens != without.tokens
    for draft in (expected.tokens, without.tokens):
        (found,) = decode(model, [replace(window, draft=draft[:-1])], slots=1)
        assert_same([found], [expected])
        pairs = enumerate(zip(draft[:-1], expected.tokens, strict=False))
        assert found.drafted == next((i for i, (a, b) in pairs if a != b), len(draft) - 1)
    asked = [limited(w, 1.3, 3) for w in change(model, free(4, sample_len=130))]
    every = decode(model, asked, slots=4)
    engine = Engine(model, 4, pages=28)
    answers = run(engine, dict(enumerate(asked)))
    assert engine.scheduler.preemptions > 0
    assert_same([a for i in range(4) for a in answers[i] if isinstance(a, Decoded)], every)


def test_timestamps_stay_where_they_are(model: Model) -> None:
    """However large the bonus, greedy texts have their timestamps by the model alone."""
    windows = [biased(w, ("new york", "seven"), 20.0) for w in short_windows(2, 12)]
    found = decode(model, windows, slots=2)
    assert all(text.tokens[0] in VOCABULARY.timestamps for text in found)
    assert all("seven" in VOCABULARY.tokenizer().decode(t.tokens).lower() for t in found)


def test_attempts_of_a_window_share_their_list(model: Model) -> None:
    """Samples are ranked with their bonuses, and answered without."""
    window = biased(replace(free(1)[0], attempt=Attempt(0.8, (0, 1))), likely_words(model))
    (found,) = decode(model, [window], slots=1, search=Search(samples=4))
    mean = sum(found.logprobs) / (len(found.tokens) + 1)
    assert found.avg_logprob == pytest.approx(mean, abs=1e-4)
