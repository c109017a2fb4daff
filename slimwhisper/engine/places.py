"""Where windows stand in the engine: tickets, the rows of a step, the places of a lane."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from slimwhisper.cache.base import Rows
from slimwhisper.engine.requests import Window


@dataclass(slots=True, eq=False)
class Ticket:
    """One window's stay in the engine, from its slot to its last answer."""

    tag: Any
    slot: int
    window: Window
    starts: int = 0  # how often its text has begun
    drafted: int = 0  # how many tokens of its text the window's draft gave


@dataclass(slots=True)
class Layout:
    """The rows of a step; only `extent` changes while the slots stay the same."""

    rows: Rows
    block: slice  # of all rows
    extent: int  # tokens to read of each row
    drawing: Tensor | None  # [n] int64 within the block: temperature > 0
    timestamps: bool  # at least one row samples them
    logprobs: bool = False  # at least one row's are kept token by token


@dataclass(frozen=True, slots=True)
class Places:
    """The size and position of a lane."""

    capacity: int  # places, one slot each
    width: int = 1  # rows per place
    from_end: bool = False  # the lane takes the last slots, and grows downwards
