"""What scheduler and runner tell each other: windows as tickets, lanes of them, and plans."""

from dataclasses import dataclass, field
from enum import Enum

from slimwhisper.engine.requests import Align, Answer, Owner, Window


class State(Enum):
    """What a window in the engine waits for."""

    WAITING = 1  # for a slot
    ENCODING = 2
    READY = 3  # encoded: for a lane and pages, the language, or the alignment
    DECODING = 4
    ANSWERED = 5  # for the reply
    GONE = 6


@dataclass(slots=True, eq=False)
class Ticket:
    """One window's stay in the engine, from its submission to its last answer."""

    owner: Owner
    window: Window
    number: int  # in the order of submission
    state: State = State.WAITING
    slot: int = -1
    align: Align | None = None  # asked for instead of a text
    # of the text in progress
    home: int = 0  # the place of its lane where forms without pages keep it
    length: int = 0  # tokens with the prompt
    count: int = 0  # tokens sampled
    limit: int = 0  # most tokens to sample
    drafted: int = 0  # how many tokens of it the window's draft gave
    resume: tuple[int, ...] = ()  # the tokens that it had when it gave its pages back
    # by page of the text: one page, if all rows share it, or one for each row
    pages: list[list[int]] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether its text may not become longer."""
        return self.count >= self.limit

    @property
    def draft(self) -> tuple[int, ...]:
        """What to check with the prompt."""
        return self.resume or self.window.draft


@dataclass(slots=True, eq=False)
class Lane:
    """Windows that are decoded side by side, in the order of their rows: `width` rows each."""

    width: int
    capacity: int
    ahead: int = 0  # tokens that a step may write after the next one
    resumes: bool = False  # texts may start with tokens that are given
    tickets: list[Ticket] = field(default_factory=list)
    _homes: set[int] = field(default_factory=set)  # in use

    @property
    def room(self) -> int:
        """How many more windows may be decoded."""
        return self.capacity - len(self.tickets)

    def add(self, ticket: Ticket) -> None:
        """Decode one more, in the last rows."""
        ticket.home = next(h for h in range(self.capacity) if h not in self._homes)
        self._homes.add(ticket.home)
        self.tickets.append(ticket)

    def remove(self, ticket: Ticket) -> tuple[int, int]:
        """Take one out; the last takes its place. Returns (the last place, its place)."""
        place, last = self.tickets.index(ticket), len(self.tickets) - 1
        self._homes.discard(ticket.home)
        self.tickets[place] = self.tickets[last]
        del self.tickets[last]
        return last, place


@dataclass(frozen=True, slots=True)
class Move:
    """The rows of place `source` take those of place `target`; then `source` is unused."""

    lane: Lane
    source: int
    target: int
    saved: Ticket | None = None  # first, keep the tokens of the target's text: it resumes later


@dataclass(slots=True)
class Start:
    """Windows whose texts begin together, at places first, first + 1 ... of a lane."""

    lane: Lane
    first: int
    tickets: list[Ticket]


@dataclass(slots=True)
class Plan:
    """What one step of the engine does, in this order."""

    moves: list[Move] = field(default_factory=list)
    pages: list[tuple[Lane, int, int, int]] = field(default_factory=list)  # row, index, page
    align: list[Ticket] = field(default_factory=list)
    encode: list[Ticket] = field(default_factory=list)
    languages: list[Ticket] = field(default_factory=list)
    start: list[Start] = field(default_factory=list)
    step: list[Lane] = field(default_factory=list)  # those that have started, too

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do but to wait for the encoder."""
        return not (self.align or self.languages or self.step)


@dataclass(slots=True)
class Results:
    """What came of a plan."""

    encoded: list[Ticket] = field(default_factory=list)
    answers: list[tuple[Ticket, Answer]] = field(default_factory=list)
    # of windows with several rows: the whole pages that each of them reads
    read: list[tuple[Ticket, list[list[int]]]] = field(default_factory=list)
