"""One model, its engines, and all who want something from it.

    with Call(transcriber, search, slots) as call:
        call.submit(source)
        for event in call.run():
            ...

Whoever waits for events makes the steps, in its own thread: there is no thread besides those of the
callers. Calls of several threads decode side by side in one engine for each kind of search. Their
steps take turns, and each step advances the sources of all. A server makes its steps in one thread.
"""

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch

from slimwhisper.devices import bucket_of, choose_batch_size
from slimwhisper.engine.engine import Engine, make_engine, slot_bytes, slots_within
from slimwhisper.engine.requests import Search
from slimwhisper.errors import SlimWhisperError, plain_error
from slimwhisper.model.model import Model
from slimwhisper.service.shared_engine import FairLock, SharedEngine, Submission, next_turn
from slimwhisper.service.source import Event, Failed, SessionSource, Stepped

logger = logging.getLogger("slimwhisper")

TURN = 5.0  # seconds; making an engine takes up to one, because a GPU's steps are recorded again


@dataclass(frozen=True, slots=True)
class TextMemory:
    """The memory of an engine's texts since the engine was made.

    Attributes:
        peak_bytes: The most bytes of the pages of all texts at one time.
        preemptions: How often a text released its pages for an older one.
    """

    peak_bytes: int
    preemptions: int


