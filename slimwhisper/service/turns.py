"""Which engines have slots: a policy without effects.

A model's engines share its memory. Those of one kind of search take turns with those of another;
an engine with live streams keeps its slots as long as there are streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the policy needs to know of an engine."""

    used: bool  # it has sources
    live: bool = False  # some of them are live
    allocated: bool = False  # it has slots
    idle: bool = True  # no windows are in them
    resize: bool = False  # another number of slots is wanted


@dataclass(slots=True)
class NextTurn:
    """What to do next, by the engines' indices."""

    drain: set[int] = field(default_factory=set)  # start no windows there, so that it becomes idle
    release: list[int] = field(default_factory=list)  # take its slots; then it is the last in turn
    allocate: list[int] = field(default_factory=list)  # make its slots, in this order


def next_turn(engines: Sequence[EngineState], over: bool, together: bool = False) -> NextTurn:
    """Whose turn it is.

    Arguments:
        engines: in the order of their turns.
        over: whether the current turn has lasted long enough, if others wait.
        together: engines do not wait for each other: there is memory for all.
    """
    turn = NextTurn()
    waiting = [i for i, engine in enumerate(engines) if engine.used and not engine.allocated]
    over = over or any(engines[i].live for i in waiting)
    holding = False
    for i, engine in enumerate(engines):
        holds = engine.allocated and not engine.live
        yields = holds and bool(waiting) and not together and (over or not engine.used)
        if engine.allocated and (yields or engine.resize):
            if engine.idle:
                turn.release.append(i)
                waiting += [i] if engine.used else []
                continue
            turn.drain.add(i)
        holding |= holds
    for i in sorted(waiting, key=lambda i: not engines[i].live):
        if holding and not together:
            break
        turn.allocate.append(i)
        holding = not engines[i].live
    return turn
