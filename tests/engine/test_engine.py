"""The engine: slots, refill, moves, second requests, and the independence of rows."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slimwhisper.cache.rows import PAGE
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import (
    Align,
    Alignment,
    Answer,
    Attempt,
    Decoded,
    Languages,
    Request,
    Retry,
    Search,
    Window,
)
from slimwhisper.engine.rows import Snapshot
from slimwhisper.errors import OptionError
from slimwhisper.longform.requests import make_rules
from slimwhisper.model.model import Guard, Model
from slimwhisper.options import Options
from slimwhisper.tokens.vocabulary import get_tokenizer
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.fuzz import examples
from tests.support.reference import set_spectrum
from tests.support.windows import (
    CPU,
    SEARCHES,
    SHORT,
    TOKENIZER,
    Asker,
    assert_same,
    decode,
    mel,
    run,
    short_windows,
    step,
)

SEVERAL = [*SEARCHES[:2], SEARCHES[4], (Search(beams=4, patience=0.5), (0.0,))]


@pytest.mark.parametrize(("search", "temperatures"), SEVERAL)
@examples(5)
@given(order=st.permutations(range(5)), slots=st.integers(2, 5))
def test_results_do_not_depend_on_neighbours(
    model: Model,
    search: Search | None,
    temperatures: tuple[float, ...],
    order: list[int],
    slots: int,
) -> None:
    """Nor on the order in which windows come, or on how many are decoded together."""
    requests, alone = each_alone(model, search, temperatures)
    found = decode(model, [requests[i] for i in order], slots, search)
    assert_same(found, [alone[i] for i in order])


@cache
def each_alone(
    model: Model, search: Search | None, temperatures: tuple[float, ...]
) -> tuple[list[Window], list[Decoded]]:
    requests = short_windows(5, temperatures=temperatures)
    alone = [decode(model, [r], 1, search)[0] for r in requests]
    assert len({d.tokens for d in alone}) == 5
    assert [d.temperature for d in alone] == [r.attempt.temperature for r in requests]
    return requests, alone


@pytest.mark.parametrize(("search", "temperatures"), [SEARCHES[0], SEARCHES[4]])
def test_looking_less_often_changes_nothing(
    model: Model,
    search: Search | None,
    temperatures: Sequence[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A text that has ended stays as it is until somebody looks: no question at every token."""
    requests = [*short_windows(4, temperatures=temperatures), *short_windows(2, 40, temperatures)]
    looks, counts, take = list[int](), list[int](), Snapshot.__init__
    monkeypatch.setattr(Snapshot, "__init__", lambda *a: (looks.append(1), take(*a))[1])
    expected = decode(model, requests, 3, search, check_every=1)
    for every in (5, 64):
        counts.append(len(looks))
        looks.clear()
        found = decode(model, requests, 3, search, check_every=every)
        assert [f.tokens for f in found] == [e.tokens for e in expected]
        assert [f.avg_logprob for f in found] == pytest.approx([e.avg_logprob for e in expected])
    assert counts[0] > 2 * counts[1] > 2 * len(looks)