class Transcriber:
    """Decodes the sources of all calls of a model. Any thread may call.

    An engine that no call uses is kept, with its caches and CUDA graphs, for later calls. These are
    calls with the same search and size, and calls that decode one window at a time, whose results
    are those of a new engine to the last bit. It is dropped before another engine is made.

    Attributes:
        model: The model.
        slots: How many slots of greedy decoding all engines share. Their bytes are the budget for
            the caches of all engines, which take turns with it. None means that each call says how
            many it needs, and no engine waits for another one.
        lock: The lock that is held while a step is made.
    """

    def __init__(self, model: Model) -> None:
        """Make a transcriber of a model. It has no engines yet."""
        self.model = model
        # of greedy decoding: their bytes are the budget for the caches of all engines, which take
        # turns with it; None: each call says how many it needs, and no engine waits for another
        self.slots: int | None = None
        self._engines: list[SharedEngine] = []  # in the order of their next turns
        self._arrivals: dict[Submission, None] = {}
        self._cancelled: deque[Submission] = deque()
        self._defaults: dict[Search, int] = {}  # chosen once, as free memory varies
        self._turn_end = 0.0  # by time.monotonic()
        self.lock = FairLock()  # held while a step is made
        _transcribers.add(self)

    # -- calls ---------------------------------------------------------------------------------

    def default_slots(self, search: Search) -> int:
        """Return how many windows to decode together by default.

        Args:
            search: The decoding strategy. The number is chosen once for each.

        Returns:
            The number of windows.
        """
        if search not in self._defaults:
            size = slot_bytes(self.model, search)
            self._defaults[search] = choose_batch_size(self.model.device, size, self.nbytes())
        return self._defaults[search]

    # -- work ----------------------------------------------------------------------------------

    def step(self) -> list[Stepped]:
        """Make one step of each engine that has work.

        Returns:
            What happened in each engine.
        """
        with self.paused():
            self.prepare()
            steps = []
            for engine in [e for e in self._engines if not e.idle]:
                counting = {s.call for s in engine.submissions if s.call.steps}
                try:
                    if (stepped := engine.step()) is not None:
                        steps.append(stepped)
                        for call in counting:
                            call.emit(stepped)
                except BaseException as error:  # also KeyboardInterrupt: it may be in any state
                    self._fail(engine, error)
                    if not isinstance(error, Exception):
                        raise
            return steps

    def run(self, until: Callable[[], bool]) -> None:
        """Make steps until a condition holds, or until there is nothing to do.

        Args:
            until: The condition, which is checked before each step.
        """
        while not until() and self.working:
            self.step()

    @property
    def working(self) -> bool:
        """Whether a step has something to do."""
        waiting = self._arrivals or self._cancelled
        return bool(waiting) or any(engine.working for engine in list(self._engines))

    @property
    def used(self) -> bool:
        """Whether there are sources, even such as have nothing to decode now."""
        arriving = any(submission.call.submissions for submission in list(self._arrivals))
        return arriving or any(engine.submissions for engine in list(self._engines))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold all steps of all threads, so that sources may be changed."""
        try:
            with self.lock():
                yield
        finally:
            self.collect()

    def add(self, submission: Submission) -> None:
        """Serve a source from the next step on. This does not wait."""
        self._arrivals[submission] = None

    def cancel(self, submission: Submission) -> None:
        """End a source at the next step, without an event.

        It does not wait: a finalizer may call.
        """
        self._cancelled.append(submission)

    def prepare(self) -> None:
        """Let sources come and go, and give engines their slots and windows.

        The caller holds the lock.
        """
        self.end_cancelled()
        for submission in list(self._arrivals):
            if submission in submission.call.submissions:  # else it has ended in the meantime
                self._engine_of(submission.call).add(submission)
            del self._arrivals[submission]  # it stays there until it is somewhere else
        live = self._take_turns()
        for engine in self._engines:
            engine.fill(live, share_cores=self.slots is not None)  # by one thread

    def keep(self, call: "Call") -> None:
        """Keep the engine of a call, and make it if there is room. The caller holds the lock."""
        self._engine_of(call).keepers.add(call)
        self._take_turns()

    def end_cancelled(self) -> None:
        """Drop what was cancelled. The caller holds the lock."""
        while self._cancelled:
            submission = self._cancelled.popleft()
            for engine in self._engines:
                engine.end(submission)
            if submission in submission.call.submissions:  # it has not come to an engine
                submission.close()
            self._arrivals.pop(submission, None)

    def collect(self) -> None:
        """Drop what was cancelled, unless a thread has the lock, which does so when it is done.

        The garbage collector may call, in any thread and at any time, so this does not wait.
        """
        while self._cancelled:
            with self.lock(wait=False) as held:
                if not held:
                    return
                self.end_cancelled()

    def _engine_of(self, call: "Call") -> SharedEngine:
        """The engine of a call from now on; a new one replaces those that no call uses."""
        for engine in self._engines:
            size = 0 if engine.engine is None else engine.engine.batch_size
            fits = call.search is None and size > 0 and call.slots in (None, 1, size)
            if engine.model is call.model and (fits or engine.search == (call.search or Search())):
                break
        else:
            for unused in [e for e in self._engines if not e.used]:
                self._engines.remove(unused)
            engine = SharedEngine(call.model, call.search or Search())
            self._engines.append(engine)
        call.engine = engine
        return engine

    # -- the engines' slots --------------------------------------------------------------------

    def _take_turns(self) -> bool:
        """Give engines their slots. Returns whether there are live sources."""
        engines = self._engines.copy()
        live = any(engine.live for engine in engines)
        states = [engine.state(self._should_resize(engine, live)) for engine in engines]
        turn = next_turn(states, time.monotonic() > self._turn_end, together=self.slots is None)
        for i, engine in enumerate(engines):
            engine.draining = i in turn.drain
        for i in turn.release:
            engines[i].engine = None
            self._engines.remove(engines[i])
            self._engines.append(engines[i])
        for i in turn.allocate:
            self._allocate(engines[i])
            self._turn_end = time.monotonic() + TURN
        return live

    def _should_resize(self, engine: SharedEngine, live: bool) -> bool:
        if engine.engine is None or not engine.used:
            return False
        if self.slots is not None:
            return engine.reduced and not live
        wanted, size = self._wanted(engine), engine.engine.batch_size
        alone = len(engine.callers) == 1
        return wanted > size or (engine.engine.idle and alone and wanted not in (1, size))

    def _wanted(self, engine: SharedEngine) -> int:
        """How many slots the calls of an engine want."""
        slots = [caller.slots for caller in engine.callers if caller.slots]
        if len(slots) == 1:
            return slots[0]
        default = self.default_slots(engine.search)
        return max(*slots, bucket_of(sum(slots), default)) if slots else default

    def _allocate(self, engine: SharedEngine) -> None:
        """Make an engine, with as many slots as there may be, and at least one.

        Without a budget, it is as large as its callers want. Those who want more than there is
        memory for get the error, and no others.
        """
        while engine.used:
            refused = engine.callers
            if self.slots is not None:
                sizes = [self._within_budget(engine, self.slots)]
            else:
                largest = max(caller.slots or 0 for caller in refused)
                refused = {caller for caller in refused if (caller.slots or 0) == largest}
                sizes = [self._wanted(engine), largest or self._wanted(engine)]
            for slots in dict.fromkeys(sizes):
                try:
                    engine.engine = make_engine(engine.model, engine.search, slots)
                    return
                except Exception as error:
                    failure = error
            for caller in refused:
                self._refuse(engine, caller, failure)
        self._engines.remove(engine)

    @staticmethod
    def _refuse(engine: SharedEngine, caller: "Call", error: Exception) -> None:
        caller.error = error
        engine.keepers.discard(caller)
        for submission in [s for s in engine.submissions if s.call is caller]:
            engine.end(submission, Failed(submission.tag, error, of_engine=True))

    def _within_budget(self, engine: SharedEngine, slots: int) -> int:
        most = max(slots // (engine.search.beams or 1), 1)
        budget = slots * slot_bytes(self.model, Search())
        fit = slots_within(engine.model, engine.search, most, budget - self.nbytes())
        engine.reduced = fit < slots_within(engine.model, engine.search, most, budget)
        return fit

    def _fail(self, engine: SharedEngine, error: BaseException) -> None:
        """Drop an engine, and end its sources with an error."""
        if engine in self._engines:
            self._engines.remove(engine)
        engine.engine = None
        for caller in engine.callers:
            self._refuse(engine, caller, plain_error(error))

    def drop(self, error: BaseException | None = None) -> None:
        """Drop the engines that no call uses, and what `default_slots` has chosen.

        Args:
            error: An error. All engines are dropped then, and their sources end with it.
        """
        with self.paused():
            while error is not None and self._arrivals:
                del self._arrivals[submission := next(iter(self._arrivals))]
                if submission in submission.call.submissions:
                    submission.close(Failed(submission.tag, plain_error(error), of_engine=True))
            for engine in self._engines.copy():
                if error is not None:
                    self._fail(engine, error)
                elif not engine.used:
                    self._engines.remove(engine)
            self._defaults.clear()

    # -- memory --------------------------------------------------------------------------------

    @property
    def engines(self) -> list[Engine]:
        """The engines that have slots now. The last one is that of the newest kind of search."""
        return [e.engine for e in list(self._engines) if e.engine is not None]

    def nbytes(self) -> int:
        """Return the bytes that are allocated for the caches of all engines."""
        return sum(engine.nbytes() for engine in self.engines)

    def text_bytes(self) -> int:
        """Return the bytes of the caches that texts occupy now."""
        return sum(engine.text_bytes() for engine in self.engines)

    def text_memory(self) -> TextMemory:
        """Return the memory of the texts of the last call's engine. It is 0 if none is kept."""
        if not (engines := self.engines):
            return TextMemory(0, 0)
        return TextMemory(engines[-1].text_bytes(peak=True), engines[-1].scheduler.preemptions)


