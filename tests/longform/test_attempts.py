"""`on_failure`: which attempts are made at a window, and which text is kept."""

import random
from typing import Any

import pytest

from slimwhisper.engine.requests import Decoded, Languages, Retry, Window
from slimwhisper.longform.attempts import Tried, likeliest
from slimwhisper.longform.session import Session
from slimwhisper.types import Options
from tests.support.checkpoints import tiny_dims
from tests.support.sessions import HELLO, TOKENIZER, WORLD, answer, session, stamp

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
    state = session(10, temperature=LADDER, on_failure=on_failure)
    run(state, [((stamp(0), *HELLO, stamp(9)), -1.01), ((stamp(0), *WORLD, stamp(9)), -0.99)])
    assert [s.text for s in state.segments] == [" world"], "one that passes is kept"


def test_silence_ends_the_attempts_with_either() -> None:
    state = session(10, temperature=LADDER, on_failure="best")
    state.accept(answer(*LOOPING, avg_logprob=-0.5))
    state.accept(answer(*CLEAN, avg_logprob=-1.5, no_speech_prob=0.7))
    assert state.segments == [] and state.next_request() is None


def test_an_uncertain_change_of_language() -> None:
    dims = tiny_dims(multilingual=True)
    state = session(120, dims, multilingual=True, temperature=0.0)
    begin, tokenizer = state.vocabulary.timestamps.start, state.vocabulary.tokenizer("en")
    texts = (SENTENCE, SENTENCE[::-1], SENTENCE[5:], SENTENCE[:5:-1])
    for text, german in zip(texts, (0.1, 0.6, 0.9, 0.1), strict=True):
        state.accept(Languages({"en": 1 - german, "de": german}))
        state.accept(answer(begin, *tokenizer.encode(text), begin + 450))
    assert [s.flags for s in state.segments] == [(), ("language_changed",), (), ()]
