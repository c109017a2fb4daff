"""Implements `SlimWhisper.live`: one stream, whose updates are a call of the model."""

import asyncio
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slimwhisper.engine.requests import Search
from slimwhisper.errors import OptionError, SlimWhisperError, wrap_unexpected
from slimwhisper.live.stream import Stream, as_samples
from slimwhisper.live.types import LiveEvent, LiveOptions
from slimwhisper.service.shared_engine import Submission
from slimwhisper.service.source import Failed
from slimwhisper.service.transcriber import Call, Transcriber
from slimwhisper.types import SAMPLE_RATE
from slimwhisper.voice_activity import FRAME

MAX_BACKLOG = 30.0  # seconds of audio read from an asynchronous source ahead of the updates
POLL = 0.02  # seconds


class Live:
    """A stream that any thread may feed, and that one thread iterates for its events.

    `SlimWhisper.live` makes it. An update that becomes due while another one runs waits, and takes
    the newest audio, so a slow machine makes fewer updates. The stream has its place in the engine,
    for one window at a time.

    Examples:
        >>> live = model.live(language="en")
        >>> live.append(samples)  # from any thread
        >>> live.finish()
        >>> for event in live:
        ...     print(event)
    """

    def __init__(self, transcriber: Transcriber, options: LiveOptions) -> None:
        """Open a stream. Use `SlimWhisper.live` instead of this.

        Args:
            transcriber: The loop of the model, shortened to `options.window`.
            options: The options of the stream.

        Raises:
            OptionError: When an option has an invalid value.
            AudioError: When the recording of a known speaker cannot be read.
            DependencyError: When silero-vad, or a package for speakers, is not installed.
        """
        self._transcriber, self._call = transcriber, Call(transcriber, Search(), 1)
        self._stream = Stream(transcriber.model.facts, options)
        self._submission: Submission | None = None
        self._commands: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._closed = self._finished = self._iterated = False
        self._queued, self._undecoded = 0, 0.0
        self._lock = threading.Lock()

    def append(self, samples: ArrayLike) -> None:
        """Add audio. This may be called from any thread.

        Args:
            samples: Floating numbers [n] at 16 kHz, in [-1, 1]. Any n will do.

        Raises:
            AudioError: When the array has another shape or dtype, or numbers that are not finite.
            OptionError: When `finish` was called before.
        """
        if self._finished:
            raise OptionError("the stream is finished; open another stream for more audio")
        copied = as_samples(samples).copy()

        def take(piece: NDArray[np.float32]) -> None:
            with self._lock:
                self._queued -= len(piece)
            self._stream.append(piece)
            self._undecoded = self._stream.backlog

        with self._lock:
            self._queued += len(copied)
        for start in range(0, len(copied), SAMPLE_RATE):  # other callers get their turns between
            self._commands.put(partial(take, copied[start : start + SAMPLE_RATE]))

    def commit(self) -> None:
        """End the utterance now. This may be called from any thread."""
        self._commands.put(self._stream.commit)

    def clear(self) -> None:
        """Discard the audio and the text that are not committed.

        This may be called from any thread.
        """
        self._commands.put(self._stream.clear)

    def finish(self) -> None:
        """Mark the end of the audio. The iteration ends when all of it is decoded."""
        self._finished = True
        self._commands.put(self._stream.finish)

    def close(self) -> None:
        """End the iteration immediately."""
        self._closed = True
        self._commands.put(lambda: None)

    @property
    def backlog(self) -> float:
        """The seconds of audio, without silence, that no update has decoded yet."""
        return self._queued / SAMPLE_RATE + self._undecoded

    def __iter__(self) -> Iterator[LiveEvent]:
        """Iterate the events as they happen. This waits for audio, and is possible once.

        Yields:
            An event.

        Raises:
            OptionError: When the stream was iterated before.
            SlimWhisperError: When the model's output was not finite.
        """
        if self._iterated:
            raise OptionError("a live stream can be iterated only once; open another stream")
        self._iterated = True
        yield from self._iterate(self._commands.get)

    def listen(self, source: Iterable[ArrayLike]) -> Iterator[LiveEvent]:
        """Iterate the events of the audio of a source.

        Each update runs as soon as it is due, so the events do not depend on how the audio is split
        into pieces.

        Args:
            source: The pieces of audio, as for `append`.

        Yields:
            An event.

        Raises:
            AudioError: When a piece has another shape or dtype, or numbers that are not finite.
            SlimWhisperError: When the model's output was not finite.
        """

        def commands() -> Iterator[Callable[[], Any]]:
            for piece in source:
                samples = as_samples(piece)
                for start in range(0, len(samples), FRAME):  # at most one block at a time
                    yield partial(self._stream.append, samples[start : start + FRAME])
            yield self._stream.finish

        yield from self._iterate(partial(next, commands()))

    def _iterate(self, following: Callable[[], Callable[[], Any]]) -> Iterator[LiveEvent]:
        """The events up to the end; following: gives the next command, once nothing else is to be
        done.
        """
        with self._call:
            while not self._closed:
                while not self._commands.empty():
                    self._run(self._commands.get())
                events, pending = self._take()
                self._undecoded = self._stream.backlog
                yield from events
                if pending and not self._closed:
                    self._transcriber.step()
                elif self._stream.ended:
                    return
                elif not events:  # only a command changes anything now
                    self._run(following())

    def _run(self, command: Callable[[], Any]) -> None:
        with self._transcriber.paused():
            command()

    def _take(self) -> tuple[list[LiveEvent], bool]:
        """The new events, and whether updates are due or run; then steps bring more. Raises what
        has ended the stream.
        """
        with self._transcriber.paused():
            if self._submission is None:
                self._submission = self._call.submit(self._stream)
            for event in self._call.events:
                assert isinstance(event, Failed)
                raise event.error
            pending = self._stream.due is not None or bool(self._submission.running)
            return self._stream.events(), pending


async def listen_async(live: Live, source: AsyncIterable[ArrayLike]) -> AsyncIterator[LiveEvent]:
    """Iterate the events of the audio of an asynchronous source.

    The engine works in a thread, which ends before this generator does, even if the consumer stops
    early.

    Args:
        live: The stream.
        source: The pieces of audio, as for `Live.append`.

    Yields:
        An event.

    Raises:
        AudioError: When a piece has another shape or dtype, or numbers that are not finite.
        SlimWhisperError: When the model's output was not finite.
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[LiveEvent | SlimWhisperError | None] = asyncio.Queue()

    def emit(event: LiveEvent | SlimWhisperError | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the consumer is gone
            loop.call_soon_threadsafe(events.put_nowait, event)

    def work() -> None:
        try:
            for event in live:
                emit(event)
        except Exception as error:
            emit(wrap_unexpected(error))
        emit(None)

    async def read() -> None:
        try:
            async for piece in source:
                live.append(piece)
                while live.backlog > MAX_BACKLOG:
                    await asyncio.sleep(POLL)
            live.finish()
        except BaseException:
            live.close()
            raise

    thread = threading.Thread(target=work, name="slimwhisper-live", daemon=True)
    thread.start()
    reader = asyncio.create_task(read())
    try:
        while (event := await events.get()) is not None:
            if isinstance(event, SlimWhisperError):
                raise event
            yield event
        await reader
    finally:
        live.close()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await asyncio.to_thread(thread.join)
