"""`on_failure` and `check`: which attempts are made at a window, and which text is kept."""

import random
from typing import Any

import pytest
import torch

from slimwhisper.engine.requests import Align, Decoded, Languages, Retry, Window
from slimwhisper.longform.attempts import Tried, likeliest
from slimwhisper.longform.session import Session
from slimwhisper.types import Options
from tests.support.checkpoints import tiny_dims
from tests.support.sessions import HELLO, TOKENIZER, WORLD, answer, request, session, stamp

LADDER = (0.0, 0.4, 0.8)
LOOP = HELLO * 20
LOOPING = (stamp(0), *LOOP, stamp(9))
SENTENCE = " hello world, we took the early train because of the snow"
CLEAN = (stamp(0), *TOKENIZER.encode(SENTENCE), stamp(9))


def tried(ratio: float, avg_logprob: float, no_speech_prob: float = 0.1) -> Tried:
    return Tried(Decoded((), avg_logprob, no_speech_prob), ratio)


@pytest.mark.parametrize("seed", range(40))
def test_the_likeliest_that_does_not_repeat_itself(seed: int) -> None:
    """Against the sentence that defines it."""
    rng = random.Random(seed)
    most = rng.choice([None, 1.5, 2.4])
    attempts = [tried(rng.uniform(1, 3.5), rng.uniform(-3, 0)) for _ in range(rng.randint(1, 6))]
    found = likeliest(attempts, Options(compression_ratio_threshold=most))
    limit = 2.4 if most is None else most
    if any(t.ratio <= limit for t in attempts):
        assert found.ratio <= limit
        assert all(
            t.ratio > limit or t.result.avg_logprob <= found.result.avg_logprob for t in attempts
        )
    else:
        assert found.ratio == min(t.ratio for t in attempts)


def run(state: Session, answers: list[tuple[tuple[int, ...], float]]) -> list[Any]:
    """Answer a window's attempts in turn, (tokens, avg_logprob); returns the requests."""
    asked: list[Any] = []
    for tokens, logprob in answers:
        asked.append(state.next_request())
        assert isinstance(asked[-1], Window | Retry)
        temperature = asked[-1].attempt.temperature
        state.accept(answer(*tokens, avg_logprob=logprob, temperature=temperature))
    return asked


@pytest.mark.parametrize(
    ("on_failure", "kept"),
    [("last", (0.8, " world world")), ("best", (0.4, " hello world"))],
)
def test_where_all_temperatures_fail(on_failure: str, kept: tuple[float, str]) -> None:
    state = session(10, temperature=LADDER, on_failure=on_failure)
    answers = [
        (LOOPING, -0.1),
        ((stamp(0), *HELLO, *WORLD, stamp(9)), -1.2),
        ((stamp(0), *WORLD, *WORLD, stamp(9)), -2.5),
    ]
    asked = run(state, answers)
    assert [r.attempt.temperature for r in asked] == list(LADDER)
    (found,) = state.segments
    assert (found.temperature, found.text) == kept
    assert found.compression_ratio < 1 and state.transcript().text == kept[1]
    assert state.next_request() is None


@pytest.mark.parametrize("on_failure", ["last", "best"])
def test_an_attempt_that_passes_is_kept_with_either(on_failure: str) -> None:
    state = session(10, temperature=LADDER, on_failure=on_failure)
    run(state, [((stamp(0), *HELLO, stamp(9)), -1.01), ((stamp(0), *WORLD, stamp(9)), -0.99)])
    assert [s.text for s in state.segments] == [" world"]


def test_silence_ends_the_attempts_with_either() -> None:
    state = session(10, temperature=LADDER, on_failure="best")
    state.accept(answer(*LOOPING, avg_logprob=-0.5))
    state.accept(answer(*CLEAN, avg_logprob=-1.5, no_speech_prob=0.7))
    assert state.segments == [] and state.next_request() is None


def test_a_window_without_flags_is_decoded_once() -> None:
    state = session(10, check=True)
    run(state, [(CLEAN, -0.3)])
    assert state.next_request() is None and state.segments[0].flags == ()


def test_without_check_a_flagged_window_stays_as_it_is() -> None:
    state = session(10, temperature=0.0)
    run(state, [(LOOPING, -0.3)])
    assert state.next_request() is None
    assert state.segments[0].flags == ("repeats",)


