"""One file's state machine, fed with answers made up here: prompts, attempts, segments; and where a
window is cut.
"""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.engine.requests import Alignment, Attempt, Decoded, Languages, Window
from slimwhisper.longform.passes import WindowSpan
from slimwhisper.longform.recording import Session, cut_at_timestamps
from slimwhisper.longform.requests import Candidate, choose
from slimwhisper.options import Options
from slimwhisper.tokens.vocabulary import get_tokenizer, get_vocabulary
from slimwhisper.types import Transcript
from tests.support.checkpoints import tiny_dims
from tests.support.fuzz import examples
from tests.support.sessions import (
    DIMS,
    HELLO,
    TOKENIZER,
    WORLD,
    Frames,
    Heard,
    answer,
    request,
    session,
    stamp,
)


def test_a_window_that_does_not_advance_is_left_behind() -> None:
    """Without timestamp rules a model may say <|0.00|><|0.00|>: no endless loop."""
    state = session(70, without_timestamps=True)
    request(state)
    state.accept(answer(stamp(0), stamp(0)))
    assert state.position == 3000


def test_the_language_is_one_of_those_given() -> None:
    dims = tiny_dims()
    state = session(4, dims, languages=("German", "fr"))
    for _ in range(2):  # in its own window it is not certain
        state.accept(Languages({"en": 0.6, "de": 0.1, "fr": 0.3}))
    assert request(state).prompt == get_tokenizer(dims, "fr").sot_sequence
    for asked in ({"languages": ("German",)}, {"language": "German"}):  # nothing to detect
        assert request(session(4, dims, **asked)).prompt == get_tokenizer(dims, "de").sot_sequence


def test_segments_have_their_tokens_logprobs() -> None:
    state = session(60, token_logprobs=True)
    assert request(state).logprobs
    tokens = (stamp(0), *HELLO, stamp(2), stamp(2), *WORLD, stamp(2), stamp(2), *HELLO, stamp(9))
    logprobs = tuple(-float(i) for i in range(len(tokens) + 1))  # with <|endoftext|>'s
    state.accept(replace(answer(*tokens), logprobs=logprobs))
    new = state.segments
    assert [s.tokens for s in new] == [list(tokens[:3]), [], list(tokens[-3:])]
    assert [s.token_logprobs for s in new] == [[0.0, -1.0, -2.0], [], [-6.0, -7.0, -8.0]]
    found = Transcript("", state.segments, "en")["segments"]
    assert [s["token_logprobs"] for s in found] == [s.token_logprobs for s in new]
    plain = session(60)
    plain.accept(answer(*tokens))
    assert "token_logprobs" not in Transcript("", plain.segments, "en")["segments"][0]


@pytest.mark.parametrize("multilingual", [False, True])
@pytest.mark.parametrize(
    ("seconds", "probability", "heard"),
    # what comes last in the audio: sound, zeros as in a window, or silence as whisper hears it
    [(30.0, 0.7, [2996]), (29.9, 0.95, [0]), (29.9, 0.7, [0, -1])],
)
def test_audio_in_the_slot_is_not_sent_again(
    seconds: float, probability: float, heard: list[int], multilingual: bool
) -> None:
    """A first window is encoded when its language is known, unless that is not certain."""
    state = session(seconds, tiny_dims(), multilingual=multilingual)
    for end in heard:
        assert request(state).mel[0, 2995] == end  # type: ignore[index]
        state.accept(Languages({"en": 0.01, "de": probability}))
    assert (request(state).mel is None) == (len(heard) == 1)


