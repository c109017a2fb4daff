"""The data that scheduler and runner exchange: tickets of windows, row groups, plans, results."""

from dataclasses import dataclass, field
from enum import Enum

from slimwhisper.engine.requests import Align, Answer, Window


class TicketState(Enum):
    """The stage that a window has reached in the engine."""

    WAITING = 1  # waits for a slot
    ENCODING = 2
    READY = 3  # encoded; waits for rows and pages, the language, or the alignment
    DECODING = 4
    ANSWERED = 5  # waits for what follows
    GONE = 6


@dataclass(slots=True)
class DraftCounts:
    """How the drafts of a text have done; at first, as if 80 % of four tokens had been accepted."""

    read: int = 0  # tokens of the text that the drafter has read
    # drafted tokens that were accepted, and compared; the later ones count for more
    accepted: float = 0.8 * 4
    checked: float = 4


@dataclass(slots=True, eq=False)
class Ticket:
    """One window's stay in the engine, from its submission to its last answer."""

    owner: object  # whoever asked; equal owners are stopped together
    window: Window
    number: int  # in the order of submission
    state: TicketState = TicketState.WAITING
    slot: int = -1
    align: Align | None = None  # the request, if it is for an alignment
    # of the text in progress
    cache_index: int = 0  # in the caches of forms without pages, of its group
    count: int = 0  # tokens sampled
    limit: int = 0  # most tokens to sample
    drafted: int = 0  # how many of its tokens came from the window's draft
    drafts: DraftCounts = field(default_factory=DraftCounts)
    resume: tuple[int, ...] = ()  # the tokens that it had when it was preempted
    # for each page of the text: one page, if all rows share it, or one for each row
    pages: list[list[int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens of the text in progress, with its prompt."""
        return len(self.window.prompt) + self.count

    @property
    def full(self) -> bool:
        """Whether its text has reached its limit."""
        return self.count >= self.limit

    @property
    def draft(self) -> tuple[int, ...]:
        """The tokens to verify together with the prompt."""
        return self.resume or self.window.draft


@dataclass(slots=True, eq=False)
class RowGroup:
    """Windows that are decoded together, in the order of their rows: `width` rows each."""

    width: int
    capacity: int
    lookahead: int = 0  # tokens that a step may write after the next one
    resumable: bool = False  # a prompt may be followed by a draft
    tickets: list[Ticket] = field(default_factory=list)
    _cache_indices: set[int] = field(default_factory=set)  # in use

    @property
    def room(self) -> int:
        """How many more windows fit."""
        return self.capacity - len(self.tickets)

    def add(self, ticket: Ticket) -> None:
        """Append a window; it gets the rows after all others'."""
        ticket.cache_index = next(i for i in range(self.capacity) if i not in self._cache_indices)
        self._cache_indices.add(ticket.cache_index)
        self.tickets.append(ticket)

    def remove(self, ticket: Ticket) -> tuple[int, int]:
        """Remove a window; the last one takes its rows. Returns (the last index, its index)."""
        index, last = self.tickets.index(ticket), len(self.tickets) - 1
        self._cache_indices.discard(ticket.cache_index)
        self.tickets[index] = self.tickets[last]
        del self.tickets[last]
        return last, index


@dataclass(frozen=True, slots=True)
class Move:
    """Window `source` of a group moves to the rows of window `target`, both indices."""

    group: RowGroup
    source: int
    target: int
    saved: Ticket | None = None  # first, save the tokens of the target's text: it resumes later


@dataclass(slots=True)
class TextStart:
    """Windows first, first + 1 ... of a group, whose texts begin in the same step."""

    group: RowGroup
    first: int
    tickets: list[Ticket]


@dataclass(slots=True)
class Plan:
    """One step of the engine, in this order."""

    moves: list[Move] = field(default_factory=list)
    pages: list[tuple[RowGroup, int, int, int]] = field(default_factory=list)  # row, index, page
    align: list[Ticket] = field(default_factory=list)
    encode: list[Ticket] = field(default_factory=list)
    starved: bool = False  # rows wait for what is encoded
    languages: list[Ticket] = field(default_factory=list)
    start: list[TextStart] = field(default_factory=list)
    step: list[RowGroup] = field(default_factory=list)  # with the texts that start in this step

    @property
    def idle(self) -> bool:
        """Whether all there is to do is to wait for the encoder."""
        return not (self.align or self.languages or self.step)


@dataclass(slots=True)
class Results:
    """The outcome of a plan."""

    encoded: list[Ticket] = field(default_factory=list)
    answers: list[tuple[Ticket, Answer]] = field(default_factory=list)
    # of windows with several rows: the full pages that each row still reads
    read_pages: list[tuple[Ticket, list[list[int]]]] = field(default_factory=list)
