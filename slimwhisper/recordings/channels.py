"""A recording whose channels are decoded by themselves, each with one speaker."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from slimwhisper.longform.recording import Recording, Session
from slimwhisper.recordings.passes import with_logprobs
from slimwhisper.speakers.assign import Spell, cut_segment
from slimwhisper.types import Segment, Transcript, Word

MIN_PAUSE = 0.5  # seconds between two words of a segment that is cut there


class SplitRecording:
    """A `Recording` for each channel, and their segments in order of time.

    The channels' windows share the engine's slots. Each channel is decoded, and its language
    detected, as if there were no other. Segments may overlap, as people do.
    """

    def __init__(self, channels: Sequence[Recording]) -> None:
        """channels: of equal length; their segments have the speakers' names."""
        self._all = channels
        # without speech, only the language is detected, and only if there is none on any channel
        self._channels = [part for part in channels if part.seconds_of_speech] or channels[:1]
        self.options, self.seconds = self._all[0].options, self._all[0].seconds
        self.vocabulary = self._all[0].vocabulary  # of the model that transcribes
        self._parts = list(self._channels)
        # segments of each channel, until no other channel's can come before them
        self._waiting: list[list[Segment]] = [[] for _ in self._channels]
        self._reported = 0  # segments

    def next_session(self) -> Session | None:
        """As in `Recording`; the channels take turns."""
        for part in list(self._parts):
            if (session := part.next_session()) is not None:
                self._parts.remove(part)
                self._parts.append(part)
                return session
        return None

    @property
    def done(self) -> bool:
        """Whether all channels are transcribed."""
        return all(part.done for part in self._parts)

    @property
    def seconds_done(self) -> float:
        """Seconds of the recording done so far, the mean of the channels."""
        return sum(part.seconds_done for part in self._parts) / len(self._parts)

    def report(self) -> list[Segment]:
        """The new segments, in order of time, then by channel, as in the transcript."""
        for waiting, part in zip(self._waiting, self._channels, strict=True):
            waiting.extend(part.report())
        limit = min(float("inf") if p.done else p.next_start for p in self._parts)
        ready = [s for waiting in self._waiting for s in waiting if s.start < limit]
        self._waiting = [[s for s in waiting if s.start >= limit] for waiting in self._waiting]
        first, self._reported = self._reported, self._reported + len(ready)
        return _in_order(ready, first)

    def transcript(self) -> Transcript:
        """The result; complete once `done`. Its language is that of the channel with most text."""
        parts = [part.transcript() for part in self._channels]
        starts = sorted(w.start for t in parts for s in t.segments for w in s.words or ())
        left = [s for t in parts for s in t.dropped]
        ordered = _in_order(
            [
                piece
                for part, transcript in zip(self._channels, parts, strict=True)
                for s in transcript.segments
                for piece in _cut(s, starts, part.context.spell)
            ]
        )
        text = "".join(segment.text for segment in ordered)
        most = max(parts, key=lambda t: len(t.text))
        return replace(most, text=text, segments=ordered, dropped=_in_order(left, len(ordered)))

    def close(self) -> None:
        """Free memory and files."""
        for part in self._all:
            part.close()


def _cut(segment: Segment, starts: Sequence[float], spell: Spell) -> list[Segment]:
    """The segment, cut at pauses in which another speaker's word begins: in `starts`, which has
    those of all words, in order. The time to read a sentence ends there, too.
    """
    words, runs = segment.words or [], list[list[Word]]()
    if words:
        following = bisect_left(starts, words[-1].end)
        segment = replace(segment, end=min([segment.end, *starts[following : following + 1]]))
    for word in words:
        last = runs[-1][-1] if runs else None
        if last is not None and (
            word.start - last.end < MIN_PAUSE
            or bisect_right(starts, last.end) == bisect_left(starts, word.start)
        ):
            runs[-1].append(word)
        else:
            runs.append([word])
    if len(runs) < 2:
        return [segment]
    return with_logprobs(cut_segment(segment, runs, spell), [segment])


def _in_order(segments: Sequence[Segment], first: int = 0) -> list[Segment]:
    """The segments by their start, then by channel, numbered from `first`."""
    ordered = sorted(segments, key=lambda segment: segment.start)
    return [replace(segment, id=i) for i, segment in enumerate(ordered, first)]
