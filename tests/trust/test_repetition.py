"""Loops: against a slow search, and what is and is not one."""

from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.trust.flags import looping, loops, tokens_of
from tests.support.fuzz import examples


def slow_loops(tokens: list[str]) -> set[int]:
    """The indices inside any loop, by trying every start, turn and number of turns."""
    inside: set[int] = set()
    for start in range(len(tokens)):
        for period in range(1, len(tokens)):
            turn, times = tokens[start : start + period], 1
            while tokens[start + times * period : start + (times + 1) * period] == turn:
                times += 1
            if (times >= 4 and times * period >= 8) or (times >= 3 and period >= 6):
                inside.update(range(start, start + times * period))
    return inside


TURN = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8)


@examples(100)
@given(st.lists(st.sampled_from("abc"), max_size=25), TURN, st.integers(1, 6), st.integers(0, 25))
def test_loops_are_those_of_a_slow_search(
    words: list[str], turn: list[str], times: int, at: int
) -> None:
    words[at:at] = turn * times
    slow, result = slow_loops(words), loops(words)
    covered = {i for start, stop in result for i in range(start, stop)}
    assert slow <= covered
    for start, stop in result:  # a stretch may end within a turn: nothing more is covered
        assert any(
            words[start : stop - period] == words[start + period : stop]
            for period in range(1, 1 + (stop - start) // 3)
        )


def test_segments_that_repeat_one_another() -> None:
    said = "Where were you?"
    assert looping([said, "Thank you.", "Thank you.", "Thank you.", "Thank you.", said]) == [
        *(False, True, True, True, True, False)
    ]
    assert looping(["Yes.", "No.", "Yes.", "No.", "Yes.", "No.", "Maybe."]) == [False] * 7
    assert looping(["", "", said]) == [False] * 3


def test_tokens() -> None:
    assert tokens_of("I'm HERE — „so“ 3.5!") == ("im", "here", "so", "3", "5")
    assert tokens_of("東京2020 ok") == ("東", "京", "2020", "ok")
    assert tokens_of("ﬁne Ｏ") == ("fine", "o")
