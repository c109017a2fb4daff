"""The state machine of one stream: samples come in, windows go to an engine, events come out."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slimwhisper.audio.load import check_values
from slimwhisper.engine.requests import Answer, Request, Window
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.live.segmenter import Samples, SpeechSegmenter
from slimwhisper.live.setup import UpdateSettings
from slimwhisper.live.speech_buffer import SpeechBuffer
from slimwhisper.live.types import LiveEvent, LiveOptions, SpeakersNamed
from slimwhisper.live.utterance import History, Utterance
from slimwhisper.model.model import Model
from slimwhisper.option_group import ModelFacts
from slimwhisper.service.source import SessionSource
from slimwhisper.types import SAMPLE_RATE

MAX_PARALLEL_UPDATES = 4  # updates of a stream with a backlog


def as_samples(piece: ArrayLike) -> NDArray[np.float32]:
    """Check a piece of audio.

    Args:
        piece: Floating numbers [n].

    Returns:
        The samples, float32 [n].

    Raises:
        AudioError: When the array has another shape or dtype, or numbers that are not finite or
            far outside [-1, 1].
    """
    samples = np.asarray(piece)
    if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
        what = f"samples of shape {list(samples.shape)} and dtype {samples.dtype}"
        raise AudioError(f"{what}: give float32 [n], one channel at 16 kHz in [-1, 1]")
    return check_values(samples)


class Stream(SessionSource):
    """The state machine of one stream. It has no model, and belongs to one thread.

    Append audio by `append`. Whenever an update is `due`, submit its `next_window` to an engine and
    let the stream `accept` the answers, as a `Transcriber` does. Take the `events`. Closed buffers
    may have their updates in parallel; the open one has one at a time, after them.

    The events of each utterance are, in this order: SpeechStarted, a TextUpdate for each update,
    SpeechStopped, a TextUpdate of the rest, and UtteranceEnded. The next utterance may start before
    that. With `diarize`, SpeakersNamed comes last. Without turns, an utterance lasts from its first
    speech to `commit`, and is one text as long as it fits in a window.
    """

    live = True
    done = False  # never by itself: more audio may follow

    def __init__(self, facts: ModelFacts, options: LiveOptions) -> None:
        """Open a stream.

        Args:
            facts: What is known of the model, shortened by `SlimWhisper.shortened` if the options
                have a `window`.
            options: The options of the stream.

        Raises:
            OptionError: When an option has an invalid value.
            AudioError: When the recording of a known speaker cannot be read.
            DependencyError: When silero-vad, or a package for speakers, is not installed.
        """
        self._facts, setup = facts, UpdateSettings.of(facts, options)
        self._buffers: deque[SpeechBuffer] = deque()  # not done
        self._events: list[LiveEvent] = []
        self._finished = False
        self.segmenter = SpeechSegmenter(setup, self._buffers, self._events.append)
        self._running: set[SpeechBuffer] = set()  # with an update in the engine
        self._next: SpeechBuffer | None = None  # whose update starts next
        self.merged = 0  # updates that became due while another ran, and were merged into one
        self.updates = 0  # completed

    # -- audio in --------------------------------------------------------------------------------

    def append(self, samples: ArrayLike) -> None:
        """Add audio, and process it.

        Args:
            samples: Floating numbers [n] at 16 kHz, in [-1, 1]. Any n will do.

        Raises:
            AudioError: When the array has another shape or dtype, or numbers that are not finite.
            OptionError: When `finish` was called before.
        """
        self.enqueue(samples)
        process_streams([self])

    def enqueue(self, samples: ArrayLike) -> None:
        """Add audio for `process_streams`, which processes that of many streams.

        Args:
            samples: The samples, as for `append`.

        Raises:
            AudioError: When the array has another shape or dtype, or numbers that are not finite.
            OptionError: When `finish` was called before.
        """
        if self._finished:
            raise OptionError("the stream is finished; open another one for more audio")
        parts = self.segmenter
        parts.pending = np.concatenate([parts.pending, as_samples(samples)])

    @property
    def ready_samples(self) -> int:
        """The number of samples of the next block. 0 means that they are not all there."""
        size = self.segmenter.activity.block_size
        return size if len(self.segmenter.pending) >= size else 0

    def process(self, block: Samples, probabilities: Samples) -> None:
        """Process the next block, which was taken from the pending samples.

        Args:
            block: The samples of the block.
            probabilities: The probabilities of speech, as in `VoiceActivity.process`.
        """
        self.segmenter.process(block, probabilities)
        self._advance()

    def commit(self) -> None:
        """End the utterance now, even in the middle of speech.

        Between utterances this has no effect. But without turns, audio without speech becomes an
        utterance.
        """
        self.segmenter.process_pending()
        self.segmenter.commit()
        self._advance()

    def clear(self) -> None:
        """Discard the audio and the text that are not committed. The current utterance ends."""
        self.segmenter.process_pending()
        self.segmenter.clear()
        self._advance()

    def finish(self) -> None:
        """End the last utterance. No more audio follows."""
        if not self._finished:
            self.segmenter.process_pending()
            self.segmenter.finish()
            self._finished = True
            self._advance()

    def change(self, options: LiveOptions) -> None:
        """Use other options from the next utterance on, but `turns` at once.

        The window cannot change.

        Args:
            options: The options.

        Raises:
            OptionError: When an option has an invalid value, or the window is another one.
        """
        if options.window != self.segmenter.setup.live.window:
            raise OptionError("window cannot change within a stream; open another stream")
        self.segmenter.change(UpdateSettings.of(self._facts, options))
        self._advance()

    # -- updates ---------------------------------------------------------------------------------

    @property
    def backlog(self) -> float:
        """The seconds of audio, without silence, that no update has decoded yet."""
        return sum(p.audio.undecoded_seconds for p in self._buffers)

    @property
    def due(self) -> float | None:
        """The deadline of the next update, in seconds of `time.monotonic`.

        Across streams, the earliest goes first. For a closed buffer it is the time when it was
        closed. None means that no update can start.
        """
        return None if self._next is None else self._next.deadline

    def next_window(self) -> tuple[SpeechBuffer, Window] | None:
        """Start the next update, if one is due, with the newest audio.

        Returns:
            The buffer and the window of the update, or None.
        """
        if (buffer := self._next) is None:
            return None
        if buffer.updates and not buffer.audio.closed:
            periods = int(buffer.audio.undecoded_seconds / buffer.setup.live.update)
            self.merged += max(periods - 1, 0)
        if not buffer.audio.closed:
            buffer.deadline = None
        self._running.add(buffer)
        window = buffer.request()
        self._advance()
        return buffer, window

    def accept(self, buffer: SpeechBuffer, answer: Answer) -> Request | None:
        """Process an answer to a running update.

        Args:
            buffer: The buffer of the update.
            answer: The answer.

        Returns:
            The next request for the same slot. None means that the update is done.

        Raises:
            SlimWhisperError: When the model's output was not finite. The stream is unusable then.
        """
        if buffer in self._buffers:  # else cleared in the meantime
            if (request := buffer.accept(answer)) is not None:
                return request
            self.updates += 1
        self._running.remove(buffer)
        self._advance()
        return None

    def result(self) -> None:
        """Return nothing: the stream has only its events."""

    # -- events ----------------------------------------------------------------------------------

    def events(self) -> list[LiveEvent]:
        """Take the events since the last call.

        Returns:
            The events.
        """
        events = self._events.copy()
        self._events.clear()
        return events

    @property
    def ended(self) -> bool:
        """Whether the stream is finished and all its events were taken."""
        return self._finished and not (self._buffers or self._running or self._events)

    # -- progress --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Emit the decoded texts in order, and choose the next update."""
        while self._buffers and self._buffers[0] not in self._running:
            buffer = self._buffers[0]
            if buffer.answered:
                self._events.append(buffer.commit())
            if (rest := buffer.finalize()) is not None and rest.committed:
                self._events.append(rest)
            if not buffer.done:
                break
            self._buffers.popleft()
            if buffer.ends_utterance:
                self._events.append(buffer.utterance.end_event())
        speakers = self.segmenter.speakers
        if self._finished and not self._buffers and speakers is not None:
            self._events.append(SpeakersNamed(tuple(speakers.named())))
            self.segmenter.speakers = None
        now = time.monotonic()
        for buffer in self._buffers:
            if buffer.update_due():
                current = inf if buffer.deadline is None else buffer.deadline
                buffer.deadline = min(current, now + buffer.slack)
            else:
                buffer.deadline = None
        waiting = [(p.deadline, p) for p in self._startable() if p.deadline is not None]
        self._next = min(waiting, key=itemgetter(0), default=(0.0, None))[1]

    def _startable(self) -> Iterator[SpeechBuffer]:
        """The first buffer and the closed ones, except those with an update that runs or is not
        committed, and those whose language depends on a buffer before them.
        """
        previous: Utterance | None = None
        for index, buffer in enumerate(self._buffers):
            if len(self._running) == MAX_PARALLEL_UPDATES:
                return
            language_unknown = buffer.utterance is previous and buffer.setup.language is None
            if not (buffer in self._running or buffer.answered or language_unknown):
                if index == 0 or buffer.audio.closed:
                    yield buffer
            previous = buffer.utterance


def process_streams(streams: Sequence[Stream]) -> None:
    """Process the pending samples of some streams, block by block.

    Each block is processed with one call of the network for all streams.

    Args:
        streams: The streams.
    """
    while sizes := {s: size for s in streams if (size := s.ready_samples)}:
        size = max(sizes.values())
        alike = [s for s, each in sizes.items() if each == size]
        blocks = np.stack([s.segmenter.take(size) for s in alike])
        networks = [s.segmenter.activity.stream for s in alike]
        batch = networks[0].next_batch(networks, blocks)
        for stream, block, probabilities in zip(alike, blocks, batch, strict=True):
            stream.process(block, probabilities)


def window_of_silence(model: Model, options: LiveOptions) -> Window:
    """A second of silence, for which a device prepares itself before the first stream needs it."""
    options = replace(options, language=options.language or "en")  # skips language detection
    setup = UpdateSettings.of(model.facts, options)
    buffer = SpeechBuffer(Utterance(0, 0.0, setup, History(setup.dims.n_mels)), 0, 0)
    buffer.audio.mel.append(np.zeros(SAMPLE_RATE, np.float32))
    return buffer.request()
