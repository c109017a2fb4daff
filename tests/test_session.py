"""One file's state machine, fed with answers made up here; no model."""

import pytest
import torch
from checkpoints import tiny_dims

from slimwhisper.errors import SlimWhisperError
from slimwhisper.session import Session, compression_ratio
from slimwhisper.types import Decoded, Options, Window
from slimwhisper.vocabulary import get_tokenizer

DIMS = tiny_dims(multilingual=False)
TOKENIZER = get_tokenizer(DIMS)
BEGIN = TOKENIZER.timestamp_begin
HELLO, WORLD = TOKENIZER.encode(" hello"), TOKENIZER.encode(" world")


def stamp(seconds: float) -> int:
    return BEGIN + round(seconds / 0.02)


def session(seconds: float, **options: object) -> Session:
    """A recording whose mel frames carry their own number, so that windows show where they lie."""
    frames = round(seconds * 100)
    mel = torch.arange(1, frames + 3001, dtype=torch.float32).expand(80, -1)
    return Session(mel, DIMS, Options(**options))


def answer(*tokens: int, **fields: float) -> Decoded:
    return Decoded(tokens, fields.pop("avg_logprob", -0.5), fields.pop("no_speech_prob", 0.1))


def request(state: Session) -> Window:
    window = state.next_window()
    assert window is not None
    return window


def test_a_short_recording_is_one_window_padded_with_zeros() -> None:
    state = session(4)
    window = request(state)
    assert window.mel.shape == (80, 3000)
    assert window.mel[0, 399] == 400
    assert (window.mel[:, 400:] == 0).all()
    assert window.prompt == TOKENIZER.sot_sequence
    segments = state.accept(answer(stamp(0), *HELLO, stamp(1.5)))
    assert [(s.start, s.end, s.text) for s in segments] == [(0.0, 1.5, " hello")]
    assert state.next_window() is None
    assert state.transcript().as_dict()["text"] == " hello"
    assert state.transcript().language == "en"


def test_the_next_window_starts_at_the_last_pair() -> None:
    state = session(60)
    request(state)
    new = state.accept(answer(stamp(0), *HELLO, stamp(2), stamp(2), *WORLD, stamp(9), stamp(9)))
    assert [(s.start, s.end) for s in new] == [(0.0, 2.0), (2.0, 9.0)]
    assert request(state).mel[0, 0] == 901  # frame 900, numbered from 1
    new = state.accept(answer(stamp(1), *HELLO, stamp(3), stamp(3), *WORLD))
    assert [(s.id, s.seek, s.start, s.end) for s in new] == [(2, 900, 10.0, 12.0)]
    assert request(state).mel[0, 0] == 1201


def test_a_single_stamp_at_the_end_says_that_nothing_follows() -> None:
    state = session(60)
    request(state)
    state.accept(answer(stamp(0), *HELLO, stamp(2), stamp(2), *WORLD, stamp(9)))
    assert request(state).mel[0, 0] == 3001


def test_no_pair_is_one_segment_of_the_whole_window() -> None:
    state = session(40)
    request(state)
    assert [(s.start, s.end) for s in state.accept(answer(*HELLO))] == [(0.0, 30.0)]
    assert [(s.start, s.end) for s in state.accept(answer(*WORLD, stamp(4)))] == [(30.0, 34.0)]
    assert state.next_window() is None


def test_text_conditions_the_next_window() -> None:
    state = session(100)
    request(state)
    first = (stamp(0), *HELLO, stamp(30))
    state.accept(answer(*first))
    window = request(state)
    assert window.prompt == (TOKENIZER.sot_prev, *first, *TOKENIZER.sot_sequence)
    assert window.sot_index == 1 + len(first)
    alone = session(100, condition_on_previous_text=False)
    request(alone)
    alone.accept(answer(*first))
    assert request(alone).prompt == TOKENIZER.sot_sequence


def test_initial_prompt_first_and_carried() -> None:
    words = TOKENIZER.encode(" Names: Ada.")
    state = session(100, initial_prompt="Names: Ada. ")
    assert request(state).prompt == (TOKENIZER.sot_prev, *words, *TOKENIZER.sot_sequence)
    carried = session(1000, initial_prompt="Names: Ada.", carry_initial_prompt=True)
    for _ in range(20):
        prompt = request(carried).prompt
        assert prompt[1 : 1 + len(words)] == tuple(words)
        assert len(prompt) <= 1 + 223 + 1
        carried.accept(answer(stamp(0), *HELLO * 20, stamp(30)))
    assert not carried.transcript().text.startswith(" Names")


def test_a_long_prompt_keeps_its_end() -> None:
    state = session(1000)
    for _ in range(3):
        request(state)
        state.accept(answer(stamp(0), *HELLO * 90, *WORLD, stamp(30)))
    prompt = request(state).prompt
    assert len(prompt) == 1 + 223 + 1
    assert prompt[-3:-1] == (*WORLD, stamp(30))


@pytest.mark.parametrize(
    ("no_speech_prob", "avg_logprob", "options", "skipped"),
    [
        (0.7, -2.0, {}, True),
        (0.5, -2.0, {}, False),
        (0.7, -0.5, {}, False),  # sure of its text
        (0.7, -0.5, {"logprob_threshold": None}, True),
        (0.99, -9.0, {"no_speech_threshold": None}, False),
    ],
)
def test_silence(
    no_speech_prob: float, avg_logprob: float, options: dict[str, object], skipped: bool
) -> None:
    state = session(70, **options)
    request(state)
    result = answer(
        stamp(0), *HELLO, stamp(2), no_speech_prob=no_speech_prob, avg_logprob=avg_logprob
    )
    assert (state.accept(result) == []) == skipped
    assert state.seek == 3000


def test_empty_and_instantaneous_segments_have_no_text() -> None:
    state = session(30)
    request(state)
    new = state.accept(answer(stamp(0), *HELLO, stamp(0), stamp(0), stamp(3), stamp(3)))
    assert [(s.text, s.tokens) for s in new] == [("", [])] * 3
    assert state.transcript().text == ""


def test_a_window_that_does_not_advance_is_left_behind() -> None:
    """Without timestamp rules a model may say <|0.00|><|0.00|>: no endless loop."""
    state = session(70, without_timestamps=True)
    request(state)
    state.accept(answer(stamp(0), stamp(0)))
    assert state.seek == 3000


def test_detection_comes_first_and_sets_the_language() -> None:
    dims = tiny_dims()
    mel = torch.ones(80, 3400)
    state = Session(mel, dims, Options())
    window = request(state)
    assert window.rules is None
    assert window.mel.shape == (80, 3000)
    assert (window.mel == 1).all()  # with the silence that follows, not cut at the end
    assert state.accept(Decoded(language_probs={"en": 0.2, "de": 0.7, "fr": 0.1})) == []
    sot = get_tokenizer(dims, "de").sot_sequence
    assert request(state).prompt == sot
    assert state.transcript().language == "de"


def test_nan_is_an_error_not_a_transcript() -> None:
    state = session(5)
    request(state)
    with pytest.raises(SlimWhisperError, match="another dtype"):
        state.accept(Decoded((), float("nan"), 0.1))


def test_compression_ratio() -> None:
    assert compression_ratio("") == 0
    assert compression_ratio("ha " * 200) > 2.4 > compression_ratio("A sentence of its own.")