def test_no_row_waits_for_another_s_end(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """While windows wait, every step runs with all slots."""
    batches: list[int] = []
    step = model.decoder.step

    def spy(tokens: Tensor, *rest: object) -> Tensor:
        batches.append(len(tokens))
        return step(tokens, *rest)

    monkeypatch.setattr(model.decoder, "step", spy)
    requests = short_windows(9)
    total = sum(len(d.tokens) for d in decode(model, requests, slots=3))
    assert max(batches) == 3
    # rows shrink only when nothing waits any more: at most the two slots' last windows
    tail = next(i for i in range(len(batches)) if all(b < 3 for b in batches[i:]))
    assert all(b == 3 for b in batches[:tail])
    assert sum(batches) <= total


@pytest.mark.parametrize(
    ("forms", "search"),
    [
        (("e", "x"), None),
        *((forms, Search(beams=3, samples=2)) for forms in (("kv", "kv"), ("v", "k"))),
    ],
)
def test_moves_keep_the_right_audio(forms: tuple[str, str], search: Search | None) -> None:
    """Windows come, go and begin again in every order; each one's text is still of its audio."""
    dims = tiny_dims(multilingual=False, width=32, heads=2, text_layers=1)
    dims = replace(dims, n_audio_ctx=SHORT.n_audio_ctx)
    state = set_spectrum(random_state(dims, seed=1), dims, 3.0)
    checkpoint = Checkpoint("random", dims, state)
    model = Model(checkpoint, CPU, torch.float32, forms, Guard(mel=mel(0)))
    assert not model.fallbacks
    tries = (Attempt(0.6, (1,)), Attempt(0.0), Attempt(0.9, (2,)))

    def answers(requests: dict[int, Window], slots: int) -> dict[int, list[Answer]]:
        seen = dict.fromkeys(requests, 0)

        def then(tag: int, _: Answer) -> Request | None:
            seen[tag] += 1
            left = seen[tag] <= (tag + 1) % 4  # none, or up to three more attempts
            return Retry(tries[seen[tag] - 1]) if left else None

        return run(Engine(model, slots, search), requests, then)

    numbered = {
        i: Window(w.mel, w.prompt, w.sot_index, make_rules(dims, Options(sample_len=2 + 3 * i % 7)))
        for i, w in enumerate(short_windows(5))
    }
    alone = {i: answers({i: w}, 1)[i] for i, w in numbered.items()}
    assert [len(a) for a in alone.values()] == [2, 3, 4, 1, 2]
    assert len({a[0].tokens for a in alone.values()}) >= 4
    for slots in (2, 4):
        together = answers(numbered, slots)
        for i in numbered:
            assert [a.tokens for a in together[i]] == [a.tokens for a in alone[i]]


def test_second_requests_read_the_audio_that_is_there(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retry, Align, and a Window without audio: the encoder has run once for each window."""
    encoded: list[int] = []
    encoder = model.encoder
    monkeypatch.setattr(model, "encoder", lambda mels: encoded.append(len(mels)) or encoder(mels))
    requests = short_windows(5, sample_len=12)
    before = (*TOKENIZER.sot_sequence, TOKENIZER.no_timestamps)
    stages: dict[int, int] = dict.fromkeys(range(5), 0)

    def then(tag: int, _: Answer) -> Request | None:
        stages[tag] += 1
        own = requests[tag]
        return {
            1: Align(before, tuple(range(500, 505 + tag))),
            2: Retry(Attempt(0.8, (tag,))),
            3: Window(None, requests[4].prompt, requests[4].sot_index, own.rules),
            4: Window(None, own.prompt, own.sot_index, own.rules),
        }.get(stages[tag])

    done = run(Engine(model, 3), dict(enumerate(requests)), then)
    assert sum(encoded) == 5
    for i, (first, aligned, hot, other, again) in done.items():
        assert_same([again], [first])
        assert (hot.temperature, other.temperature) == (0.8, 0.0)
        assert isinstance(aligned, Alignment)
        assert aligned.scores.shape == (1, len(before) + 5 + i + 1, SHORT.n_audio_ctx)
        assert len(aligned.probs) == 5 + i
        (alone,) = run(
            Engine(model, 1),
            {i: requests[i]},
            lambda tag, a: Align(before, aligned.text) if isinstance(a, Decoded) else None,  # noqa: B023
        ).values()
        torch.testing.assert_close(aligned.scores, alone[1].scores, rtol=1e-4, atol=1e-4)
        assert aligned.probs == pytest.approx(alone[1].probs, rel=1e-3)


def test_sample_len_and_context_bound_the_text(model: Model) -> None:
    (request,) = short_windows(1, sample_len=3)
    assert len(decode(model, [request], 1)[0].tokens) <= 3
    rules = make_rules(SHORT, Options())
    prompt = (TOKENIZER.sot_prev, *range(1000, 1000 + 443), *TOKENIZER.sot_sequence)
    full = Window(request.mel, prompt, len(prompt) - 1, rules)
    for search in (None, Search(beams=2)):
        tokens = decode(model, [full], 1, search)[0].tokens
        assert len(tokens) <= SHORT.n_text_ctx + 1 - len(prompt) == 4


def test_room_counts_what_waits(model: Model) -> None:
    engine = Engine(model, 2)
    assert (engine.idle, engine.room, engine.free) == (True, 2, 2)
    for window in short_windows(3):
        engine.submit(Asker(), window)
    assert (engine.idle, engine.room, engine.free) == (False, -1, 2)


@pytest.mark.parametrize("search", [None, Search(beams=3)])
def test_nan_in_one_row_stays_there(model: Model, search: Search | None) -> None:
    """A window whose numbers overflow is reported as NaN; its neighbours and heirs are not."""
    good = short_windows(3)
    expected = decode(model, good, 1, search)
    bad = Window(mel(0) * float("nan"), good[0].prompt, 0, good[0].rules)
    done = decode(model, [good[0], bad, good[1], good[2]], 2, search)
    assert done[1].avg_logprob != done[1].avg_logprob
    assert_same([done[0], *done[2:]], expected)


def test_language_requests_among_others() -> None:
    dims = replace(tiny_dims(multilingual=True), n_audio_ctx=SHORT.n_audio_ctx)
    model = Model(Checkpoint("random", dims, random_state(dims, seed=1)), CPU, torch.float32)
    tokenizer, rules = get_tokenizer(dims), make_rules(dims, Options(sample_len=5))
    ask = [Window(mel(i), (tokenizer.sot,), 0, None) for i in range(6)]
    text = Window(None, tokenizer.sot_sequence, 0, rules)

    def then(tag: int, answer: Answer) -> Request | None:
        return text if isinstance(answer, Languages) and tag % 2 else None

    alone = {i: run(Engine(model, 1), {i: w}, then)[i] for i, w in enumerate(ask)}
    together = run(Engine(model, 4), dict(enumerate(ask)), then)
    for i in range(6):
        assert len(together[i]) == 1 + i % 2
        probs, expected = together[i][0].probs, alone[i][0].probs
        assert len(probs) == 99
        assert sum(probs.values()) == pytest.approx(1)
        assert probs == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert [a.tokens for a in together[i][1:]] == [a.tokens for a in alone[i][1:]]


@pytest.mark.parametrize("search", [None, Search(beams=3, samples=2)], ids=["greedy", "beams"])
def test_windows_that_are_given_up_leave_soon(model: Model, search: Search | None) -> None:
    """Those that decode, wait for a slot, or are to be decoded again; the others go on."""
    requests = short_windows(4, 40)
    (expected,) = decode(model, requests[1:2], 1, search)
    engine = Engine(model, 3, search)
    short = Window(requests[2].mel, requests[2].prompt, 0, make_rules(SHORT, Options(sample_len=2)))
    again = Asker(then=lambda *_: Retry(Attempt()))
    zero, one, three = Asker(), Asker(), Asker()
    for owner, window in zip(
        (zero, one, again, three), [*requests[:2], short, requests[3]], strict=True
    ):
        engine.submit(owner, window)
    while not again.answers:
        step(engine)
    assert not (zero.answers or one.answers or three.answers)
    engine.stop((zero, again, three))
    step(engine)
    assert len(zero.answers) == 1
    while not engine.idle:
        step(engine)
    assert [len(owner.answers) for owner in (zero, one, again, three)] == [1, 1, 1, 0]
    assert_same(one.answers, [expected])
    assert engine.free == engine.slots


@pytest.mark.parametrize(
    ("search", "temperatures"),
    [
        (None, (0.0,)),
        pytest.param(Search(beams=3, samples=2), (0.0, 0.0, 0.8), marks=pytest.mark.slow),
    ],
)
def test_windows_wait_for_pages(
    model: Model, search: Search | None, temperatures: Sequence[float]
) -> None:
    """Pages for the whole context of one window, and many texts of a quarter of it: whoever gives
    pages back begins again, and every text is the same.
    """
    requests = [
        replace(w, rules=replace(w.rules, sample_len=100))  # type: ignore[type-var]
        for w in short_windows(9, temperatures=temperatures)
    ]
    expected = decode(model, requests, 3, search)
    pages = (search or Search()).least_pages(SHORT.n_text_ctx)
    engine = Engine(model, 9, search, pages=pages)
    done = run(engine, dict(enumerate(requests)))
    assert_same([done[i][0] for i in range(len(requests))], expected)
    assert engine.scheduler.preemptions and engine.pool.peak > 0.8 * pages
    assert engine.pool.used == 0


def test_a_window_that_may_never_fit_is_refused_at_once(model: Model) -> None:
    least = 5 * SHORT.n_text_ctx // PAGE
    with pytest.raises(OptionError, match=rf"cache_memory.* {least - 1} pages .* {least}"):
        Engine(model, 2, Search(beams=5), pages=least - 1)
    Engine(model, 2, Search(beams=5), pages=least)