def test_the_first_text_without_flags_is_kept() -> None:
    state = session(10, temperature=0.0, check=True, seed=7)
    first, *others = run(state, [(LOOPING, -0.1), (LOOPING, -0.1), (CLEAN, -0.6)])
    assert [r.attempt.temperature for r in others] == [0.2, 0.4]
    assert [r.attempt.seed for r in others] == [(7, 0, 1), (7, 0, 2)]
    for again in others:  # the audio is in the slot
        assert again.mel is None and again.prompt == first.prompt and again.rules is first.rules
    (found,) = state.segments
    assert (found.flags, found.temperature, found.avg_logprob) == ((), 0.4, -0.6)
    assert state.next_request() is None


def test_no_seed_is_used_twice_after_a_fallback() -> None:
    state = session(10, temperature=LADDER, check=True)
    asked = run(state, [(LOOPING, -0.1)] * 6)
    assert len({r.attempt.seed for r in asked}) == 6
    assert [r.attempt.temperature for r in asked] == [*LADDER, 0.2, 0.4, 0.6]
    assert state.next_request() is None
    assert state.segments[0].temperature == 0.8  # none is better: the text stays


def test_earlier_text_is_left_out_and_the_users_prompt_stays() -> None:
    state = session(39, temperature=0.0, check=True, initial_prompt="Names", hotwords="Kyoto")
    run(state, [(CLEAN, -0.3)])
    begun = request(state)
    asked = run(state, [(LOOPING, -0.1), (LOOPING, -0.1), (CLEAN, -0.3)])
    assert [r.attempt.temperature for r in asked] == [0.0, 0.0, 0.2]
    prompt = TOKENIZER.decode(list(asked[1].prompt))
    assert "Names" in prompt and "Kyoto" in prompt and "hello" not in prompt
    assert "hello" in TOKENIZER.decode(list(begun.prompt))
    assert asked[1].prompt == asked[2].prompt and asked[1].prompt[asked[1].sot_index] == (
        TOKENIZER.sot
    )
    assert [s.flags for s in state.segments] == [(), ()]


def test_only_fewer_of_the_same_flags_are_better() -> None:
    state = session(10, temperature=0.0, check=True)
    sentence = TOKENIZER.encode(SENTENCE)
    answers = [
        (LOOPING, -0.9),  # repeats, improbable
        ((stamp(0), *sentence, stamp(0.2), stamp(0.2)), -0.1),  # too fast: another flag
        ((stamp(0), *sentence, stamp(9)), -2.0),  # improbable: fewer
        (LOOPING, -0.1),  # repeats: as few, and likelier, but a loop
    ]
    run(state, answers)
    (found,) = state.segments
    assert (found.flags, found.avg_logprob) == (("improbable",), -2.0)


@pytest.mark.parametrize("sound", [True, False])
def test_no_text_is_better_only_where_there_is_no_sound(sound: bool) -> None:
    """The spectrogram of `Frames` rises all the time, so that there is sound; or it is zero."""
    state = session(10, temperature=0.0, check=True)
    if not sound:
        state.mel.window = lambda *_: torch.zeros(80, 3000)  # type: ignore[method-assign]
    thanks = (stamp(0), *TOKENIZER.encode(" Thank you."), stamp(9))
    run(state, [(thanks, -0.2), ((stamp(0), stamp(9)), -0.3)])
    if sound:
        run(state, [(CLEAN, -0.3)])
    assert state.next_request() is None
    assert state.transcript().text == (SENTENCE if sound else "")


def test_sound_that_is_left_out_is_no_reason_to_decode_again() -> None:
    state = session(25, temperature=0.0, check=True)
    run(state, [(CLEAN, -0.3)])
    assert state.next_request() is None


def test_words_are_aligned_for_the_text_that_is_kept() -> None:
    state = session(10, temperature=0.0, check=True, word_timestamps=True)
    run(state, [(LOOPING, -0.1), (CLEAN, -0.6)])
    asked = state.next_request()
    assert isinstance(asked, Align) and asked.text == CLEAN[1:-1]


def test_an_uncertain_change_of_language() -> None:
    dims = tiny_dims(multilingual=True)
    state = session(120, dims, multilingual=True, temperature=0.0)
    begin, tokenizer = state.vocabulary.timestamps.start, state.vocabulary.tokenizer("en")
    texts = (SENTENCE, SENTENCE[::-1], SENTENCE[5:], SENTENCE[:5:-1])
    for text, german in zip(texts, (0.1, 0.6, 0.9, 0.1), strict=True):
        state.accept(Languages({"en": 1 - german, "de": german}))
        state.accept(answer(begin, *tokenizer.encode(text), begin + 450))
    assert [s.flags for s in state.segments] == [(), ("language_changed",), (), ()]
