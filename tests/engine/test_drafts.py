"""Drafts: the same texts in fewer steps, whatever was drafted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.forms import all_forms
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.filters import FILTERS, LogitFilter
from slimwhisper.engine.hot_words import HotWordFilter
from slimwhisper.engine.requests import Answer, Attempt, Decoded, Request, Retry, Search, Window
from slimwhisper.engine.verification import may_draft, usable_draft
from slimwhisper.longform.requests import hot_words, make_rules
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.model import Model
from slimwhisper.options import Options
from tests.support.pretend.cuda import pretend_cuda
from tests.support.windows import (
    CPU,
    SEARCHES,
    SHORT,
    VOCABULARY,
    assert_same,
    decode,
    run,
    short_model,
    short_windows,
)


@pytest.fixture(scope="module")
def asked() -> list[Window]:
    return short_windows(6, 12)


@pytest.fixture(scope="module")
def plain(model: Model, asked: list[Window]) -> list[Decoded]:
    return decode(model, asked, 3)


def drafted(asked: Sequence[Window], drafts: Sequence[Sequence[int]]) -> list[Window]:
    return [replace(w, draft=tuple(d)) for w, d in zip(asked, drafts, strict=True)]


def common(draft: Sequence[int], tokens: Sequence[int], room: int) -> int:
    """How many tokens both begin with, at most `room`."""
    pairs = enumerate(zip(draft[:room], tokens, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(draft), len(tokens), room))


def spoiled(tokens: Sequence[int], at: int) -> list[int]:
    """The tokens with another one at an index, which may be their end."""
    other = 50 if at < len(tokens) and tokens[at] == 40 else 40
    return [*tokens[:at], other, *tokens[at + 1 :]]


def test_the_same_texts_wherever_the_draft_is_wrong(
    model: Model, asked: list[Window], plain: list[Decoded]
) -> None:
    for at in (0, 1, 5, 11):
        drafts = [spoiled(p.tokens, at) for p in plain]
        found = decode(model, drafted(asked, drafts), 3)
        assert_same(found, plain)
        expected = [common(d, p.tokens, 11) for d, p in zip(drafts, plain, strict=True)]
        assert [f.drafted for f in found] == expected
    assert max(expected) > 5


def test_a_right_draft_takes_one_step(
    model: Model, asked: list[Window], plain: list[Decoded], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    old = type(model.decoder).step
    monkeypatch.setattr(
        type(model.decoder), "step", lambda self, *a: (steps.append(1), old(self, *a))[1]
    )
    found = decode(model, drafted(asked, [p.tokens for p in plain]), 6)
    assert_same(found, plain)
    assert len(steps) <= 2 and all(f.drafted >= len(f.tokens) - 1 for f in found)


def test_drafts_are_read_together_with_one_product_of_the_logits_each(
    model: Model, asked: list[Window], plain: list[Decoded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of windows that came encoded: on a CPU, too, their texts start in one pass."""
    drafts = [spoiled(p.tokens, i) for i, p in enumerate(plain)]
    mels = [w.mel for w in asked if w.mel is not None]
    encoded = [
        replace(w, mel=model.encoder(mel[None])[0]) for w, mel in zip(asked, mels, strict=True)
    ]
    passes: list[tuple[str, int]] = []
    for name in ("prefill", "logits"):
        old = getattr(Decoder, name)

        def counted(self: Decoder, x: Tensor, *rest: Any, name: str = name, old: Any = old) -> Any:
            passes.append((name, len(x)))
            return old(self, x, *rest)

        monkeypatch.setattr(Decoder, name, counted)
    found = decode(model, drafted(encoded, drafts), 6)
    assert_same(found, plain)
    lengths = [len(draft) for draft in drafts]
    assert passes[0] == ("prefill", 6) and "prefill" not in [name for name, _ in passes[1:]]
    read = [rows for _, rows in passes[1:7]]
    assert all(2 < rows <= length + 2 for rows, length in zip(read, lengths, strict=True))


def test_nothing_usable_in_a_draft(model: Model, asked: list[Window], plain: list[Decoded]) -> None:
    eot = VOCABULARY.eot
    drafts = [[], [eot], [*plain[2].tokens] * 40, [VOCABULARY.sot], [0] * 500, [eot, 5]]
    found = decode(model, drafted(asked, drafts), 2)
    assert_same(found, plain)
    assert [f.drafted for f in found][:2] == [0, 0] and found[2].drafted == 11


