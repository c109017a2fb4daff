"""Streams and recordings that share an engine: who is next, and what each is sure of; and whose
turn it is where several engines are wanted, as a table.
"""

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from slimwhisper.engine.requests import Search, Window
from slimwhisper.service.shared_engine import (
    EngineState,
    NextTurn,
    SharedEngine,
    Submission,
    next_turn,
)
from slimwhisper.service.source import Failed, Finished
from slimwhisper.service.transcriber import Call


@dataclass(eq=False)
class Stay:
    """A window's stay in the simulated engine."""

    owner: Any
    remaining: int  # steps

    @property
    def who(self) -> Any:
        """The stream or the recording."""
        return self.owner.submission.source


def window(steps: int) -> Window:
    """One that the simulated engine decodes in so many steps."""
    return Window(torch.empty(0), (steps,), 0, None)


@dataclass
class Engine:
    """As `slimwhisper.engine`, without a model. As on a CPU, all windows that wait and find a slot
    are encoded before a step.
    """

    slots: int
    encode_batch: int = 1
    now: int = 0  # steps so far
    waiting: deque[Stay] = field(default_factory=deque)
    inside: list[Stay] = field(default_factory=list)
    encoded: list[list[Any]] = field(default_factory=list)  # whose windows, in each step
    shared: bool = False
    preemptions: int = 0
    scheduler = property(lambda self: self)

    @property
    def batch_size(self) -> int:
        return self.slots

    @property
    def free(self) -> int:
        return self.slots - len(self.inside)

    @property
    def room(self) -> int:
        return self.free - len(self.waiting)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.inside)

    @property
    def prefetch(self) -> int:
        return self.encode_batch

    def share_cores(self, share: bool) -> None:
        self.shared = share

    def unencoded(self, owners: Container[Any]) -> int:
        return sum(stay.owner in owners for stay in self.waiting)

    def submit(self, owner: Any, window: Window) -> None:
        self.waiting.append(Stay(owner, window.prompt[0]))

    def stop(self, owners: Container[Any]) -> None:
        self.waiting = deque(stay for stay in self.waiting if stay.owner not in owners)
        for stay in self.inside:
            if stay.owner in owners:
                stay.remaining = 0

    def step(self) -> list[tuple[Stay, Any]]:
        self.encoded.append([])
        while self.waiting and self.free:
            stay = self.waiting.popleft()
            self.inside.append(stay)
            self.encoded[-1].append(stay.who)
        self.now += 1
        for stay in self.inside:
            stay.remaining -= 1
        return [(stay, "answer") for stay in self.inside if stay.remaining <= 0]

    def reply(self, stay: Stay, request: Any) -> None:
        if request is None:
            self.inside.remove(stay)
        else:
            stay.remaining = request.prompt[0]


class Quiet:
    """A source that has nothing to report or to close."""

    def report(self) -> None:
        pass

    def close(self) -> None:
        pass


class Endless(Quiet):
    """What live sources have in common here."""

    live = True
    done = False

    def next_window(self) -> Any:
        return None if self.due is None else self.request()  # type: ignore[attr-defined]


@dataclass(eq=False)
class Talker(Endless):
    """A stream in an endless utterance, an update of which is due every `period` steps."""

    engine: Engine
    begins: int = 0
    period: int = 20
    length: int = 4  # steps of an update
    retries: int = 0  # more requests in the slot
    starts: list[tuple[int, float]] = field(default_factory=list)  # step, deadline
    known: int = 0  # the audio that the last update knew, in steps
    ends: int = 0  # updates that are done
    running: bool = False
    ahead: int = 0
    on_start: Callable[[], None] = lambda: None

    @property
    def due(self) -> float | None:
        deadline = self.known + self.period if self.starts else self.begins
        return None if self.running or self.engine.now < deadline else deadline

    @property
    def backlog(self) -> float:
        return max(self.engine.now - max(self.known, self.begins), 0)

    def request(self) -> tuple[str, Window]:
        assert self.due is not None
        self.on_start()
        self.starts.append((self.engine.now, self.due))
        self.running, self.known, self.ahead = True, self.engine.now, self.retries
        return "buffer", window(self.length)

    def accept(self, passage: str, answer: str) -> Window | None:
        assert self.running and (passage, answer) == ("buffer", "answer")
        self.ahead -= 1
        if self.ahead >= 0:
            return window(self.length)
        self.running = False
        self.ends += 1
        return None

    @property
    def lateness(self) -> list[float]:
        """Steps between each deadline and the start."""
        return [start - deadline for start, deadline in self.starts]


class Upload(Quiet):
    """An upload of some windows, one after the other."""

    live = False
    due = None
    backlog = 0.0

    def __init__(self, windows: int = 2, length: int = 30) -> None:
        self.remaining, self.length, self.handed_out = windows, length, False

    def next_window(self) -> tuple[str, Window] | None:
        first, self.handed_out = not self.handed_out, True
        return ("session", window(self.length)) if first else None

    def accept(self, session: str, answer: str) -> Window | None:
        self.remaining -= 1
        return window(self.length) if self.remaining else None

    @property
    def done(self) -> bool:
        return not self.remaining

    def result(self) -> str:
        return "text"


