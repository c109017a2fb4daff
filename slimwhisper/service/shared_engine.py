"""One engine, and the sources whose windows share its slots; and which of a model's engines have
slots, a policy without effects.

A model's engines share its memory. Those of one kind of search take turns with those of another;
an engine with live streams keeps its slots as long as there are streams.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from slimwhisper.engine.engine import ENCODE_BATCH, Engine
from slimwhisper.engine.requests import Answer, Search, Window
from slimwhisper.errors import SlimWhisperError, memory_errors, plain_error
from slimwhisper.service.source import Failed, Finished, Progress, SessionSource, Stepped

if TYPE_CHECKING:
    from slimwhisper.engine.scheduler import Ticket
    from slimwhisper.model.model import Model
    from slimwhisper.service.transcriber import Call


logger = logging.getLogger("slimwhisper")


class EngineState(NamedTuple):
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


class FairLock:
    """A lock whose waiting threads get it in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[list[int]] = deque()  # identities of threads; the first one has it

    @property
    def held(self) -> bool:
        """Whether a thread has it, or waits for it."""
        return bool(self._queue)

    @contextmanager
    def __call__(self, wait: bool = True) -> Iterator[bool]:
        """Hold it; without `wait`, only if nobody has it or waits for it. Whether it is held."""
        place, held = [threading.get_ident()], False
        try:
            with self._changed:
                held = wait or not self._queue
                if held:
                    # one of this thread's is left of an interrupt, as nobody gets it twice
                    self._queue = deque(other for other in self._queue if other != place)
                    self._queue.append(place)
                    self._changed.wait_for(lambda: self._queue[0] is place)
            yield held
        finally:
            if held:
                with self._changed:
                    self._queue = deque(other for other in self._queue if other is not place)
                    self._changed.notify_all()


RECORDINGS_SHARE = 4  # streams leave 1 / RECORDINGS_SHARE of the slots to waiting recordings


@dataclass(slots=True, eq=False)
class Submission:
    """A source that was submitted, and its windows in the engine."""

    call: Call
    source: SessionSource
    tag: Any  # of the caller's, for the events
    running: set[Decoding] = field(default_factory=set)  # in a slot, or waiting for one
    # sessions that gave up their slots to others, each with its next window
    paused: deque[tuple[Any, Window]] = field(default_factory=deque)

    def close(self, event: Finished | Failed | None = None) -> None:
        """End it. event: the last one that its call gets."""
        self.running.clear()
        self.paused.clear()
        try:
            self.source.close()
        except Exception:
            logger.exception("a source could not be closed")
        if event is not None:  # before it is forgotten: who waits looks for the one or the other
            self.call.emit(event)
        self.call.submissions.pop(self, None)


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """A session of a source with a slot, or waiting for one: the owner of its windows."""

    submission: Submission
    session: Any


