"""The engine: slots, refill, and the independence of rows."""

from collections.abc import Sequence

import pytest
import torch
from checkpoints import random_state, tiny_dims
from conftest import noise_bursts
from torch import Tensor

from slimwhisper.cache.base import Rows
from slimwhisper.checkpoint import Checkpoint
from slimwhisper.engine import Engine
from slimwhisper.mel import log_mel
from slimwhisper.model import Model
from slimwhisper.types import Decoded, Options, Window
from slimwhisper.vocabulary import get_tokenizer, get_vocabulary, make_rules

CPU = torch.device("cpu")
DIMS = tiny_dims(multilingual=False, text_layers=2)
TOKENIZER = get_tokenizer(DIMS)
VOCABULARY = get_vocabulary(DIMS)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(Checkpoint("random", DIMS, random_state(DIMS, seed=1)), CPU, torch.float32)


def windows(count: int, sample_len: int | None = None) -> list[Window]:
    """Windows of different audio, prompts of different length, some without timestamps."""
    made = []
    for i in range(count):
        rules = make_rules(
            TOKENIZER,
            DIMS,
            Options(sample_len=sample_len or 8 + 5 * i, without_timestamps=i % 3 == 2),
        )
        before = [TOKENIZER.sot_prev, *range(1000, 1000 + 7 * i)] if i % 2 else []
        mel = log_mel(noise_bursts(5, seed=i), 80)[:, :3000]
        made.append(Window(mel, (*before, *TOKENIZER.sot_sequence), len(before), rules))
    return made


def decode(model: Model, requests: Sequence[Window], slots: int) -> dict[int, Decoded]:
    engine: Engine[int] = Engine(model, VOCABULARY, slots)
    for i, window in enumerate(requests):
        engine.submit(i, window)
    done: dict[int, Decoded] = {}
    while not engine.idle:
        for tag, decoded in engine.step():
            assert tag not in done
            done[tag] = decoded
    return done


def test_results_do_not_depend_on_neighbours(model: Model) -> None:
    requests = windows(7)
    alone = decode(model, requests, slots=1)
    for slots in (2, 3, 7):
        together = decode(model, requests, slots)
        backwards = decode(model, requests[::-1], slots)
        for i in range(7):
            for found in (together[i], backwards[6 - i]):
                assert found.tokens == alone[i].tokens
                assert found.avg_logprob == pytest.approx(alone[i].avg_logprob, abs=1e-4)
                assert found.no_speech_prob == pytest.approx(alone[i].no_speech_prob, abs=1e-6)
    assert len({d.tokens for d in alone.values()}) == 7


def test_a_slot_is_refilled_at_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row waits for another's end: while windows wait, every step runs with all slots."""
    batches: list[int] = []
    step = model.decoder.step

    def spy(tokens: Tensor, *rest: object) -> Tensor:
        batches.append(len(tokens))
        return step(tokens, *rest)

    monkeypatch.setattr(model.decoder, "step", spy)
    requests = windows(9)
    done = decode(model, requests, slots=3)
    assert len(done) == 9
    total = sum(len(d.tokens) for d in done.values())
    assert max(batches) == 3
    # rows shrink only when nothing waits any more: at most the two slots' last windows
    tail = next(i for i in range(len(batches)) if all(b < 3 for b in batches[i:]))
    assert all(b == 3 for b in batches[:tail])
    assert sum(batches) <= total


def test_caches_are_read_in_place(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps never gather slots: rows are always the first ones."""
    groups: list[int | None] = []
    attend = type(model.allocate(1).cross[0]).attend

    def spy(self: object, x: Tensor, rows: Rows) -> Tensor:
        if x.shape[1] == 1:
            groups.append(rows.group)
        return attend(self, x, rows)

    monkeypatch.setattr("slimwhisper.cache.latent.LatentCross.attend", spy)
    requests = [w for w in windows(6) if len(w.prompt) > 1]
    decode(model, requests, slots=2)
    assert groups
    assert set(groups) == {1}


def test_sample_len_and_context_bound_the_text(model: Model) -> None:
    (request,) = windows(1, sample_len=3)
    assert len(decode(model, [request], 1)[0].tokens) <= 3
    context = DIMS.n_text_ctx
    rules = make_rules(TOKENIZER, DIMS, Options())
    prompt = (TOKENIZER.sot_prev, *range(1000, 1000 + context - 5), *TOKENIZER.sot_sequence)
    full = Window(request.mel, prompt, len(prompt) - 1, rules)
    tokens = decode(model, [full], 1)[0].tokens
    assert len(tokens) <= context + 1 - len(prompt)


def test_language_requests_among_others() -> None:
    dims = tiny_dims(multilingual=True)
    model = Model(Checkpoint("random", dims, random_state(dims, seed=1)), CPU, torch.float32)
    tokenizer, vocabulary = get_tokenizer(dims), get_vocabulary(dims)
    rules = make_rules(tokenizer, dims, Options(sample_len=5))
    mels = [log_mel(noise_bursts(3, seed=i), 80)[:, :3000] for i in range(6)]
    requests = [
        Window(m, (tokenizer.sot,), 0, None)
        if i % 2
        else Window(m, tokenizer.sot_sequence, 0, rules)
        for i, m in enumerate(mels)
    ]

    def run(slots: int) -> dict[int, Decoded]:
        engine: Engine[int] = Engine(model, vocabulary, slots)
        for i, request in enumerate(requests):
            engine.submit(i, request)
        done: dict[int, Decoded] = {}
        while not engine.idle:
            done.update(engine.step())
        return done

    alone, together = run(1), run(4)
    for i in range(6):
        assert together[i].tokens == alone[i].tokens
        probs = together[i].language_probs
        assert (probs is None) == (i % 2 == 0)
        if probs is not None:
            assert len(probs) == 99
            assert sum(probs.values()) == pytest.approx(1)


def test_room_counts_what_waits(model: Model) -> None:
    engine: Engine[int] = Engine(model, VOCABULARY, 2)
    assert engine.idle
    assert engine.room == 2
    for i, window in enumerate(windows(3)):
        engine.submit(i, window)
    assert engine.room == -1
    assert not engine.idle


def test_nan_in_one_row_stays_there(model: Model) -> None:
    """A window whose numbers overflow is reported as NaN; its neighbours and heirs are not."""
    good = windows(3)
    expected = decode(model, good, slots=1)
    bad = Window(torch.full((80, 3000), float("nan")), good[0].prompt, 0, good[0].rules)
    done = decode(model, [good[0], bad, good[1], good[2]], slots=2)
    assert done[1].avg_logprob != done[1].avg_logprob
    for tag, i in ((0, 0), (2, 1), (3, 2)):
        assert done[tag].tokens == expected[i].tokens