@pytest.mark.parametrize("seconds", [0.2, 2.4, 19.5, 19.7, 30.0, 31.5])
@pytest.mark.parametrize(("window", "least", "more"), [("auto", 1, 0), ("near", 20, 0.5)])
def test_windows_as_long_as_the_audio(seconds: float, window: str, least: int, more: float) -> None:
    """Up to a whole second; the language is detected in the audio that is decoded."""

    def length(seconds: float) -> int:
        return min(max(math.ceil(seconds + more), least), 30) * 100

    state = session(seconds, tiny_dims(), audio_window=window)
    assert frames_of(state) == length(seconds)
    state.accept(Languages({"en": 1.0}))
    assert request(state).mel is None  # it is in the slot
    while not state.done:
        state.accept(answer(stamp(0), *HELLO, stamp(2), stamp(2)))
        if not state.done:
            assert frames_of(state) == length(seconds - state.position / 100)


@pytest.mark.parametrize(
    ("options", "speech", "start", "frames"),
    [
        ({}, (0, 7000), 0, 3000),
        ({}, (3200, 7000), 3000, 3000),  # 30 s of silence before it
        ({}, (6100, 7000), 6000, 1000),  # 60 s, in a window that is not full
        ({}, (7000, 7000), 0, 3000),  # there is no speech at all
        ({"clip_timestamps": "31.5"}, None, 3150, 3000),
        ({"clip_timestamps": (31.5, 40)}, None, 3150, 850),  # what follows is not decoded
        ({"clip_timestamps": (50, 60, 3, 5)}, None, 5000, 1000),
        ({"clip_timestamps": (10, 60)}, (4100, 7000), 4000, 2000),
        ({"clip_timestamps": "90"}, None, 0, 3000),  # after the end
    ],
)
def test_the_language_is_that_of_the_first_window_decoded(
    options: dict[str, Any], speech: tuple[int, int] | None, start: int, frames: int
) -> None:
    voice = Heard(70, (speech[0] / 100, speech[1] / 100)) if speech else None
    state = session(70, tiny_dims(), voice, **options)
    heard = request(state).mel
    assert heard is not None
    expected = Frames(70, None).window(start, frames)
    assert torch.equal(heard, expected)
    state.accept(Languages({"en": 0.02, "es": 0.98}))
    assert state.language == "es"
    if not state.done:  # and it is the first that is decoded
        window = request(state)
        assert window.mel is None or torch.equal(window.mel[:, 0], expected[:, 0])


@pytest.mark.parametrize(
    ("probabilities", "language", "windows"),
    [
        ((0.6, 0.9, 0.9), "aa", 1),  # certain enough
        ((0.3, 0.6, 0.9), "bb", 2),
        ((0.3, 0.2, 0.1), "aa", 3),  # the most certain of three
        ((0.3, 0.2, 0.4), "cc", 3),
    ],
)
def test_an_uncertain_language_is_looked_for_in_later_speech(
    probabilities: tuple[float, ...], language: str, windows: int
) -> None:
    """Where it is known where speech is; and what was detected first is decoded first."""
    codes = {"aa": "de", "bb": "fr", "cc": "es"}
    for voice in (Heard(120, (0, 120)), None):
        state = session(120, tiny_dims(), voice)
        heard = 0
        while request(state).rules is None:
            code, probability = list(codes.values())[heard], probabilities[heard]
            state.accept(Languages({code: probability, "en": 0.01}))
            heard += 1
        assert heard == (windows if voice else 1)
        assert state.language == (codes[language] if voice else "de")
        window = request(state)  # the first, whose audio is in the slot only if it was the last
        assert (window.mel is None) == (heard == 1)
        state.accept(answer(stamp(0), *HELLO, stamp(2)))
        assert not state.segments[0].flags
    silent = session(120, tiny_dims(), Heard(120, (0, 20)))  # and no speech follows
    silent.accept(Languages({"de": 0.2}))
    assert request(silent).rules is not None


