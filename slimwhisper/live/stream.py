"""One stream of audio as its updates decode it: samples in, windows for an engine, events out."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slimwhisper.checkpoint.settings import Settings
from slimwhisper.engine.requests import Answer, Request, Window
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.live.activity import BLOCK
from slimwhisper.live.passage import Passage
from slimwhisper.live.setup import Setup
from slimwhisper.live.speech import Samples, Speech
from slimwhisper.live.types import LiveEvent, LiveOptions
from slimwhisper.live.utterance import Utterance
from slimwhisper.live.warming import compile_beside
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import Dims

TOGETHER = 4  # updates of a stream that is behind


def as_samples(piece: ArrayLike) -> NDArray[np.float32]:
    """Floating [n] -> float32 [n]. Raises AudioError for other arrays and numbers that are not
    finite.
    """
    samples = np.asarray(piece)
    if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
        raise AudioError(
            f"samples of shape {list(samples.shape)} and dtype {samples.dtype}: give float32 [n], "
            "one channel at 16 kHz in [-1, 1]"
        )
    if not np.isfinite(samples).all():
        raise AudioError("samples that are not finite numbers; give float32 in [-1, 1]")
    return samples.astype(np.float32, copy=False)


class Stream:
    """The state machine of one stream. It knows no model, and belongs to one thread.

    `append` audio; whenever an update is `due`, give the engine what `request` returns, and
    `accept` its answers; take the `events`. Passages that are over may have their updates side by
    side; the one that goes on has one at a time, after them.

    The events of each utterance are, in order: SpeechStarted, Text of its updates, SpeechStopped,
    Text of the rest, Ended; the next one may start before that. Without turns too: an utterance
    then reaches from its first speech to `commit`, and a pause in it commits the text so far.
    """

    def __init__(
        self,
        dims: Dims,
        vocabulary: Vocabulary,
        options: LiveOptions,
        settings: Settings | None = None,
    ) -> None:
        """dims: of the model, as `SlimWhisper.shortened` makes it where a `window` is asked for.
        settings: that came with the model. Raises OptionError, and DependencyError without
        silero-vad.
        """
        self._of_model = dims, vocabulary, settings
        setup = Setup.of(dims, vocabulary, options, settings)
        compile_beside()
        self._passages: deque[Passage] = deque()  # not done
        self._events: list[LiveEvent] = []
        self._finished = False
        self.speech = Speech(setup, self._passages, self._events.append)
        self._running: set[Passage] = set()  # that have an update in the engine
        self._next: Passage | None = None  # whose update is to begin
        self.merged = 0  # updates that were due while another ran, and became one
        self.updates = 0  # that are done

    # -- audio in --------------------------------------------------------------------------------

    def append(self, samples: ArrayLike) -> None:
        """Floating [n] at 16 kHz, in [-1, 1]; any n. Raises AudioError for other arrays and for
        numbers that are not finite, OptionError after `finish`.
        """
        self.take(samples)
        hear_together([self])

    def take(self, samples: ArrayLike) -> None:
        """`append`, but for what `hear_together` does."""
        if self._finished:
            raise OptionError("the stream is finished; open another one for more audio")
        self.speech.pending = np.concatenate([self.speech.pending, as_samples(samples)])

    def hear(self, block: Samples, judged: Samples) -> None:
        """Judge the first block of what was taken. judged: as in `Activity.hear`."""
        self.speech.pending = self.speech.pending[BLOCK:].copy()  # not a view of all that was given
        self.speech.hear(block, judged)
        self._look()

    def commit(self) -> None:
        """End the utterance now, whoever still speaks. Without turns, one that has no speech ends
        too, if there was audio; with turns, nothing happens between utterances.
        """
        self._hear_rest()
        self.speech.commit()
        self._look()

    def clear(self) -> None:
        """Forget what is not committed; the utterance that goes on ends with what is."""
        self._hear_rest()
        self.speech.clear()
        self._look()

    def finish(self) -> None:
        """No more audio comes: the last utterance ends."""
        if not self._finished:
            self._hear_rest()
            self.speech.finish()
            self._finished = True
            self._look()

    def _hear_rest(self) -> None:
        self.speech.hear_rest()
        self._look()

    def change(self, options: LiveOptions) -> None:
        """Use these options from the next utterance on. The window stays the model's. Raises
        OptionError.
        """
        dims, vocabulary, settings = self._of_model
        if options.window != self.speech.setup.live.window:
            raise OptionError("window: it cannot change within a stream; open another one")
        self.speech.next_setup = Setup.of(dims, vocabulary, options, settings)

    # -- updates ---------------------------------------------------------------------------------

    @property
    def backlog(self) -> float:
        """Seconds that were appended and no update has known yet; silence is not counted."""
        return sum(p.audio.unheard for p in self._passages)

    @property
    def due(self) -> float | None:
        """When the next update became due, in seconds of `time.monotonic`, as a deadline: smallest
        first. Of a passage that is closed: when it was. None: no update can begin.
        """
        return None if self._next is None else self._next.deadline

    def request(self) -> tuple[Passage, Window]:
        """Begin the update that is `due`, with the newest audio: whose it is, and the window."""
        passage = self._next
        assert passage is not None
        if passage.updates and not passage.audio.closed:
            self.merged += max(int(passage.audio.unheard / passage.setup.live.update) - 1, 0)
        if not passage.audio.closed:
            passage.deadline = None
        self._running.add(passage)
        window = passage.request()
        self._look()
        return passage, window

    def accept(self, passage: Passage, answer: Answer) -> Request | None:
        """Take an answer to a running update. Returns the next request for the same slot; None:
        the update is done. Raises SlimWhisperError if the model's output was not finite; the
        stream is of no use then.
        """
        if passage in self._passages:  # else cleared meanwhile
            if (request := passage.accept(answer)) is not None:
                return request
            self.updates += 1
        self._running.remove(passage)
        self._look()
        return None

    # -- events ----------------------------------------------------------------------------------

    def events(self) -> list[LiveEvent]:
        """What has happened since the last call."""
        events = self._events.copy()
        self._events.clear()
        return events

    @property
    def ended(self) -> bool:
        """Whether the stream is finished, and all of it is told."""
        return self._finished and not (self._passages or self._running or self._events)

    # -- what is done, and what is next ----------------------------------------------------------

    def _look(self) -> None:
        """Tell the texts that are decoded, in order, and see whether an update is due."""
        while self._passages and self._passages[0] not in self._running:
            passage = self._passages[0]
            if passage.answered:
                self._events.append(passage.commit())
            if (rest := passage.settle()) is not None and rest.committed:
                self._events.append(rest)
            if not passage.done:
                break
            self._passages.popleft()
            if passage.ends_utterance:
                self._events.append(passage.utterance.ended())
        now = time.monotonic()
        for passage in self._passages:
            if passage.ready():
                known = inf if passage.deadline is None else passage.deadline
                passage.deadline = min(known, now + passage.patience)
            else:
                passage.deadline = None
        waiting = [(p.deadline, p) for p in self._may_begin() if p.deadline is not None]
        self._next = min(waiting, key=itemgetter(0), default=(0.0, None))[1]

    def _may_begin(self) -> Iterator[Passage]:
        """The first passage, and those that are closed: unless an update of it runs, or is decoded,
        or its language depends on a passage before it.
        """
        before: Utterance | None = None
        for number, passage in enumerate(self._passages):
            if len(self._running) == TOGETHER:
                return
            alone = passage.utterance is before and passage.setup.language is None
            if not (passage in self._running or passage.answered or alone):
                if number == 0 or passage.audio.closed:
                    yield passage
            before = passage.utterance


def hear_together(streams: Sequence[Stream]) -> None:
    """Judge what the streams have taken, block by block, with one call of the network for all."""
    while waiting := [s for s in streams if len(s.speech.pending) >= BLOCK]:
        blocks = np.stack([s.speech.pending[:BLOCK] for s in waiting])
        networks = [s.speech.activity.speech for s in waiting]
        judged = networks[0].together(networks, blocks)
        for stream, block, found in zip(waiting, blocks, judged, strict=True):
            stream.hear(block, found)
