"""Whose turn it is, as a table."""

import pytest

from slimwhisper.service.shared_engine import EngineState, NextTurn, next_turn

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
        ([], True, NextTurn()),
        ([WAITS], False, NextTurn(allocate=[0])),
        ([NOBODY], True, NextTurn()),
        ([WORKS], True, NextTurn()),  # nobody waits
        ([WORKS, WAITS], False, NextTurn()),
        ([WORKS, WAITS], True, NextTurn(drain={0})),
        ([DONE, WAITS], True, NextTurn(release=[0], allocate=[1])),
        ([UNUSED, WAITS], False, NextTurn(release=[0], allocate=[1])),
        ([WAITS, WAITS], True, NextTurn(allocate=[0])),  # one at a time
        ([STREAM_WAITS, WAITS], False, NextTurn(allocate=[0, 1])),
        ([WAITS, STREAM_WAITS], False, NextTurn(allocate=[1, 0])),  # streams first
        ([WORKS, STREAM_WAITS], False, NextTurn(drain={0})),  # at once
        ([STREAMS, WAITS], True, NextTurn(allocate=[1])),  # streams keep theirs
        ([STREAMS, WORKS, WAITS], True, NextTurn(drain={1})),
        ([SMALL], False, NextTurn(drain={0})),
        ([SMALL_DONE], False, NextTurn(release=[0], allocate=[0])),
        ([SMALL_DONE, WAITS], False, NextTurn(release=[0], allocate=[1])),  # behind the others
    ],
)
def test_a_turn(engines: list[EngineState], over: bool, turn: NextTurn) -> None:
    assert next_turn(engines, over) == turn


@pytest.mark.parametrize("over", [False, True])
def test_where_there_is_memory_for_all(over: bool) -> None:
    """Nobody waits, and nobody gives up slots, unless for another number of them."""
    assert next_turn([WORKS, WAITS, WAITS], over, together=True) == NextTurn(allocate=[1, 2])
    assert next_turn([SMALL, WAITS], over, together=True) == NextTurn(drain={0}, allocate=[1])