def test_faint_voice_needs_a_probable_text() -> None:
    """No attempt at a higher temperature; a clear voice is attempted again."""
    for spans, asked in (((1, 1.2), 1), ((1, 3), 6)):
        state = session(30, voice=Heard(30, spans))
        attempts = 0
        while not state.done:
            state.accept(answer(stamp(0), *HELLO, stamp(2), avg_logprob=-1.5))
            attempts += 1
        assert attempts == asked and bool(state.segments) == (asked > 1)
    state = session(30, voice=Heard(30, (1, 1.2)))
    state.accept(answer(stamp(0), *HELLO, stamp(2)))
    assert state.segments[0].text == " hello" and not state.segments[0].flags


def test_speech_after_a_text_that_ended_is_decoded() -> None:
    """A model may take 25 s in another language for silence."""
    for spans, position in (((0, 30), 500), ((0, 6.5), 6000), ((20, 23), 500), (None, 3000)):
        state = session(60, voice=spans and Heard(60, spans))
        state.accept(answer(stamp(0), *HELLO, stamp(5)))
        assert state.position == position
    state = session(60, voice=Heard(60, (20, 23)), word_timestamps=True)
    state.accept(answer(stamp(0), *HELLO, stamp(5)))
    late = torch.tensor([[0]] * (2 + len(HELLO)) + [[1]] * 2)  # the last two hear what follows
    scores = 9.0 * (torch.arange(1500) // 1150 == late)[None]
    state.accept(Alignment(tuple(HELLO), 3, scores, (0.9,) * len(HELLO)))
    assert state.position == 6000, "its words are that speech"


def test_a_text_has_no_special_tokens() -> None:
    dims = tiny_dims()
    state = session(30, dims, language="en")
    polish = get_tokenizer(dims).to_language_token("pl")
    hello = get_tokenizer(dims).encode(" hello")
    begin = get_tokenizer(dims).timestamp_begin
    state.accept(answer(begin, *hello, polish, *hello, begin + 100))
    assert state.prompts.text() == state.segments[0].text == " hello hello"


def frames_of(state: Session) -> int:
    """Mel frames of the window that is requested next."""
    mel = request(state).mel
    assert mel is not None
    return mel.shape[1]


@pytest.mark.parametrize(
    ("text", "fields", "options", "again"),
    [
        (HELLO, {}, {}, False),
        (HELLO, {"avg_logprob": -1.1}, {}, True),
        (HELLO * 60, {}, {}, True),
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
    assert isinstance(state.request, Attempt) == again
    assert bool(state.segments) == (not again and "no_speech_prob" not in fields), (
        "silence has no text"
    )


@pytest.mark.parametrize(
    ("temperature", "kept", "limit"), [(0.5, True, 0.5), (0.6, False, 0.5), (0.6, True, 0.7)]
)
def test_what_was_sampled_hot_is_no_prompt(temperature: float, kept: bool, limit: float) -> None:
    state = session(100, prompt_reset_on_temperature=limit)
    state.accept(answer(stamp(0), *WORLD, stamp(30)))
    state.accept(answer(stamp(0), *HELLO, stamp(30), temperature=temperature))
    assert (len(request(state).prompt) > 1) == kept
    state.accept(answer(stamp(0), *HELLO, stamp(30)))
    prompt = request(state).prompt
    assert (WORLD[0] in prompt) == kept
    assert HELLO[0] in prompt


def test_an_initial_prompt_may_be_tokens() -> None:
    ids = (300, 5, 301)  # as no text is encoded
    prompt = request(session(50, initial_prompt=ids)).prompt
    assert prompt == (TOKENIZER.sot_prev, *ids, *TOKENIZER.sot_sequence)


def test_hotwords_stand_in_every_prompt_and_are_cut_to_fit() -> None:
    words = TOKENIZER.encode(" Ada Lovelace")
    state = session(1000, temperature=0.0, hotwords="Ada Lovelace ", initial_prompt="Names.")
    prompt = request(state).prompt
    start = (TOKENIZER.sot_prev, *words)
    assert prompt == (*start, *TOKENIZER.encode(" Names."), *TOKENIZER.sot_sequence)
    for _ in range(4):
        state.accept(answer(stamp(0), *HELLO * 90, *WORLD, stamp(30)))
        prompt = request(state).prompt
        assert prompt[: len(start)] == start
        assert prompt[-3:] == (*WORLD, stamp(30), TOKENIZER.sot)
        assert len(prompt) <= 1 + 223 + 1
    assert len(prompt) == 1 + 223 + 1
    long = request(session(100, hotwords="Ada " * 500)).prompt
    assert len(long) == 1 + 223 + 1
    alone = request(session(100, hotwords="Ada", prefix="Well,"))
    assert alone.prompt == (*TOKENIZER.sot_sequence, *TOKENIZER.encode(" Well,"))


def test_prefixes_begin_the_text() -> None:
    state = session(100, prefix="Well, then")
    assert request(state).prompt[1:] == tuple(TOKENIZER.encode(" Well, then"))
    short = session(100, prefix="one two three", sample_len=222)
    assert request(short).prompt[1:] == tuple(TOKENIZER.encode(" two three"))


LADDER = (0.0, 0.4, 0.8)
LOOPING = (stamp(0), *HELLO * 20, stamp(9))
SENTENCE = " hello world, we took the early train because of the snow"


@pytest.mark.parametrize("seed", range(40))
def test_the_most_probable_that_does_not_repeat_itself(seed: int) -> None:
    """Against the sentence that defines it."""
    rng = random.Random(seed)
    most = rng.choice([None, 1.5, 2.4])
    failed = [
        Candidate(Decoded((), rng.uniform(-3, 0), 0.1), ratio=rng.uniform(1, 3.5))
        for _ in range(rng.randint(1, 6))
    ]
    assert choose(failed, Options(on_failure="last")) is failed[-1]
    chosen = choose(failed, Options(compression_ratio_threshold=most, on_failure="best"))
    limit = 2.4 if most is None else most
    varied = [c for c in failed if c.ratio <= limit]
    if varied:
        assert chosen in varied
        assert chosen.result.avg_logprob == max(c.result.avg_logprob for c in varied)
    else:
        assert chosen.ratio == min(c.ratio for c in failed)


def run(state: Session, answers: list[tuple[tuple[int, ...], float]]) -> list[Attempt]:
    """Answer a window's attempts in turn, (tokens, avg_logprob); returns them."""
    attempts: list[Attempt] = []
    for tokens, logprob in answers:
        assert isinstance(state.request, Window | Attempt)
        attempts.append(getattr(state.request, "attempt", state.request))
        temperature = attempts[-1].temperature
        state.accept(answer(*tokens, avg_logprob=logprob, temperature=temperature))
    return attempts


@pytest.mark.parametrize(
    ("on_failure", "kept"), [("last", (0.8, " world world")), ("best", (0.4, " hello world"))]
)
def test_where_all_temperatures_fail(on_failure: str, kept: tuple[float, str]) -> None:
    """Each attempt, and each window, has a seed of its own."""
    state = session(40, temperature=LADDER, on_failure=on_failure)
    answers = [
        (LOOPING, -0.1),
        ((stamp(0), *HELLO, *WORLD, stamp(9)), -1.2),
        ((stamp(0), *WORLD, *WORLD, stamp(9)), -2.5),
    ]
    attempts = run(state, answers)
    assert [a.temperature for a in attempts] == list(LADDER)
    (result,) = state.segments
    assert (result.temperature, result.text) == kept
    assert result.compression_ratio < 1 and state.prompts.text() == kept[1]
    attempts.append(request(state).attempt)
    assert attempts[-1].temperature == 0.0
    attempts.append(request(session(40, seed=1)).attempt)
    assert len({a.seed for a in attempts}) == len(attempts)
    state = session(10, temperature=LADDER, on_failure=on_failure)
    run(state, [((stamp(0), *HELLO, stamp(9)), -1.01), ((stamp(0), *WORLD, stamp(9)), -0.99)])
    assert [s.text for s in state.segments] == [" world"], "one that passes is kept"


def test_an_uncertain_change_of_language() -> None:
    dims = tiny_dims(multilingual=True)
    state = session(120, dims, multilingual=True, temperature=0.0)
    begin, tokenizer = state.vocabulary.timestamps.start, state.vocabulary.tokenizer("en")
    texts = (SENTENCE, SENTENCE[::-1], SENTENCE[5:], SENTENCE[:5:-1])
    for text, german in zip(texts, (0.1, 0.6, 0.9, 0.1), strict=True):
        state.accept(Languages({"en": 1 - german, "de": german}))
        state.accept(answer(begin, *tokenizer.encode(text), begin + 450))
    assert [s.flags for s in state.segments] == [(), ("language_changed",), (), ()]


# A window is cut at its timestamps, whatever a model writes


def cut(span: WindowSpan, tokens: list[int]) -> list[tuple[float, float, list[int]]]:
    """The times and the tokens of the segments."""
    parts = (get_vocabulary(DIMS), TOKENIZER, False)
    found = cut_at_timestamps(span, Decoded(tuple(tokens)), 1.0, *parts).segments
    return [(s.start, s.end, list(s.tokens)) for s in found]


def pairs(*stamps: float) -> list[int]:
    """A word between each two time stamps."""
    tokens = []
    for start, end in zip(stamps[::2], stamps[1::2], strict=True):
        tokens += [stamp(start), *WORLD, stamp(end)]
    return tokens


@examples(100)
@given(
    stamps=st.lists(st.integers(0, 1500), max_size=10).map(sorted),
    frames=st.integers(1, 3000),
    after=st.sampled_from([0, 500]),
    ends=st.booleans(),
)
def test_the_window_is_partitioned(stamps: list[int], frames: int, after: int, ends: bool) -> None:
    """Every token in order, up to what has no end stamp; ends in order, none after the end."""
    stamps = stamps[: len(stamps) // 2 * 2]
    tokens = pairs(*(s * 0.02 for s in stamps)) + ([] if ends else [stamp(30), *WORLD])
    span = WindowSpan(3_000, frames, 3_000 + frames + after, 3_000)
    found = cut(span, tokens)
    kept = [token for *_, text in found for token in text]
    assert kept == tokens[: len(kept)]
    assert len(kept) >= len(tokens) - (0 if ends else 1 + len(WORLD))
    content = (3_000 + frames + after) / 100
    assert all(start <= end <= content + 1e-9 or after for start, end, _ in found)
    ends_found = [end for _, end, _ in found]
    assert ends_found == sorted(ends_found)


@pytest.mark.parametrize(
    ("span", "stamps", "times"),
    [
        # of a recording that ends at 40 s
        ((3_000, 1_000, 4_000), (0, 5, 5, 12), [(30, 35), (35, 40)]),
        ((3_000, 1_000, 4_000), (0, 12, 12, 14), [(30, 39.98), (39.98, 40)]),  # the text stays
        ((3_000, 1_000, 4_000), (11, 12, 21, 29), [(39.96, 39.98), (39.98, 40)]),
        # without a length, as in whisper
        ((3_000, 1_000, 4_000), (0, 9, 9, 9, 12, 12), [(30, 39), (39, 39), (40, 40)]),
        ((3_000, 1_000, 6_000), (0, 12), [(30, 42)]),  # a clip that ends earlier, as in whisper
        ((3_999, 1, 4_000), (0, 12), [(39.99, 40)]),
    ],
)
def test_nothing_ends_after_the_recording(
    span: tuple[int, int, int], stamps: tuple[float, ...], times: list[tuple[float, float]]
) -> None:
    found = cut(WindowSpan(*span, 3_000), pairs(*stamps))
    assert [(start, end) for start, end, _ in found] == [pytest.approx(pair) for pair in times]