class Shared(SharedEngine):
    """A `SharedEngine` over a simulated one."""

    def __init__(self, slots: int, encode_batch: int = 1) -> None:
        nothing: Any = Mock()  # a model
        super().__init__(nothing, Search())
        self.simulated: Any = Engine(slots, encode_batch)
        self.engine = self.simulated
        self.call = Call(Mock(model=nothing), Search())

    def submit(self, source: Any, tag: object = None) -> Submission:
        submission = Submission(self.call, source, tag)
        self.call.submissions[submission] = None
        self.add(submission)
        return submission

    @property
    def updates(self) -> int:
        return sum(len(submission.running) for submission in self.live)


def add_talkers(shared_engine: Shared, count: int, **settings: Any) -> list[Talker]:
    talkers = [Talker(shared_engine.simulated, **settings) for _ in range(count)]
    for talker in talkers:
        shared_engine.submit(talker)
    return talkers


def add_uploads(shared_engine: Shared, count: int, **settings: int) -> None:
    for number in range(count):
        shared_engine.submit(Upload(**settings), number)


def drop(shared_engine: Shared, source: Any) -> None:
    for submission in list(shared_engine.submissions):
        if submission.source is source:
            shared_engine.end(submission)
            shared_engine.end(submission)  # no effect


def run(shared_engine: Shared, steps: int, each: Callable[[], None] = lambda: None) -> list[Any]:
    """The recordings that end."""
    for _ in range(steps):
        shared_engine.fill(live=bool(shared_engine.live))
        if shared_engine.step() is None:
            shared_engine.simulated.step()  # time goes on
        each()
    events = [shared_engine.call.events.popleft() for _ in range(len(shared_engine.call.events))]
    return [event.tag for event in events if isinstance(event, Finished)]


@pytest.mark.parametrize("retries", [0, 2])
def test_one_update_of_a_stream_at_a_time(retries: int) -> None:
    """Those that are due meanwhile start once, with the newest audio; retries keep the slot."""
    shared_engine = Shared(slots=4)
    (talker,) = add_talkers(shared_engine, 1, period=2, length=9, retries=retries)
    run(shared_engine, 101)
    stay = 9 * (1 + retries)
    assert [start for start, _ in talker.starts] == list(range(0, 101, stay))


@pytest.mark.parametrize("slots", [1, 2])
def test_the_oldest_deadline_first(slots: int) -> None:
    shared_engine = Shared(slots)
    order: list[int] = []
    for begins in (5, 3, 4, 1, 2):
        (talker,) = add_talkers(shared_engine, 1, begins=begins, period=1000, length=3)
        talker.on_start = lambda begins=begins: order.append(begins)
    run(shared_engine, 30)
    assert order == [1, 2, 3, 4, 5]


@dataclass(eq=False)
class Behind(Endless):
    """A stream of which so many passages are over; the ones that run are side by side."""

    over: int
    closed: float = 0.0  # when
    backlog: float = 1.0
    running: list[int] = field(default_factory=list)
    most: int = 4

    @property
    def due(self) -> float | None:
        return self.closed if self.over and len(self.running) < self.most else None

    def request(self) -> tuple[int, Window]:
        self.over -= 1
        self.running.append(self.over)
        return self.over, window(5)

    def accept(self, passage: int, answer: str) -> None:
        self.running.remove(passage)


def test_what_is_over_is_decoded_at_once() -> None:
    """A stream that is behind catches up side by side; when it is dropped, all of it goes."""
    shared_engine = Shared(slots=8, encode_batch=4)
    late, gone = Behind(10), Behind(10, closed=1.0)
    shared_engine.submit(gone)
    shared_engine.submit(late)
    run(shared_engine, 1)
    assert shared_engine.simulated.encoded == [[late] * 4], "since when it is over decides"
    run(shared_engine, 1)
    assert shared_engine.updates == 8
    drop(shared_engine, gone)
    assert shared_engine.updates == 4, "its slots are free at once"
    run(shared_engine, 18)
    assert not (late.over or late.running or shared_engine.updates)
    assert shared_engine.idle


def test_a_source_whose_last_session_has_no_window_ends() -> None:
    shared_engine, source = Shared(slots=2), Upload()
    shared_engine.submit(source, "it")
    source.next_window = lambda: setattr(source, "remaining", 0)  # type: ignore[method-assign]
    assert run(shared_engine, 1) == ["it"] and not shared_engine.working


@pytest.mark.parametrize("encode_batch", [1, 8])
def test_cores_are_shared_while_there_are_streams(encode_batch: int) -> None:
    shared_engine = Shared(slots=4, encode_batch=encode_batch)
    shared_engine.submit(Upload())
    for live in (False, True, False):
        shared_engine.fill(live, share_cores=True)
        assert shared_engine.simulated.shared == live


