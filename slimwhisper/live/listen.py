"""A stream with an engine of its own: what `SlimWhisper.live` returns."""

import asyncio
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Answer, Request, Search, Window
from slimwhisper.errors import OptionError, SlimWhisperError, as_ours
from slimwhisper.live.activity import BLOCK
from slimwhisper.live.passage import Passage
from slimwhisper.live.stream import Stream, as_samples
from slimwhisper.live.types import LiveEvent, LiveOptions
from slimwhisper.longform.engines import EnginePool
from slimwhisper.types import SAMPLE_RATE

AHEAD = 30.0  # seconds that are read ahead of the updates from an asynchronous source
POLL = 0.02  # seconds


def listen(
    engines: EnginePool, options: LiveOptions, source: Iterable[ArrayLike]
) -> Iterator[LiveEvent]:
    """The events of audio that `source` gives piece by piece. Each update runs as soon as it is
    due, so they are the same in whatever pieces the audio comes. Errors: see `SlimWhisper.live`.
    """
    stream = open_stream(engines, options)

    def events() -> Iterator[LiveEvent]:
        with engines.lend(Search(), 1) as engine:
            for piece in source:
                samples = as_samples(piece)
                for start in range(0, len(samples), BLOCK):
                    stream.append(samples[start : start + BLOCK])
                    yield from _updates(engine, stream)
            stream.finish()
            yield from _updates(engine, stream)

    return events()


class Live:
    """A stream that other threads feed, and that is iterated for its events in one.

    An update that is due while another runs takes the newest audio, so there are fewer of them
    where the machine is too slow.
    """

    def __init__(self, engines: EnginePool, options: LiveOptions) -> None:
        self._engines = engines
        self._stream = open_stream(engines, options)
        self._orders: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._closed = self._finished = self._iterated = False
        self._queued, self._behind = 0, 0.0
        self._lock = threading.Lock()

    def append(self, samples: ArrayLike) -> None:
        """Floating [n] at 16 kHz, in [-1, 1]; any n. Raises AudioError for others, OptionError
        after `finish`.
        """
        if self._finished:
            raise OptionError("the stream is finished; open another one for more audio")
        copied = as_samples(samples).copy()
        with self._lock:
            self._queued += len(copied)
        self._orders.put(partial(self._append, copied))

    def commit(self) -> None:
        """End the utterance now."""
        self._orders.put(self._stream.commit)

    def clear(self) -> None:
        """Forget what is not committed."""
        self._orders.put(self._stream.clear)

    def finish(self) -> None:
        """No more audio comes; the iteration ends when all of it is decoded."""
        self._finished = True
        self._orders.put(self._stream.finish)

    def close(self) -> None:
        """End the iteration at once."""
        self._closed = True
        self._orders.put(lambda: None)

    @property
    def backlog(self) -> float:
        """Seconds that were appended and no update has known yet; silence is not counted."""
        return self._queued / SAMPLE_RATE + self._behind

    def __iter__(self) -> Iterator[LiveEvent]:
        """The events, as they happen; waits for audio. Once only. Raises SlimWhisperError if the
        model's output was not finite.
        """
        if self._iterated:
            raise OptionError("a live stream is iterated once; open another one")
        self._iterated = True
        stream = self._stream
        with self._engines.lend(Search(), 1) as engine:
            while not (stream.ended or self._closed):
                waiting = self._orders.qsize()
                for _ in range(max(waiting, stream.due is None)):
                    self._orders.get()()
                yield from stream.events()
                if stream.due is not None and not self._closed:
                    _update(engine, stream, lambda: self._closed)
                    self._behind = stream.backlog
                yield from stream.events()

    def _append(self, samples: NDArray[np.float32]) -> None:
        with self._lock:
            self._queued -= len(samples)
        self._stream.append(samples)
        self._behind = self._stream.backlog


async def listen_async(live: Live, source: AsyncIterable[ArrayLike]) -> AsyncIterator[LiveEvent]:
    """The events of audio that `source` gives. The engine works in a thread, which has ended when
    this has, also where the consumer stops early.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[LiveEvent | SlimWhisperError | None] = asyncio.Queue()

    def tell(event: LiveEvent | SlimWhisperError | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            loop.call_soon_threadsafe(found.put_nowait, event)

    def work() -> None:
        try:
            for event in live:
                tell(event)
        except Exception as error:
            tell(as_ours(error))
        tell(None)

    async def read() -> None:
        try:
            async for piece in source:
                live.append(piece)
                while live.backlog > AHEAD:
                    await asyncio.sleep(POLL)
            live.finish()
        except BaseException:
            live.close()
            raise

    thread = threading.Thread(target=work, name="slimwhisper-live", daemon=True)
    thread.start()
    reader = asyncio.create_task(read())
    try:
        while (event := await found.get()) is not None:
            if isinstance(event, SlimWhisperError):
                raise event
            yield event
        await reader
    finally:
        live.close()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await asyncio.to_thread(thread.join)


def open_stream(engines: EnginePool, options: LiveOptions) -> Stream:
    """A stream for the model of these engines. Raises OptionError, DependencyError."""
    model = engines.model
    return Stream(model.dims, model.vocabulary, options, model.settings)


def _updates(engine: Engine, stream: Stream) -> Iterator[LiveEvent]:
    """Run the updates that are due."""
    yield from stream.events()
    while stream.due is not None:
        _update(engine, stream)
        yield from stream.events()


@dataclass(slots=True, eq=False)
class _Update:
    """An update of a stream, as the owner of its window."""

    stream: Stream
    passage: Passage
    window: Window
    given_up: bool = False

    def accept(self, answer: Answer) -> Request | None:
        return None if self.given_up else self.stream.accept(self.passage, answer)


def _update(engine: Engine, stream: Stream, given_up: Callable[[], bool] = lambda: False) -> None:
    """Run one update, unless it is given up."""
    update = _Update(stream, *stream.request())
    engine.submit(update, update.window)
    while not engine.idle:
        if not update.given_up and given_up():
            update.given_up = True
            engine.stop([update])
        engine.step()