class Call:
    """The sources of one caller.

    In a `with` statement it keeps its engine between sources, and cancels those that have not ended
    when the statement is left.

    Attributes:
        search: The decoding strategy.
        slots: How many windows are decoded together at most.
        model: The model.
        engine: The engine of its last source.
        submissions: The sources that have not ended.
        events: The events that wait for `run`.
        steps: Whether `Stepped` is among its events.
        error: Why it has no engine, if it has none.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        search: Search | None,
        slots: int | None = None,
        emit: Callable[[Event], None] | None = None,
        model: Model | None = None,
    ) -> None:
        """Make a place for sources of one search. It is best used in a `with` statement.

        Args:
            transcriber: What has the engines.
            search: The decoding strategy. None means any, to detect only languages.
            slots: How many windows are decoded together at most. None means as many as the engine
                can.
            emit: A function that is called with each event, in the thread that makes the step. It
                must not raise. None means that events wait for `run`.
            model: A model with the same weights and shorter windows. None means the transcriber's.
        """
        self.transcriber, self.search, self.slots = transcriber, search, slots
        self.model = model or transcriber.model
        self.engine: SharedEngine | None = None  # of its last source
        self.submissions: dict[Submission, None] = {}  # that have not ended
        self.events: deque[Event] = deque()
        self.steps = False  # whether `Stepped` is an event, too
        self.error: Exception | None = None  # why it has no engine
        self._emit = emit or self.events.append

    def submit(self, source: SessionSource, tag: Any = None) -> Submission:
        """Decode a source.

        Args:
            source: The source.
            tag: Anything that helps the caller to know the events of this source.

        Returns:
            The source and its windows in the engine. `Transcriber.cancel` takes it.
        """
        submission = Submission(self, source, tag)
        self.submissions[submission] = None
        self.transcriber.add(submission)
        return submission

    def run(self) -> Iterator[Event]:
        """Make steps until all sources have ended.

        Yields:
            An event.
        """
        while self.submissions or self.events:
            self.transcriber.run(lambda: bool(self.events) or not self.submissions)
            while self.events:
                yield self.events.popleft()

    def fill(self) -> bool:
        """Fill free slots. Return whether some are left for other sources of this call."""
        if self.submissions and self.engine is not None and not self._may_fill:
            return False
        with self.transcriber.paused():
            self.transcriber.prepare()
        if self.events:  # an engine that cannot be made ends its sources
            return False
        running = (submission.running for submission in list(self.submissions))
        return not self.submissions or (self._may_fill and all(running))

    @property
    def _may_fill(self) -> bool:
        return self.engine is not None and self.engine.has_room and self.has_room

    @property
    def running(self) -> int:
        """The number of its windows that are in the engine."""
        return sum(len(submission.running) for submission in list(self.submissions))

    @property
    def has_room(self) -> bool:
        """Whether another one of its windows may get a slot."""
        engine = None if self.engine is None else self.engine.engine
        if self.slots is None or engine is None or self.slots >= engine.batch_size:
            return True
        return self.running < self.slots

    def emit(self, event: Event) -> None:
        """Pass an event to whoever made the call. An error there must not harm other calls."""
        try:
            self._emit(event)
        except Exception:
            logger.exception("an event's receiver failed")

    def close(self) -> None:
        """End all its sources, without events."""
        if self.engine is not None:
            self.engine.keepers.discard(self)
        for submission in list(self.submissions):
            self.transcriber.cancel(submission)
        self.transcriber.collect()

    def __enter__(self) -> Self:
        """Keep its engine from now on, until the end.

        Returns:
            The call itself.

        Raises:
            OptionError: When there is too little memory for the engine.
        """
        try:
            with self.transcriber.paused():
                self.transcriber.keep(self)
            if self.error is not None:
                raise self.error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all its sources."""
        self.close()


_transcribers: "weakref.WeakSet[Transcriber]" = weakref.WeakSet()


def _after_fork() -> None:
    """In the child, no other thread goes on: engines in the middle of a step are lost, and torch
    would wait for its own.
    """
    for transcriber in list(_transcribers):
        torch.set_num_threads(1)
        lock, transcriber.lock = transcriber.lock, FairLock()
        error = SlimWhisperError("the process was forked in the middle of a step; try again")
        if lock.held or transcriber.model.device.type == "cpu":  # idle ones count the threads there
            transcriber.drop(error if lock.held else None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
