"""Several answers to one recording: another task, prompt, language or temperature."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples, Span
from slimwhisper.longform.channels import AnyRecording
from slimwhisper.longform.recording import AnySession
from slimwhisper.types import Options, Segment, Transcript

SampleSource = Samples | Mapping[str, Samples]  # or those of channels, see `make_recording`
MakeRecording = Callable[[SampleSource, Options], AnyRecording]


class Answers:
    """Recordings of the same samples with different options, as one recording whose transcript has
    the others' in `others`. They are decoded side by side.
    """

    def __init__(
        self, samples: SampleSource, variants: Sequence[Options], make_recording: MakeRecording
    ) -> None:
        shared = share(samples, len(variants))
        self._recordings = [make_recording(shared, options) for options in variants]
        self._turns = deque(self._recordings)  # whose next session comes first

    @property
    def seconds(self) -> float:
        """The recording's length."""
        return self._recordings[0].seconds

    @property
    def done(self) -> bool:
        """Whether all answers are complete."""
        return all([recording.done for recording in self._recordings])

    @property
    def seconds_done(self) -> float:
        """Seconds of the recording done so far, mean over the answers."""
        return sum(r.seconds_done for r in self._recordings) / len(self._recordings)

    def next_session(self) -> AnySession | None:
        """The next session to start, of each answer in turn; as `Recording.next_session`."""
        for _ in self._recordings:
            recording = self._turns.popleft()
            self._turns.append(recording)
            if (session := recording.next_session()) is not None:
                return session
        return None

    def report(self) -> list[Segment]:
        """The new segments of the first answer."""
        return self._recordings[0].report()

    def transcript(self) -> Transcript:
        """The first answer, with the others; complete once `done`."""
        first, *others = (recording.transcript() for recording in self._recordings)
        return replace(first, others=tuple(others))

    def close(self) -> None:
        """Free memory and files."""
        for recording in self._recordings:
            recording.close()


class SharedSamples:
    """Samples that several recordings read: they are closed when all have closed them."""

    def __init__(self, samples: Samples, readers: int) -> None:
        self._samples, self._readers = samples, readers

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start] float32, as of the samples."""
        return self._samples.read(start, stop)

    @property
    def silences(self) -> Sequence[Span]:
        """Those of the samples."""
        return self._samples.silences

    def close(self) -> None:
        self._readers -= 1
        if not self._readers:
            self._samples.close()


def share(samples: SampleSource, readers: int) -> SampleSource:
    """The samples, to be closed by several readers."""
    if isinstance(samples, Mapping):
        return {name: SharedSamples(channel, readers) for name, channel in samples.items()}
    return SharedSamples(samples, readers)
