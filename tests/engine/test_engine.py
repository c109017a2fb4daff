"""The engine: slots, refill, moves, second requests, and the independence of rows."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, wraps
from unittest.mock import Mock, patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slimwhisper.cache.forms import all_forms
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine import passes
from slimwhisper.engine.engine import LIVE_PREFETCH, Engine
from slimwhisper.engine.passes import usable_draft
from slimwhisper.engine.requests import (
    Alignment,
    Answer,
    Attempt,
    Decoded,
    Languages,
    Search,
    Window,
)
from slimwhisper.engine.scheduler import Results
from slimwhisper.longform.requests import make_rules
from slimwhisper.model.model import Model
from slimwhisper.options import Options
from slimwhisper.tokens.vocabulary import get_tokenizer
from slimwhisper.types import MEL_FRAMES_PER_POSITION
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.fuzz import examples
from tests.support.marks import slow
from tests.support.windows import (
    CPU,
    SEARCHES,
    SHORT,
    TOKENIZER,
    VOCABULARY,
    Asked,
    Asker,
    answers,
    assert_same,
    assert_same_answers,
    decode,
    mel,
    of_every_kind,
    rules_of,
    run,
    short_model,
    short_windows,
    step,
    with_rules,
)

SEVERAL = [*SEARCHES[:2], SEARCHES[4], (Search(beams=4, patience=0.5), (0.0,))]


@cache
def each_alone(
    forms: tuple[str, str], search: Search | None, temperatures: tuple[float, ...]
) -> tuple[Model, list[Asked], list[list[Answer]]]:
    model = short_model(forms=forms)
    every = of_every_kind(short_windows(7, temperatures=temperatures), model.plan.exact_cross)
    with patch.object(model, "encoder", wraps=model.encoder) as encoder:
        alone = [answers(Engine(model, 1, search), [asked])[0] for asked in every]
    # second requests read the audio that is there, and say the same of it
    requests = [request for asked in every for request in (asked.window, *asked.then)]
    sent = [r for r in requests if isinstance(r, Window) and r.mel is not None]
    assert sum(len(call.args[0]) for call in encoder.call_args_list) == len(sent) == 9
    assert_same_answers([alone[2][1:]], [alone[2][:1]])
    (_, aligned, hot), before = alone[1], len(TOKENIZER.sot_sequence) + 1
    assert isinstance(hot, Decoded) and hot.temperature == 0.6
    assert isinstance(aligned, Alignment) and len(aligned.probs) == 2
    assert aligned.scores.shape == (1, before + 3, SHORT.n_audio_ctx)
    assert [len(found) for found in alone] == [1 + len(asked.then) for asked in every]
    assert len({found[0].tokens for found in alone if isinstance(found[0], Decoded)}) >= 7
    return model, every, alone


@pytest.mark.parametrize(
    ("forms", "search", "temperatures"),
    [
        *((("e", "x"), *how) for how in SEVERAL),
        (("kv", "kv"), *SEARCHES[4]),
        (("sparq_latent:k=99", "keyformer:budget=8"), *SEARCHES[0]),
        (("compact:merge=0.3", "keyformer_latent:budget=8"), Search(beams=2), (0.0,)),
        (("sparse", "sparq:k=6"), *SEARCHES[0]),
    ],
)
@examples(3)
@given(
    chosen=st.lists(st.integers(0, 7), min_size=4, max_size=7).filter(lambda c: len({*c}) > 2),
    slots=st.integers(2, 4),
    check_every=st.sampled_from([None, 1, 64]),
)
def test_answers_do_not_depend_on_neighbours(
    forms: tuple[str, str],
    search: Search | None,
    temperatures: tuple[float, ...],
    chosen: list[int],
    slots: int,
    check_every: int | None,
) -> None:
    """Nor on the order in which windows come, how many are decoded together, or how often somebody
    looks whether they have ended.
    """
    model, every, alone = each_alone(forms, search, temperatures)
    found = answers(Engine(model, slots, search, check_every), [every[i] for i in chosen])
    assert_same_answers(found, [alone[i] for i in chosen])


def test_no_row_waits_for_another_s_end(model: Model) -> None:
    """While windows wait, every step runs with all slots."""
    with patch.object(model.decoder, "step", wraps=model.decoder.step) as spy:
        total = sum(len(d.tokens) for d in decode(model, short_windows(9), slots=3))
    batches = [len(call.args[0]) for call in spy.call_args_list]
    assert max(batches) == 3
    # rows shrink only when nothing waits any more: at most the two slots' last windows
    tail = next(i for i in range(len(batches)) if all(b < 3 for b in batches[i:]))
    assert all(b == 3 for b in batches[:tail])
    assert sum(batches) <= total


def test_language_requests_among_others() -> None:
    dims = replace(tiny_dims(multilingual=True), n_audio_ctx=SHORT.n_audio_ctx)
    model = Model(Checkpoint("random", dims, random_state(dims, seed=1)), CPU, torch.float32)
    tokenizer, rules = get_tokenizer(dims), make_rules(dims, Options(sample_len=5))
    text = Window(None, tokenizer.sot_sequence, 0, rules)
    ask = [Asked(Window(mel(i), (tokenizer.sot,), 0, None), (text,) * (i % 2)) for i in range(6)]
    alone = [answers(Engine(model, 1), [asked])[0] for asked in ask]
    for ours, others in zip(answers(Engine(model, 4), ask), alone, strict=True):
        (found, *texts), (expected, *same) = ours, others
        assert isinstance(found, Languages) and isinstance(expected, Languages)
        assert len(found.probs) == 99 and sum(found.probs.values()) == pytest.approx(1)
        assert found.probs == pytest.approx(expected.probs, rel=1e-4, abs=1e-6)
        assert_same_answers([texts], [same])
    assert [len(ours) for ours in alone] == [1, 2] * 3


@pytest.mark.parametrize("search", [None, Search(beams=3, samples=2)], ids=["greedy", "beams"])
def test_windows_that_are_given_up_leave_soon(model: Model, search: Search | None) -> None:
    """Those that decode, wait for a slot, or are to be decoded again; the others go on."""
    requests = short_windows(4, 40)
    (expected,) = decode(model, requests[1:2], 1, search)
    engine = Engine(model, 3, search)
    short = Window(requests[2].mel, requests[2].prompt, 0, rules_of(sample_len=2))
    again = Asker(then=lambda *_: Attempt())
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
    assert engine.room == engine.slots


@pytest.mark.parametrize(
    ("search", "temperatures"),
    [(None, (0.0,)), *slow((Search(beams=3, samples=2), (0.0, 0.0, 0.8)))],
)
def test_windows_wait_for_pages(
    model: Model, search: Search | None, temperatures: Sequence[float]
) -> None:
    """Pages for the whole context of one window, and many texts of a quarter of it: whoever gives
    pages back begins again, and every text is the same.
    """
    requests = [with_rules(w, sample_len=100) for w in short_windows(9, temperatures=temperatures)]
    expected = decode(model, requests, 3, search)
    pages = (search or Search()).least_pages(SHORT.n_text_ctx)
    engine = Engine(model, 9, search, pages=pages)
    done = run(engine, dict(enumerate(requests)))
    assert_same([done[i][0] for i in range(len(requests))], expected)
    assert engine.scheduler.preemptions and engine.pool.peak > 0.8 * pages
    assert engine.pool.used == 0


def test_the_seed_is_the_draw_and_the_best_of_several_is_kept(model: Model) -> None:
    """The first of three draws is the one draw: three are never worse."""
    windows = short_windows(6, 8)

    def drawn(seed: int, samples: int = 1) -> list[Decoded]:
        tried = [Attempt(1.0, (seed, i)) for i in range(6)]
        asked = [replace(w, attempt=a) for w, a in zip(windows, tried, strict=True)]
        return decode(model, asked, 3, Search(samples=samples))

    one, three = drawn(0), drawn(0, 3)
    assert_same(drawn(0), one)
    assert all(a.tokens != b.tokens for a, b in zip(drawn(1), one, strict=True))

    def rank(found: Decoded) -> float:
        return found.avg_logprob * (len(found.tokens) + 1) / max(1, len(found.tokens))

    gains = [rank(best) - rank(first) for first, best in zip(one, three, strict=True)]
    assert min(gains) >= -1e-5 and sum(gain > 1e-3 for gain in gains) >= 2


# Windows as long as their audio: decoded as by a model whose windows all have that length


FRAMES = (100, 500, 300, 100, 200, 500)  # of the windows; 500 are whole


def cut(windows: Sequence[Window], frames: Sequence[int] = FRAMES) -> list[Window]:
    """The windows with so many mel frames."""
    pairs = zip(windows, frames, strict=True)
    return [replace(w, mel=w.mel[:, :n]) for w, n in pairs if w.mel is not None]


@pytest.mark.parametrize(
    ("forms", "search", "temperatures"),
    [(("e", "x"), *SEARCHES[-1]), (("kv", "kv"), *SEARCHES[0])],
    ids=str,
)
def test_a_window_of_its_own_length(
    forms: tuple[str, str], search: Search | None, temperatures: Sequence[float]
) -> None:
    model = short_model(forms=forms)
    assert not model.plan.fallbacks
    for window in cut(short_windows(6, temperatures=temperatures)):
        assert window.mel is not None
        shorter = model.shortened(window.mel.shape[1] // MEL_FRAMES_PER_POSITION)
        assert_same(*(decode(m, [window], 1, search) for m in (model, shorter)))


def test_whole_windows_alone_read_without_lengths(model: Model) -> None:
    engine = Engine(model, 3)
    run(engine, dict(enumerate(short_windows(4))))
    cross = engine.runner.cross
    assert cross.all_whole
    run(engine, dict(enumerate(cut(short_windows(6)))))
    assert not cross.all_whole
    assert set(cross.lengths.tolist()) <= {f // MEL_FRAMES_PER_POSITION for f in FRAMES}


def test_encoder_gets_windows_of_one_length(model: Model) -> None:
    """On a CPU as many as have the positions of a whole window."""
    windows = cut(short_windows(8), (100, 200, 100, 500, 100, 200, 100, 100))
    with patch.object(model, "encoder", wraps=model.encoder) as encoder:
        engine = Engine(model, 8)
        run(engine, dict(enumerate(windows)))
    budget = engine.encode_batch * SHORT.window_frames
    shapes = [call.args[0].shape[::2] for call in encoder.call_args_list]
    assert sum(count for count, _ in shapes) == 8
    assert {frames for _, frames in shapes} == {100, 200, 500}
    assert max(count * frames for count, frames in shapes) <= budget
    assert len(shapes) == 3 + (budget < 5 * 100) + (budget < 2 * 200)


# Drafts: the same texts in fewer steps, whatever was drafted


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


# An encoder in a thread of its own on a CPU: the same answers, and torch's threads given back


Test = Callable[..., None]


def in_a_thread(test: Test) -> Test:
    """It keeps the number of threads that it was given, and so does this one."""

    @wraps(test)
    def called(**fixtures: object) -> None:
        before = torch.get_num_threads()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test, **fixtures).result()
        assert torch.get_num_threads() == before

    return called


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "usual_threads", lambda: 4)


def watched(model: Model, names: list[str]) -> Model:
    """The names of the threads in which it encodes."""
    encode = model.encoder

    def call(mel: Tensor) -> Tensor:
        names.append(f"{threading.current_thread().name}, {torch.get_num_threads()}")
        return encode(mel)

    model.encoder = call  # type: ignore[assignment]
    return model


@in_a_thread
def test_the_same_answers(four: None) -> None:
    requests = short_windows(9)
    expected = decode(short_model(), requests, 3)
    names: list[str] = []
    engine = Engine(watched(short_model(), names), 3)
    for share in (True, False, True):
        engine.share_cores(share)
        assert engine.prefetch == (LIVE_PREFETCH if share else engine.encode_batch)
        assert torch.get_num_threads() == (2 if share else 4)
        done = run(engine, dict(enumerate(requests)))
        found = [done[i][0] for i in range(len(requests))]
        assert all(isinstance(f, Decoded) for f in found)
        assert_same(found, expected)  # type: ignore[arg-type]
    engine.share_cores(False)
    assert {n for n in names if n.startswith("slimwhisper-encoder")} == {"slimwhisper-encoder_0, 2"}
    assert sum(n.startswith("slimwhisper-encoder") for n in names) == 18, "one window at a time"
    assert 0 < sum(n.endswith(", 4") for n in names) <= 9


@in_a_thread
def test_windows_that_are_given_up_while_they_are_encoded(four: None) -> None:
    release, started = threading.Event(), threading.Event()
    model = short_model()
    encode = model.encoder

    def slow(mel: Tensor) -> Tensor:
        started.set()
        assert release.wait(10)
        return encode(mel)

    model.encoder = slow  # type: ignore[assignment]
    engine = Engine(model, 2)
    engine.share_cores(True)
    first, second = short_windows(2)
    owners = Asker(), Asker()
    engine.submit(owners[0], first)
    engine.submit(owners[1], second)
    threading.Thread(target=lambda: started.wait(10) and release.set()).start()
    plan = engine.scheduler.plan(2, synchronous=False)
    engine.runner.encode(plan, Results())
    engine.stop(owners[:1])
    while not engine.idle:
        step(engine)
    assert engine.scheduler.free == 2
    engine.share_cores(False)
    assert [len(owner.answers) for owner in owners] == [0, 1]


@in_a_thread
def test_an_encoder_that_fails_is_reported(four: None) -> None:
    model = short_model()
    model.encoder = Mock(side_effect=RuntimeError("broken"))  # type: ignore[assignment]
    engine = Engine(model, 1)
    engine.share_cores(True)
    engine.submit(Asker(), short_windows(1)[0])
    with pytest.raises(RuntimeError, match="broken"):
        step(engine)
    engine.share_cores(False)


@in_a_thread
def test_one_thread_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "usual_threads", lambda: 1)
    engine = Engine(short_model(), 1)
    engine.share_cores(True)
    assert engine.prefetch == engine.encode_batch and torch.get_num_threads() == 1