class SharedEngine:
    """One engine, or the place of one that waits for its turn, and its sources.

    Of the live windows that are due, the one with the earliest deadline starts first. Recordings
    share the other slots fairly. While there are live sources, one slot for each that has audio to
    decode, and one for the next, are reserved; waiting recordings keep a quarter of the slots, at
    least one, and hand the encoder one window at a time, so that no live window waits for more.
    """

    def __init__(self, model: Model, search: Search) -> None:
        self.model, self.search = model, search
        self.engine: Engine | None = None  # None: it waits for its turn
        self.draining = False  # recordings start no windows, so that the engine becomes idle
        self.reduced = False  # it has fewer slots than it could, because of live sources
        self.submissions: dict[Submission, None] = {}  # in the order of their last slots
        self.keepers: set[Call] = set()  # who keep it, even between their sources
        self.unused = 0  # slots that recordings leave free
        self._live_were_first = False  # with a single slot, live sources and recordings take turns

    # -- what there is -------------------------------------------------------------------------

    @property
    def live(self) -> list[Submission]:
        """The submissions with deadlines."""
        return [s for s in self.submissions if s.source.live]

    @property
    def recordings(self) -> list[Submission]:
        """The submissions without."""
        return [s for s in self.submissions if not s.source.live]

    @property
    def used(self) -> bool:
        """Whether anybody needs it."""
        return bool(self.submissions or self.keepers)

    @property
    def callers(self) -> set[Call]:
        """Who need it."""
        return self.keepers.union(s.call for s in self.submissions)

    @property
    def idle(self) -> bool:
        """Whether no windows are in the engine."""
        return self.engine is None or self.engine.idle

    @property
    def working(self) -> bool:
        """Whether a step has something to do."""
        waits = any(not s.source.live or s.source.due is not None for s in list(self.submissions))
        return waits or not self.idle

    @property
    def has_room(self) -> bool:
        """Whether recordings may get another slot."""
        return self.engine is not None and self.engine.room > self.unused

    def state(self, resize: bool) -> EngineState:
        """As the policy sees it."""
        return EngineState(self.used, bool(self.live), self.engine is not None, self.idle, resize)

    @property
    def most(self) -> int:
        """How many windows may be in the engine, by the limits of the calls."""
        limits = {s.call: s.call.slots for s in self.submissions}
        size = 0 if self.engine is None else self.engine.batch_size
        return min(sum(size if n is None else n for n in limits.values()), size)

    # -- slots ---------------------------------------------------------------------------------

    def fill(self, live: bool, share_cores: bool = False) -> None:
        """Fill free slots.

        Arguments:
            live: whether there are live sources, in this engine or in another.
            share_cores: whether the encoder may work beside the decoder for them, which sets how
                many threads torch uses in the calling thread.
        """
        engine = self.engine
        if engine is None:
            return
        engine.share_cores(live and share_cores)
        if self.draining:
            self.unused = engine.slots
            return
        if not live:
            self.unused = 0
            self._fill_recordings(engine)
            return
        slots, streams = engine.slots, self.live
        for_recordings = -(-slots // RECORDINGS_SHARE)
        limit = slots if len(streams) == len(self.submissions) else max(slots - for_recordings, 1)
        speaking = sum(bool(s.running) or s.source.backlog > 0 for s in streams)
        reserved = min(len(streams), speaking + 1, slots - for_recordings)
        if not (slots == 1 and self._live_were_first):
            self._fill_live(engine, streams, limit)
        self.unused = max(reserved - len(self._running(streams)), 0)
        self._fill_recordings(engine, most=1)
        if slots == 1 and self._live_were_first:
            self._fill_live(engine, streams, limit)
        self._live_were_first = len(self._running(streams)) > 0

    @staticmethod
    def _running(submissions: list[Submission]) -> set[Decoding]:
        return {decoding for s in submissions for decoding in s.running}

    def _fill_live(self, engine: Engine, streams: list[Submission], limit: int) -> None:
        """Start live windows that are due.

        A GPU's encoder gets one full batch ahead. On a CPU it gets a few windows: updates that
        start later have newer audio. limit: of live windows in the engine.
        """
        free_windows = min(ENCODE_BATCH, engine.prefetch - engine.unencoded(self._running(streams)))
        while free_windows > 0 and len(self._running(streams)) < limit and engine.room > 0:
            able = [s for s in streams if s in self.submissions and s.call.has_room]
            due = [(at, i) for i, s in enumerate(able) if (at := s.source.due) is not None]
            if not due:
                return
            free_windows -= self._start(engine, able[min(due)[1]])

    def _fill_recordings(self, engine: Engine, most: int | None = None) -> None:
        """Start recordings' windows: first of the one with the fewest in slots, then of the one
        that waits longest.

        most: windows that may wait for the encoder, or be in it; None: any number.
        """
        while engine.room > self.unused:
            waiting = self.recordings
            if most is not None and engine.unencoded(self._running(waiting)) >= most:
                return
            waiting.sort(key=lambda s: len(s.running))
            if not any(self._start(engine, s) for s in waiting if s.call.has_room):
                return

    def _start(self, engine: Engine, submission: Submission) -> bool:
        """Give a submission's next window a slot; False: it has none."""
        try:
            if submission.paused:
                session, window = submission.paused.popleft()
            elif (following := submission.source.next_window()) is not None:
                session, window = following
            else:
                self._end_done(submission)  # its last sessions may have had no windows
                return False
            decoding = Decoding(submission, session)
            engine.submit(decoding, window)
        except BaseException as error:
            self._end_failed(submission, error)
            return False
        self.submissions[submission] = self.submissions.pop(submission)
        submission.running.add(decoding)
        return True

    # -- answers -------------------------------------------------------------------------------

    def step(self) -> Stepped | None:
        """One step of the engine; its sources get their answers. None: it had no windows."""
        engine = self.engine
        if engine is None or engine.idle:
            return None
        filled = min(engine.slots - engine.room, engine.batch_size)
        slots = max(filled, min(engine.slots - self.unused, self.most))
        before, since = engine.scheduler.preemptions, time.perf_counter()
        few = f"batch_size {engine.batch_size}: not enough memory on {self.model.device}"
        with memory_errors(SlimWhisperError, f"{few}; choose a smaller batch_size, or model"):
            answers = engine.step()
        for ticket, answer in answers:
            self._accept(engine, ticket, answer)
        preempted = engine.scheduler.preemptions - before
        return Stepped(filled, slots, time.perf_counter() - since, preempted)

    def _accept(self, engine: Engine, ticket: Ticket, answer: Answer) -> None:
        """Pass an answer to its session, and the next request to the engine, or free the slot.

        After a window, a recording gives up its slot if another one has none, or if no slot is to
        be used any more. An answer whose request the engine refuses ends its source alone.
        """
        decoding, request = ticket.owner, None
        assert isinstance(decoding, Decoding)
        submission, source = decoding.submission, decoding.submission.source
        try:
            if decoding in submission.running:  # else it has ended in the meantime
                request = source.accept(decoding.session, answer)
                if isinstance(request, Window) and self._must_pause(engine, submission, request):
                    submission.paused.append((decoding.session, request))
                    request = None
                if request is None:
                    submission.running.discard(decoding)
                if (news := source.report()) is not None:
                    submission.call.emit(Progress(submission.tag, news))
                self._end_done(submission)
            engine.reply(ticket, request if submission in self.submissions else None)
        except Exception as error:
            self.end(submission, Failed(submission.tag, error))
            engine.reply(ticket, None)

    def _must_pause(self, engine: Engine, submission: Submission, request: Window) -> bool:
        if request.mel is None or submission.source.live:
            return False
        live_waits = engine.slots == 1 and any(s.source.due is not None for s in self.live)
        all_run = all(s.running for s in self.recordings)
        return live_waits or self.unused >= engine.slots or not all_run

    # -- sources come and go -------------------------------------------------------------------

    def add(self, submission: Submission) -> None:
        """Serve a source until it ends; one that has nothing to decode ends immediately."""
        self.submissions[submission] = None
        try:
            self._end_done(submission)
        except BaseException as error:
            self._end_failed(submission, error)

    def _end_done(self, submission: Submission) -> None:
        if submission.source.done:
            self.end(submission, Finished(submission.tag, submission.source.result()))

    def _end_failed(self, submission: Submission, error: BaseException) -> None:
        """End a source that has raised. What interrupts the thread is raised again."""
        interrupts = not isinstance(error, Exception)
        self.end(submission, Failed(submission.tag, plain_error(error), of_engine=interrupts))
        if interrupts:
            raise error

    def end(self, submission: Submission, event: Finished | Failed | None = None) -> None:
        """Serve a source no more: its windows in the engine are discarded. event: the last one
        that its call gets. No effect if it has ended already.
        """
        if submission not in self.submissions:
            return
        del self.submissions[submission]
        if submission.running and self.engine is not None:
            self.engine.stop(submission.running.copy())
        submission.close(event)
