"""Drafts: the same texts in fewer steps, whatever was drafted."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import Mock, patch

import pytest

from slimwhisper.cache.forms import all_forms
from slimwhisper.engine.passes import usable_draft
from slimwhisper.engine.requests import Attempt, Decoded, Search, Window
from slimwhisper.model.model import Model
from tests.support.windows import (
    SEARCHES,
    SHORT,
    VOCABULARY,
    assert_same,
    decode,
    rules_of,
    short_model,
    short_windows,
)

EOT = VOCABULARY.eot


@pytest.fixture(scope="module")
def asked() -> list[Window]:
    return short_windows(6, 12)


@pytest.fixture(scope="module")
def plain(model: Model, asked: list[Window]) -> list[Decoded]:
    return decode(model, asked, 3)


def drafted(asked: Sequence[Window], drafts: Sequence[Sequence[int]]) -> list[Window]:
    return [replace(w, draft=tuple(d)) for w, d in zip(asked, drafts, strict=True)]


def spoiled(tokens: Sequence[int], at: int) -> list[int]:
    """The tokens with another one at an index, which may be their end."""
    other = 50 if at < len(tokens) and tokens[at] == 40 else 40
    return [*tokens[:at], other, *tokens[at + 1 :]]


def test_the_same_texts_wherever_the_draft_is_wrong(
    model: Model, asked: list[Window], plain: list[Decoded]
) -> None:
    """Or where there is nothing usable in it; a text of 12 tokens has at most 11 from its draft."""
    rights = [(0, 0, 0, 0, 0, 0), (1,) * 6, (5, 0, 11, 3, 5, 1), (11,) * 6]
    cases = [([spoiled(p.tokens, n) for p, n in zip(plain, r, strict=True)], r) for r in rights]
    tokens = [list(p.tokens) for p in plain]
    junk = [[], [EOT], tokens[2] * 40, [VOCABULARY.sot], [0] * 500, [EOT, 5]]
    for drafts, right in (*cases, (junk, (0, 0, 11, 0, 0, 0))):
        found = decode(model, drafted(asked, drafts), 3)
        assert_same(found, plain)
        assert [f.drafted for f in found] == list(right)


def test_right_drafts_are_read_in_one_pass(
    model: Model, asked: list[Window], plain: list[Decoded]
) -> None:
    """Of windows that came encoded: on a CPU, too, their texts start together, and have ended."""
    mels = [w.mel for w in asked if w.mel is not None]
    encoded = [
        replace(w, mel=model.encoder(mel[None])[0]) for w, mel in zip(asked, mels, strict=True)
    ]
    with patch.object(model, "decoder", Mock(wraps=model.decoder)) as decoder:
        found = decode(model, drafted(encoded, [p.tokens for p in plain]), 6)
    assert_same(found, plain)
    assert decoder.prefill.call_count == 1 and decoder.step.call_count <= 2
    assert all(f.drafted >= len(f.tokens) - 1 for f in found)


def test_where_there_is_no_room() -> None:
    rules, context, draft = rules_of(), SHORT.n_text_ctx, (1,) * 50
    window = Window(None, (7,) * (context - 3), 0, rules, draft=draft)
    assert len(usable_draft(window, draft, context, EOT)) == 3  # and one token more is sampled
    for without in (
        replace(window, prompt=(7,) * context),
        replace(window, attempt=Attempt(0.2)),
        replace(window, rules=None),
    ):
        assert usable_draft(without, draft, context, EOT) == ()


@pytest.mark.parametrize(("search", "temperatures"), [SEARCHES[1], SEARCHES[-1]])
def test_other_searches_take_no_draft(
    model: Model, search: Search | None, temperatures: Sequence[float]
) -> None:
    requests = short_windows(4, temperatures=temperatures)
    expected = decode(model, requests, 3, search)
    found = decode(model, drafted(requests, [e.tokens for e in expected]), 3, search)
    assert_same(found, expected)
    greedy = search is not None and search.beams is None
    cold = [greedy and w.attempt.temperature == 0 for w in requests]
    assert [f.drafted > 0 for f in found] == cold


@pytest.mark.parametrize("name", [n for n, f in all_forms().items() if "self" in f.attentions])
def test_forms_that_cannot_take_tokens_back(name: str) -> None:
    model = short_model(forms=("e", name))
    assert model.plan.may_draft == (all_forms()[name].exact and not name.endswith("8"))
    requests = short_windows(2, 8)
    expected = decode(model, requests, 2)
    found = decode(model, drafted(requests, [spoiled(e.tokens, 4) for e in expected]), 2)
    assert_same(found, expected)
    assert all((f.drafted > 0) == model.plan.may_draft for f in found)
