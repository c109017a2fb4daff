"""A recording of which only speech is decoded: without its silences, or in pieces side by side."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise

from slimwhisper.audio.samples import Excerpts, Samples
from slimwhisper.longform.options import RecordingOptions
from slimwhisper.longform.passes import Passes
from slimwhisper.longform.recording import Recording, Session, clips_of
from slimwhisper.model.model import Model
from slimwhisper.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, Segment, Word

PAUSE = 2 * SAMPLE_RATE  # samples: a shorter one stays inside a piece, a longer one is left out
MAX_EDGE = 1.0  # seconds of a segment on the other side of a silence that are cut off

Region = tuple[int, int]  # samples [start, stop)


class SpeechRecording(Recording):
    """A `Recording` whose segments have the times of the whole.

    Usually there is one session. With `parallel`, there is one for each piece of up to 30 s of
    speech, long pauses left out, not conditioned on the text of the others.
    """

    def __init__(
        self, samples: Samples, model: Model, options: RecordingOptions, passes: Passes
    ) -> None:
        """passes: with the regions that are speech."""
        frames = clips_of(options, len(samples) // HOP_SAMPLES)
        selected = [(a * HOP_SAMPLES, b * HOP_SAMPLES) for a, b in frames]
        parts = ((max(a, c), min(b, d)) for c, d in selected for a, b in passes.speech or ())
        regions = [(start, stop) for start, stop in parts if start < stop]
        if options.parallel:  # pieces are of whole mel frames
            regions = [(a - a % HOP_SAMPLES, b - b % HOP_SAMPLES) for a, b in regions]
        speech = sum(b - a for a, b in regions)
        self._excerpts: Excerpts | None = None
        # in mel frames: of the first session, where () leaves the language alone, and of later ones
        clips: Sequence[Region] | None = ()
        pieces: list[Region] = []
        if speech >= HOP_SAMPLES:
            clips = None
            if options.parallel:
                packed = pack_regions(regions, PAUSE, model.dims.window_frames * HOP_SAMPLES)
                lengths = (sum(b - a for a, b in piece) // HOP_SAMPLES for piece in packed)
                first, *pieces = pairwise(accumulate(lengths, initial=0))
                clips, regions = [first], [*chain.from_iterable(packed)]
            self._excerpts = Excerpts(samples, regions)
        self._waiting = deque(pieces)
        changed = replace(options, clip_timestamps="0")  # clips are left out already
        if options.parallel:
            changed = replace(changed, condition_on_previous_text=False)
        decoded = self._excerpts or samples
        super().__init__(decoded, model.dims, changed, model.vocabulary, passes, clips)
        self.options, self._samples = options, samples
        self.seconds_of_speech = speech / SAMPLE_RATE

    def next_session(self) -> Session | None:
        """The next session to start; None if there is none, or none before the first one has
        detected the language. Created on demand, as each holds a window's spectrogram.
        """
        language = self.sessions[0].language
        if self._started and self._waiting and language is not None:
            self.sessions.append(self._session([self._waiting.popleft()], language))
        return super().next_session()

    @property
    def done(self) -> bool:
        """Whether all is transcribed."""
        return not self._waiting and super().done

    @property
    def seconds_done(self) -> float:
        """Seconds of the recording done so far."""
        if self.options.parallel and not self.done:
            done = sum(s.done for s in self.sessions)
            return self.seconds * done / (len(self.sessions) + len(self._waiting))
        return super().seconds_done

    @property
    def next_start(self) -> float:
        """Seconds: no segment that `report` has not yet returned starts earlier."""
        return self._original(super().next_start)

    def _original(self, seconds: float, end: bool = False) -> float:
        """Seconds in the decoded audio -> in the recording. end: of something that ends there."""
        if self._excerpts is None:
            return seconds
        position = self._excerpts.original(round(seconds * SAMPLE_RATE), end=end)
        return round(position / SAMPLE_RATE, 3)

    def _with_original_times(self, segment: Segment) -> Segment:
        excerpts = self._excerpts
        assert excerpts is not None, "nothing else is decoded"

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
        if words:  # as in faster-whisper: each word is on one side of a silence
            start, end = words[0].start, words[-1].end
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
