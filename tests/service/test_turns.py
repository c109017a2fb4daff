"""Whose turn it is, as a table."""

import pytest

from slimwhisper.service.turns import EngineState, Turn, next_turn

WAITS = EngineState(used=True)
STREAM_WAITS = EngineState(used=True, live=True)
WORKS = EngineState(used=True, allocated=True, idle=False)
DONE = EngineState(used=True, allocated=True)
UNUSED = EngineState(used=False, allocated=True)
STREAMS = EngineState(used=True, live=True, allocated=True, idle=False)
SMALL = EngineState(used=True, allocated=True, idle=False, resize=True)
SMALL_DONE = EngineState(used=True, allocated=True, resize=True)
NOBODY = EngineState(used=False)


@pytest.mark.parametrize(
    ("engines", "over", "turn"),
    [
        ([], True, Turn()),
        ([WAITS], False, Turn(allocate=[0])),
        ([NOBODY], True, Turn()),
        ([WORKS], True, Turn()),  # nobody waits
        ([WORKS, WAITS], False, Turn()),
        ([WORKS, WAITS], True, Turn(drain={0})),
        ([DONE, WAITS], True, Turn(release=[0], allocate=[1])),
        ([UNUSED, WAITS], False, Turn(release=[0], allocate=[1])),
        ([WAITS, WAITS], True, Turn(allocate=[0])),  # one at a time
        ([STREAM_WAITS, WAITS], False, Turn(allocate=[0, 1])),
        ([WAITS, STREAM_WAITS], False, Turn(allocate=[1, 0])),  # streams first
        ([WORKS, STREAM_WAITS], False, Turn(drain={0})),  # at once
        ([STREAMS, WAITS], True, Turn(allocate=[1])),  # streams keep theirs
        ([STREAMS, WORKS, WAITS], True, Turn(drain={1})),
        ([SMALL], False, Turn(drain={0})),
        ([SMALL_DONE], False, Turn(release=[0], allocate=[0])),
        ([SMALL_DONE, WAITS], False, Turn(release=[0], allocate=[1])),  # behind the others
    ],
)
def test_a_turn(engines: list[EngineState], over: bool, turn: Turn) -> None:
    assert next_turn(engines, over) == turn


@pytest.mark.parametrize("over", [False, True])
def test_where_there_is_memory_for_all(over: bool) -> None:
    """Nobody waits, and nobody gives up slots, unless for another number of them."""
    assert next_turn([WORKS, WAITS, WAITS], over, together=True) == Turn(allocate=[1, 2])
    assert next_turn([SMALL, WAITS], over, together=True) == Turn(drain={0}, allocate=[1])
