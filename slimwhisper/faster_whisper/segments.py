"""The models of this process, and the segments of their recordings.

Models with the same checkpoint, device and dtype are one, so that recordings of several threads are
decoded side by side.
"""

import threading
import weakref
from collections.abc import Iterator
from dataclasses import fields
from itertools import count
from typing import Any

from tqdm import tqdm

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.samples import Samples
from slimwhisper.cores import set_threads
from slimwhisper.faster_whisper.types import Segment, Word
from slimwhisper.loading import load_model
from slimwhisper.longform.requests import search_of
from slimwhisper.recordings.transcribe import RecordingSource, make_recording
from slimwhisper.service.source import Failed, Progress
from slimwhisper.service.transcriber import Call
from slimwhisper.text import SafeStream
from slimwhisper.types import Segment as OurSegment

# by the threads, and the arguments of `load_model`
_models: "weakref.WeakValueDictionary[tuple[object, ...], SlimWhisper]"
_models = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_model(threads: int, **arguments: Any) -> SlimWhisper:
    """Return the model for some arguments, one for all that are the same.

    It is loaded on first use, and freed with the last `WhisperModel` and iterator.

    Args:
        threads: The number of threads, as in `set_threads`.
        **arguments: The arguments of `load_model`.

    Returns:
        The model.

    Raises:
        CheckpointError: When the model cannot be found, downloaded or loaded.
        OptionError: When an argument has an invalid value.
    """
    key = threads, *sorted(arguments.items())
    with _lock:
        set_threads(threads)  # of the process: those of the model that was made last
        model = _models.get(key)
        if model is None:
            model = _models[key] = load_model(**arguments)
        return model


class SegmentIterator(Iterator[Segment]):
    """The segments of one recording, each of which is decoded when it is asked for.

    To drop the iterator, or to call its `close`, ends the work.

    Attributes:
        recording: The recording.
        close: Ends the work.
    """

    def __init__(
        self,
        model: SlimWhisper,
        samples: Samples,
        options: dict[str, Any],
        slots: int,
        log_progress: bool,
    ) -> None:
        """Decode until the language of the recording is known.

        Args:
            model: The model.
            samples: The samples of the recording.
            options: The fields of `slimwhisper.Options`.
            slots: How many windows are decoded together.
            log_progress: Whether to show a progress bar.

        Raises:
            OptionError: When an option has an invalid value.
            Exception: When something else ends the recording.
        """
        chosen = model.make_options(**options)
        self.recording = make_recording(samples, model.network, chosen)
        self._call = Call(model.transcriber, search_of(chosen), slots)
        self._model = model
        self._ready: list[Segment] = []
        self._numbers = count(1)
        err = SafeStream("stderr")
        self._bar = tqdm(unit="seconds", disable=not log_progress, file=err, dynamic_ncols=True)
        self.close = weakref.finalize(self, self._call.close)
        self.close.atexit = False
        self._call.submit(RecordingSource(self.recording))
        session = self.recording.sessions[0]
        while self._call.submissions and session.language is None:
            self._receive()
        self._receive_ready()
        self._bar.reset(round(self.recording.seconds, 2))

    def __next__(self) -> Segment:
        """Return the next segment.

        Returns:
            The segment.

        Raises:
            StopIteration: When there is none.
            Exception: When the recording has failed, with what ended it.
        """
        while not self._ready:
            if not (self._call.submissions or self._call.events):
                self._bar.close()
                raise StopIteration
            self._receive()
        return self._ready.pop(0)

    def _receive(self) -> None:
        """Make steps until there is an event, and handle all that there are."""
        call = self._call
        call.transcriber.run(lambda: bool(call.events) or not call.submissions)
        self._receive_ready()

    def _receive_ready(self) -> None:
        while self._call.events:
            match self._call.events.popleft():
                case Progress(_, (segments, done)):
                    # left out: segments without text or length, which `whisper` keeps
                    spoken = (s for s in segments if s.text.strip() and s.start != s.end)
                    self._ready += map(self._converted, spoken)
                    self._bar.update(round(done, 2) - self._bar.n)
                case Failed(_, error):
                    self._bar.close()
                    raise error

    def _converted(self, segment: OurSegment) -> Segment:
        words = None
        if segment.words is not None:
            words = [Word(w.start, w.end, w.word, w.probability) for w in segment.words]
        same = {field.name: getattr(segment, field.name) for field in fields(Segment)}
        return Segment(**same | {"id": next(self._numbers), "words": words})
