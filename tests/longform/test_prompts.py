"""The text before each window: what was said, an initial prompt, hotwords, a prefix."""

import pytest

from slimwhisper.errors import OptionError
from tests.support.sessions import HELLO, TOKENIZER, WORLD, answer, request, session, stamp


@pytest.mark.parametrize(("temperature", "kept"), [(0.0, True), (0.5, True), (0.6, False)])
def test_what_was_sampled_hot_is_no_prompt(temperature: float, kept: bool) -> None:
    state = session(100)
    state.accept(answer(stamp(0), *WORLD, stamp(30)))
    state.accept(answer(stamp(0), *HELLO, stamp(30), temperature=temperature))
    assert (len(request(state).prompt) > 1) == kept
    state.accept(answer(stamp(0), *HELLO, stamp(30)))
    prompt = request(state).prompt
    assert (WORLD[0] in prompt) == kept
    assert HELLO[0] in prompt


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


def test_prefixes_begin_the_text_and_must_leave_room() -> None:
    state = session(100, prefix="Well, then")
    assert request(state).prompt[1:] == tuple(TOKENIZER.encode(" Well, then"))
    short = session(100, prefix="one two three", sample_len=222)
    assert request(short).prompt[1:] == tuple(TOKENIZER.encode(" two three"))
    with pytest.raises(OptionError, match="leave no room"):
        session(100, prefix="well " * 400)