@pytest.mark.parametrize("encode_batch", [1, 8])
def test_uploads_do_not_keep_streams_waiting(encode_batch: int) -> None:
    """64 uploads and 8 streams: there is always a slot, and at most one window of an upload goes
    to the encoder with an update.
    """
    shared_engine = Shared(slots=16, encode_batch=encode_batch)
    talkers = add_talkers(shared_engine, 8, period=20, length=4)
    add_uploads(shared_engine, 64)
    assert len(run(shared_engine, 700)) == 64
    for talker in talkers:
        assert len(talker.starts) > 25 and max(talker.lateness) <= 8
    for encoded in shared_engine.simulated.encoded:
        uploads = [who for who in encoded if isinstance(who, Upload)]
        assert len(uploads) <= 1 and len(encoded) - len(uploads) <= encode_batch


def test_streams_that_come_late_find_a_slot() -> None:
    """Where uploads have all slots already, from the first one that gets free."""
    shared_engine = Shared(slots=8)
    add_uploads(shared_engine, 64, windows=5)
    run(shared_engine, 45)
    assert shared_engine.simulated.free == 0
    talkers = add_talkers(shared_engine, 4, begins=45, period=20)
    run(shared_engine, 400)
    for talker in talkers:
        assert talker.lateness[0] <= 45 and max(talker.lateness[2:]) <= 4


def test_streams_leave_uploads_a_quarter() -> None:
    """64 streams want more than the engine can do."""
    shared_engine = Shared(slots=16, encode_batch=4)
    talkers = add_talkers(shared_engine, 64, period=5, length=10)
    add_uploads(shared_engine, 8, windows=1000, length=10)
    shares: list[int] = []

    def count() -> None:
        inside = [stay.who for stay in shared_engine.simulated.inside]
        shares.append(sum(isinstance(who, Upload) for who in inside))

    run(shared_engine, 400, count)
    assert min(shares[20:]) >= 4 - 1, "one may have just ended"
    assert sum(shares[20:]) / len(shares[20:]) >= 3.5
    ends = [talker.ends for talker in talkers]
    assert min(ends) > 0 and max(ends) - min(ends) <= 1, "all in turn"


@pytest.mark.parametrize(("streams", "used"), [(0, 16), (10, 15)])
def test_streams_take_no_more_than_they_need(streams: int, used: int) -> None:
    """One slot is kept for streams that are silent; without any, uploads fill all."""
    shared_engine = Shared(slots=16)
    add_talkers(shared_engine, streams, begins=10_000)
    add_uploads(shared_engine, 64)
    run(shared_engine, 25)
    assert 16 - shared_engine.simulated.free == used


def test_dropped_streams_leave_nothing() -> None:
    """While they wait, decode, or have been answered; others go on."""
    shared_engine = Shared(slots=4, encode_batch=2)
    shared_engine.submit(Upload(windows=4), "upload")
    stays = add_talkers(shared_engine, 1, period=10)
    for at in range(1, 60):
        gone = add_talkers(shared_engine, 3, length=7)
        run(shared_engine, at % 9)
        for talker in gone:
            drop(shared_engine, talker)
    run(shared_engine, 200)
    drop(shared_engine, stays[0])
    assert not shared_engine.submissions
    while shared_engine.working:
        run(shared_engine, 1)
    assert shared_engine.simulated.free == 4 and not shared_engine.call.submissions
    assert stays[0].ends > 10


METHODS = {False: ["next_window", "accept", "report", "done", "result", "close"]}
METHODS[True] = METHODS[False][:3]  # a stream ends by its caller


@pytest.mark.parametrize(("live", "method"), [(k, m) for k, each in METHODS.items() for m in each])
def test_a_source_that_fails_is_alone_in_it(live: bool, method: str) -> None:
    """Whichever of its methods raises: others go on, and nothing of it stays in the engine."""
    shared_engine = Shared(slots=4)
    kind: Any = Talker if live else Upload

    class Bad(kind):  # type: ignore[misc]
        pass

    fails = Mock(side_effect=OSError("no more"))
    began = Bad(shared_engine.simulated) if live else Bad()
    (good,) = add_talkers(shared_engine, 1)
    bad = shared_engine.submit(began, "bad")
    setattr(Bad, method, property(fails) if method == "done" else fails)
    shared_engine.submit(Upload(), "good")
    events = shared_engine.call.events
    for _ in range(150):
        shared_engine.fill(live=True)
        shared_engine.step()
        if len(events) == 2:
            break
        shared_engine.simulated.step()
    ends = {event.tag: event for event in events if isinstance(event, Failed | Finished)}
    assert isinstance(ends["good"], Finished)
    if method != "close":
        failed = ends["bad"]
        assert isinstance(failed, Failed) and str(failed.error) == "no more"
        assert not failed.of_engine
    assert good.ends >= 1 and bad not in shared_engine.submissions and not bad.running


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
