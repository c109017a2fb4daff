"""A recording whose channels are decoded by themselves, each with one speaker."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from slimwhisper.longform.recording import Recording
from slimwhisper.longform.session import Session
from slimwhisper.recordings.passes import with_logprobs
from slimwhisper.speakers.assign import Spell, cut_segment
from slimwhisper.types import Segment, Transcript, Word

MIN_PAUSE = 0.5  # seconds between two words of a segment that is cut there


class SplitRecording:
    """A `Recording` for each channel, and their segments in order of time.

    The channels' windows share the engine's slots. Each channel is decoded, and its language
    detected, as if there were no other. Segments may overlap, as people do.
    """

    def __init__(self, recordings: dict[str, Recording]) -> None:
        """recordings: of the channels, of equal length, by the speakers' names."""
        self._all, recordings = list(recordings.values()), recordings.copy()
        # without speech, only the language is detected, and only if there is none on any channel
        silent = [speaker for speaker, part in recordings.items() if not part.seconds_of_speech]
        for speaker in silent if len(silent) < len(recordings) else silent[1:]:
            del recordings[speaker]
        self._channels = recordings
        self.options, self.seconds = self._all[0].options, self._all[0].seconds
        self.vocabulary = self._all[0].vocabulary  # of the model that transcribes
        self._parts = list(recordings.values())
        self._waiting: list[Segment] = []  # until no earlier one can come
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
        """The new segments, in order of time: those before which no other channel's can come."""
        for speaker, part in self._channels.items():
            self._waiting += _spoken_by(speaker, part.report())
        limit = min(float("inf") if p.done else p.next_start for p in self._parts)
        ready = [s for s in self._waiting if s.start <= limit]
        self._waiting = [s for s in self._waiting if s.start > limit]
        first, self._reported = self._reported, self._reported + len(ready)
        return _in_order(ready, first)

    def transcript(self) -> Transcript:
        """The result; complete once `done`. Its language is that of the channel with most text."""
        parts = {speaker: part.transcript() for speaker, part in self._channels.items()}
        spoken = {name: _spoken_by(name, t.segments) for name, t in parts.items()}
        starts = [w.start for part in spoken.values() for s in part for w in s.words or ()]
        dropped = [s for name, t in parts.items() for s in _spoken_by(name, t.dropped)]
        starts.sort()
        ordered = _in_order(
            [
                piece
                for name, segments in spoken.items()
                for s in segments
                for piece in _cut(s, starts, self._channels[name].context.spell)
            ]
        )
        text = "".join(segment.text for segment in ordered)
        language = max(parts.values(), key=lambda t: len(t.text)).language
        return Transcript(text, ordered, language, dropped=_in_order(dropped))

    def close(self) -> None:
        """Free memory and files."""
        for part in self._all:
            part.close()


def _spoken_by(speaker: str, segments: Iterable[Segment]) -> list[Segment]:
    """The segments and their words, with the speaker."""

    def named(words: list[Word] | None) -> list[Word] | None:
        return words and [replace(word, speaker=speaker) for word in words]

    return [replace(s, speaker=speaker, words=named(s.words)) for s in segments]


def _cut(segment: Segment, starts: Sequence[float], spell: Spell) -> list[Segment]:
    """The segment, cut at pauses in which another speaker's word begins: in `starts`, which has
    those of all words, in order.
    """
    runs: list[list[Word]] = []
    for word in segment.words or ():
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