def test_where_there_is_no_room() -> None:
    rules = make_rules(SHORT, Options(sample_len=224 if SHORT.n_text_ctx == 448 else None))
    window = Window(None, (7,) * (SHORT.n_text_ctx - 3), 0, rules, draft=(1,) * 50)
    context, eot = SHORT.n_text_ctx, VOCABULARY.eot
    draft = window.draft
    assert len(usable_draft(window, draft, context, eot)) == 3  # and one token more is sampled
    assert usable_draft(replace(window, prompt=(7,) * context), draft, context, eot) == ()
    assert usable_draft(replace(window, attempt=Attempt(0.2)), draft, context, eot) == ()
    assert usable_draft(replace(window, rules=None), draft, context, eot) == ()


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


def test_another_attempt_begins_anew(
    model: Model, asked: list[Window], plain: list[Decoded]
) -> None:
    def again(tag: int, answer: Answer) -> Request | None:
        hot = isinstance(answer, Decoded) and answer.temperature == 0
        return Retry(Attempt(0.8, (1, tag))) if hot else None

    engine = Engine(model, VOCABULARY, 3)
    expected = run(engine, dict(enumerate(asked)), again)
    requests = drafted(asked, [p.tokens for p in plain])
    found = run(Engine(model, VOCABULARY, 3), dict(enumerate(requests)), again)
    for tag, answers in found.items():
        first, second = answers
        assert isinstance(first, Decoded) and isinstance(second, Decoded)
        assert_same([first, second], expected[tag])
        assert first.drafted and not second.drafted


@pytest.mark.parametrize("name", [n for n, f in all_forms().items() if "self" in f.attentions])
def test_forms_that_cannot_take_tokens_back(name: str) -> None:
    form = all_forms()[name]
    if form.tensors:
        pytest.skip("needs recorded activations; approximate, so `exact` decides")
    model = short_model(forms=("e", name))
    assert may_draft(model.plan) == (form.exact and not name.endswith("8"))
    requests = short_windows(2, 8)
    expected = decode(model, requests, 2)
    found = decode(model, drafted(requests, [spoiled(e.tokens, 4) for e in expected]), 2)
    assert_same(found, expected)
    assert all((f.drafted > 0) == may_draft(model.plan) for f in found)


def test_on_a_gpu(asked: list[Window]) -> None:
    cuda = torch.device("cuda", 1)
    requests = short_windows(3, 6)
    expected = decode(short_model(), requests, 3)
    drafts = [spoiled(e.tokens, i + 1) for i, e in enumerate(expected)]
    with pretend_cuda(count=2):
        engine = Engine(short_model(cuda), VOCABULARY, 3, None, 4)
        found = run(engine, dict(enumerate(drafted(requests, drafts))))
    texts = [found[i][0] for i in range(3)]
    assert_same([t for t in texts if isinstance(t, Decoded)], expected)
    assert [t.drafted for t in texts if isinstance(t, Decoded)] == [1, 2, 3]


@pytest.mark.parametrize("kind", FILTERS)
def test_what_filters_know_of_a_draft_is_what_sampling_leaves(kind: type[LogitFilter]) -> None:
    """Their states along a text on the host, and after each of its tokens on the device."""
    words = hot_words(VOCABULARY, ("new york", "york city"), 2.0)
    rules = replace(make_rules(SHORT, Options(no_repeat_ngram_size=3)), hot_words=words)
    stamps, logit_filter = VOCABULARY.timestamps, kind(1, VOCABULARY, CPU)
    logit_filter.prepare([rules])
    text = (stamps[0], 649, 331, stamps[3], stamps[3], 649, 42, stamps[9], VOCABULARY.eot)
    states = logit_filter.along(rules, text)
    state = tuple(torch.tensor(t[:1]) for t in states)
    for number, token in enumerate([*text, 0]):
        known = zip(logit_filter.state, states, state, strict=True)
        for tensor, along, after in list(known)[: 1 if kind is HotWordFilter else None]:
            assert after.dtype == tensor.dtype
            assert after[0].tolist() == along[number].tolist()
        state = logit_filter.after(state, torch.tensor([token]))
