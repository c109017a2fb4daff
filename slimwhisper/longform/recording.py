"""One recording, decoded whole, without silences, or in pieces side by side."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise

from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import Excerpts, Samples
from slimwhisper.longform.options import RecordingOptions
from slimwhisper.longform.passes import Passes, TranscriptContext
from slimwhisper.longform.session import Session, clips_of
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    SAMPLE_RATE,
    Dims,
    Segment,
    Transcript,
    Word,
)

PAUSE = 2 * SAMPLE_RATE  # samples: a shorter one stays inside a piece, a longer one is left out
MAX_EDGE = 1.0  # seconds of a segment on the other side of a silence that are cut off

Region = tuple[int, int]  # samples [start, stop)


@dataclass(frozen=True, slots=True)
class AudioPlan:
    """Which audio of a recording is decoded, and in which pieces."""

    samples: Samples  # all, or excerpts of them
    clips: Sequence[Region] | None = None  # of the first session, in mel frames; None: the options'
    pieces: Sequence[Region] = ()  # of later sessions, in mel frames
    speech: int | None = None  # samples of speech; None: not looked for


def plan_audio(samples: Samples, options: RecordingOptions, passes: Passes, most: int) -> AudioPlan:
    """Leave out what is not speech, where that is known. most: mel frames of a piece, at most."""
    if passes.speech is None:
        return AudioPlan(samples)
    frames = clips_of(options, len(samples) // HOP_SAMPLES)
    selected = [(a * HOP_SAMPLES, b * HOP_SAMPLES) for a, b in frames]
    regions = _intersection(passes.speech, selected)
    if options.parallel:  # pieces are of whole mel frames
        regions = [(a - a % HOP_SAMPLES, b - b % HOP_SAMPLES) for a, b in regions]
    speech = sum(b - a for a, b in regions)
    if speech < HOP_SAMPLES:  # the language is still detected
        return AudioPlan(samples, clips=[], speech=speech)
    if not options.parallel:
        return AudioPlan(Excerpts(samples, regions), speech=speech)
    packed = pack_regions(regions, PAUSE, most * HOP_SAMPLES)
    lengths = (sum(b - a for a, b in piece) // HOP_SAMPLES for piece in packed)
    first, *others = pairwise(accumulate(lengths, initial=0))
    return AudioPlan(Excerpts(samples, [*chain.from_iterable(packed)]), [first], others, speech)


class Recording:
    """The sessions of one recording, and their segments in the recording's own time.

    Usually there is one session. With `parallel`, there is one for each piece of up to 30 s of
    speech, long pauses left out, not conditioned on the text of the others.
    """

    def __init__(
        self,
        samples: Samples,
        dims: Dims,
        options: RecordingOptions,
        vocabulary: Vocabulary | None = None,
        passes: Passes | None = None,
    ) -> None:
        """Reads all samples. vocabulary: as in `Session`."""
        self.options, self._samples, self._passes = options, samples, passes or Passes()
        plan = plan_audio(samples, options, self._passes, dims.window_frames)
        self._excerpts = plan.samples if isinstance(plan.samples, Excerpts) else None
        self._waiting = deque(plan.pieces)
        self.seconds_of_speech = self.seconds if plan.speech is None else plan.speech / SAMPLE_RATE
        self._reported: list[Segment] = []
        if plan.speech is not None:  # clips are in the plan
            options = replace(options, clip_timestamps="0")
        if options.parallel:
            options = replace(options, condition_on_previous_text=False)
        self.mel = Spectrogram(plan.samples, dims.n_mels, dims.window_frames, options.audio_window)
        self._session = partial(
            Session,
            self.mel,
            dims,
            options,
            vocabulary=vocabulary,
            passes=self._passes,
            silences=[(a // HOP_SAMPLES, b // HOP_SAMPLES) for a, b in plan.samples.silences],
        )
        self.sessions = [self._session(plan.clips)]
        self._started = 0  # sessions

    def next_session(self) -> Session | None:
        """The next session to start; None if there is none, or none before the first one has
        detected the language. Created on demand, as each holds a window's spectrogram.
        """
        language = self.sessions[0].language
        if self._started and self._waiting and language is not None:
            self.sessions.append(self._session([self._waiting.popleft()], language))
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
        return not self._waiting and all(s.done for s in self.sessions)

    @property
    def seconds_done(self) -> float:
        """Seconds of the recording done so far."""
        if self.done:
            return self.seconds
        if self.options.parallel:
            done = sum(s.done for s in self.sessions)
            return self.seconds * done / (len(self.sessions) + len(self._waiting))
        return self.next_start

    @property
    def next_start(self) -> float:
        """Seconds: no segment that `report` has not yet returned starts earlier."""
        session = next((s for s in self.sessions if not s.done), self.sessions[-1])
        return self._original(session.position / FRAMES_PER_SECOND)

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

    def _original(self, seconds: float, end: bool = False) -> float:
        """Seconds in the decoded audio -> in the recording. end: of something that ends there."""
        if self._excerpts is None:
            return seconds
        position = self._excerpts.original(round(seconds * SAMPLE_RATE), end=end)
        return round(position / SAMPLE_RATE, 3)

    def _with_original_times(self, segment: Segment) -> Segment:
        excerpts = self._excerpts
        if excerpts is None:
            return segment

        def span(start: float, end: float) -> tuple[float, float]:
            """Of what lies between two silences, maybe but for its edges."""
            found = excerpts.original_span(round(start * SAMPLE_RATE), round(end * SAMPLE_RATE))
            start, end = (round(position / SAMPLE_RATE, 3) for position in found)
            return start, max(start, end)

        def word(w: Word) -> Word:
            start, end = span(w.start, w.end)
            return replace(w, start=start, end=end)

        start, end = span(segment.start, segment.end)
        if segment.end - segment.start - (end - start) > MAX_EDGE:  # it is on both sides
            start, end = self._original(segment.start), self._original(segment.end, end=True)
        words = segment.words and [word(w) for w in segment.words]
        if words:  # a segment does not begin, or end, on the other side of a silence
            start, end = max(start, words[0].start), min(end, words[-1].end)
        return replace(
            segment,
            seek=round(self._original(segment.seek / FRAMES_PER_SECOND) * FRAMES_PER_SECOND),
            start=start,
            end=max(start, end),
            words=words,
        )


def pack_regions(regions: Iterable[Region], gap: int, limit: int) -> list[list[Region]]:
    """Pieces of neighbouring regions, up to `limit` samples each: those less than `gap` samples
    apart are joined, and of longer pauses nothing counts.

    A region longer than `limit` is a piece of its own.
    """
    pieces: list[list[Region]] = []
    length = limit
    for start, stop in regions:
        first, last = pieces[-1][-1] if pieces else (start, start)
        near = start - last < gap
        length += stop - (last if near else start)
        if length > limit or not pieces:
            pieces.append([(start, stop)])
            length = stop - start
        elif near:
            pieces[-1][-1] = (first, stop)
        else:
            pieces[-1].append((start, stop))
    return pieces


def _intersection(regions: Iterable[Region], selected: Sequence[Region]) -> list[Region]:
    """The intersection of the two; `regions` in order."""
    parts = ((max(a, c), min(b, d)) for c, d in selected for a, b in regions)
    return [(start, stop) for start, stop in parts if start < stop]
