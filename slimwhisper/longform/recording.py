"""One recording, decoded whole."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import Samples
from slimwhisper.longform.options import RecordingOptions
from slimwhisper.longform.passes import Passes, TranscriptContext
from slimwhisper.longform.session import Clip, Session
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, Dims, Segment, Transcript


class Recording:
    """The session of one recording, and its segments.

    A subclass may have several sessions, and decode a part of the audio.
    """

    def __init__(
        self,
        samples: Samples,
        dims: Dims,
        options: RecordingOptions,
        vocabulary: Vocabulary | None = None,
        passes: Passes | None = None,
        clips: Sequence[Clip] | None = None,
    ) -> None:
        """Reads all samples. vocabulary, clips: as in `Session`."""
        self.options, self._samples, self._passes = options, samples, passes or Passes()
        self._reported: list[Segment] = []
        self.mel = Spectrogram(samples, dims.n_mels, dims.window_frames, options.audio_window)
        self._session = partial(
            Session,
            self.mel,
            dims,
            options,
            vocabulary=vocabulary,
            passes=self._passes,
            silences=[(a // HOP_SAMPLES, b // HOP_SAMPLES) for a, b in samples.silences],
        )
        self.sessions = [self._session(clips)]
        self._started = 0  # sessions
        self.seconds_of_speech = self.seconds

    def next_session(self) -> Session | None:
        """The next session to start; None if there is none."""
        if self._started == len(self.sessions):
            return None
        self._started += 1
        return self.sessions[-1]

    @property
    def vocabulary(self) -> Vocabulary:
        """Of the model that transcribes."""
        return self.sessions[0].vocabulary

    @property
    def context(self) -> TranscriptContext:
        """What passes may know; known once the language is."""
        first = self.sessions[0]
        return TranscriptContext(self.options, self.seconds, first.vocabulary, first.tokenizer)

    @property
    def seconds(self) -> float:
        """The recording's length."""
        return len(self._samples) / SAMPLE_RATE

    @property
    def done(self) -> bool:
        """Whether all is transcribed."""
        return all(s.done for s in self.sessions)

    @property
    def seconds_done(self) -> float:
        """Seconds of the recording done so far."""
        return self.seconds if self.done else self.next_start

    @property
    def next_start(self) -> float:
        """Seconds: no segment that `report` has not yet returned starts earlier."""
        session = next((s for s in self.sessions if not s.done), self.sessions[-1])
        return session.position / FRAMES_PER_SECOND

    def report(self) -> list[Segment]:
        """The new segments, in order of time, without those that `Options.drop` leaves out."""
        return [s for s in self._report() if not self._passes.drops(s)]

    def _report(self) -> list[Segment]:
        number = skip = len(self._reported)
        new: list[Segment] = []
        for session in self.sessions:
            new += session.segments[skip:]
            skip = max(skip - len(session.segments), 0)
            if not session.done:
                break
        new = [replace(self._with_original_times(s), id=i) for i, s in enumerate(new, number)]
        self._reported += new
        return new

    def transcript(self) -> Transcript:
        """The result; complete once `done`."""
        self._report()
        text, language = "".join(s.prompts.text() for s in self.sessions), self.sessions[0].language
        assert language is not None
        transcript = Transcript(text, self._reported.copy(), language)
        for change in self._passes.transcript:
            transcript = change(transcript, self.context)
        return transcript

    def close(self) -> None:
        """Free memory and files."""
        self.mel.close()
        self._samples.close()

    def _with_original_times(self, segment: Segment) -> Segment:
        """The segment with its times in the whole recording."""
        return segment
