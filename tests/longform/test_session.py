"""One file's state machine, fed with answers made up here; no model."""

from dataclasses import replace

import pytest

from slimwhisper.engine.requests import Decoded, Languages, Retry
from slimwhisper.errors import SlimWhisperError
from slimwhisper.longform.session import clips_of
from slimwhisper.tokens.vocabulary import get_tokenizer
from slimwhisper.types import Options
from tests.support.checkpoints import tiny_dims
from tests.support.sessions import HELLO, TOKENIZER, WORLD, answer, request, session, stamp


def test_a_window_that_does_not_advance_is_left_behind() -> None:
    """Without timestamp rules a model may say <|0.00|><|0.00|>: no endless loop."""
    state = session(70, without_timestamps=True)
    request(state)
    state.accept(answer(stamp(0), stamp(0)))
    assert state.seek == 3000


def test_the_language_is_one_of_those_given() -> None:
    dims = tiny_dims()
    state = session(4, dims, languages=("German", "fr"))
    state.accept(Languages({"en": 0.6, "de": 0.1, "fr": 0.3}))
    assert request(state).prompt == get_tokenizer(dims, "fr").sot_sequence
    for given in ({"languages": ("German",)}, {"language": "German"}):  # nothing to detect
        only = session(4, dims, **given)
        assert request(only).prompt == get_tokenizer(dims, "de").sot_sequence


def test_segments_have_their_tokens_logprobs() -> None:
    state = session(60, token_logprobs=True)
    assert request(state).logprobs
    tokens = (stamp(0), *HELLO, stamp(2), stamp(2), *WORLD, stamp(2), stamp(2), *HELLO, stamp(9))
    own = tuple(-float(i) for i in range(len(tokens) + 1))  # with <|endoftext|>'s
    new = state.accept(replace(answer(*tokens), logprobs=own))
    assert [s.tokens for s in new] == [list(tokens[:3]), [], list(tokens[-3:])]
    assert [s.token_logprobs for s in new] == [[0.0, -1.0, -2.0], [], [-6.0, -7.0, -8.0]]
    assert [s["token_logprobs"] for s in state.transcript().as_dict()["segments"]] == [
        s.token_logprobs for s in new
    ]
    plain = session(60)
    plain.accept(answer(*tokens))
    assert "token_logprobs" not in plain.transcript().as_dict()["segments"][0]


@pytest.mark.parametrize("multilingual", [False, True])
@pytest.mark.parametrize(("seconds", "again"), [(30.0, False), (29.9, True)])
def test_audio_in_the_slot_is_not_asked_for_again(
    seconds: float, again: bool, multilingual: bool
) -> None:
    """A first window of 30 s has been heard whole when its language is known."""
    state = session(seconds, tiny_dims(), multilingual=multilingual)
    state.accept(Languages({"en": 0.2, "de": 0.7}))
    assert (request(state).mel is not None) == again


def test_failed_texts_are_tried_again_from_the_same_audio() -> None:
    state = session(65, temperature=(0.0, 0.4, 1.0), seed=7)
    first = request(state).attempt
    seeds = {first.seed}
    for temperature in (0.4, 1.0):
        assert state.accept(answer(stamp(0), *HELLO, avg_logprob=-2.0)) == []
        retry = state.next_request()
        assert isinstance(retry, Retry)
        assert retry.attempt.temperature == temperature
        seeds.add(retry.attempt.seed)
    assert len(seeds) == 3
    last = answer(stamp(0), *HELLO, stamp(4), avg_logprob=-2.0, temperature=1.0)
    (segment,) = state.accept(last)
    assert segment.temperature == 1.0
    window = request(state)
    assert window.attempt.temperature == 0.0
    assert window.attempt.seed not in seeds
    assert window.prompt == TOKENIZER.sot_sequence  # text that hot conditions nothing


@pytest.mark.parametrize(
    ("text", "fields", "options", "again"),
    [
        (HELLO, {}, {}, False),
        (HELLO, {"avg_logprob": -1.1}, {}, True),
        (HELLO, {"avg_logprob": -1.1}, {"logprob_threshold": None}, False),
        (HELLO * 60, {}, {}, True),
        (HELLO * 60, {}, {"compression_ratio_threshold": None}, False),
        (HELLO * 60, {"avg_logprob": -1.1, "no_speech_prob": 0.7}, {}, False),  # silence
        (HELLO * 60, {"no_speech_prob": 0.7}, {}, True),
        (HELLO, {"avg_logprob": -9.0}, {"temperature": 0.0}, False),  # nothing else to try
    ],
)
def test_what_counts_as_failed(
    text: list[int], fields: dict[str, float], options: dict[str, object], again: bool
) -> None:
    state = session(65, **options)
    state.accept(answer(stamp(0), *text, stamp(4), **fields))
    assert isinstance(state.next_request(), Retry) == again


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0", [(0, 1000)]),
        ("", [(0, 1000)]),
        ((), [(0, 1000)]),
        ("1,2.5,4", [(100, 250), (400, 1000)]),
        ((1.0, 2.5, 4.0, 99.0), [(100, 250), (400, 1000)]),
        ("3,2", [(300, 200)]),
    ],
)
def test_clips(given: str | tuple[float, ...], expected: list[tuple[int, int]]) -> None:
    assert clips_of(Options(clip_timestamps=given), 1000) == expected


def test_nan_is_an_error_not_a_transcript() -> None:
    state = session(5)
    request(state)
    with pytest.raises(SlimWhisperError, match="another dtype"):
        state.accept(Decoded((), float("nan"), 0.1))
