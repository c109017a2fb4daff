"""Corrections of a transcript, each of which can be undone.

A change names the text that it replaces, so that no correction is lost when two people edit the
same transcript: the second change of a text is refused, with the current text in the error.

The words of a corrected segment are timed again. Unchanged words keep their times. A changed
stretch gets the time of the words that it replaces: the same number of words take their times one
by one; more or fewer words share the time by length. Inserted words get the gap between their
neighbours.
"""

import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import accumulate, pairwise

from slimwhisper.errors import SlimWhisperError
from slimwhisper.types import Segment, Transcript, Word

# -- times of words ------------------------------------------------------------------------------

TYPED = 1.0  # the probability of a word that a person wrote


def with_text(segment: Segment, text: str) -> Segment:
    """The segment with another text, checked by a person: no flags, and no tokens of the model."""
    words = None if segment.words is None else retime(segment, text)
    return replace(segment, text=text, tokens=[], words=words, flags=())


def retime(segment: Segment, text: str) -> list[Word]:
    """The words of a text in place of the segment's. Joined, they are the text."""
    old = segment.words or []
    spaced = [word.word[:1].isspace() for word in old[1:]]
    # `starts`: where units begin, which are words between two spaces; then the end
    if 2 * sum(spaced) >= len(spaced):  # spaces stand between most of the words
        pattern = r"\s*\S+"
        starts = [0, *(i for i, is_spaced in enumerate(spaced, 1) if is_spaced), len(old)]
    else:  # without spaces, split into the old words, else into letters
        pieces = sorted({word.word for word in old} - {""}, key=len, reverse=True)
        pattern = "|".join([*map(re.escape, pieces), r"\s*\S"])
        starts = list(range(len(old) + 1))
    before = ["".join(word.word for word in old[i:j]) for i, j in pairwise(starts)]
    new = re.findall(pattern, text)
    words: list[Word] = []
    for kind, i, j, k, m in SequenceMatcher(None, before, new, autojunk=False).get_opcodes():
        start, stop = starts[i], starts[j]
        words += old[start:stop] if kind == "equal" else _timed(new[k:m], start, stop, segment)
    return words


def _timed(texts: Sequence[str], start: int, stop: int, segment: Segment) -> list[Word]:
    """Words of these texts, in place of `segment.words[start:stop]`."""
    old = segment.words or []
    replaced = old[start:stop]
    near = next(iter([*replaced, *old[:start][-1:], *old[stop:]]), None)
    speaker = near.speaker if near is not None else segment.speaker
    if len(replaced) == len(texts):
        spans = [(word.start, word.end) for word in replaced]
    else:
        if replaced:
            since, until = replaced[0].start, replaced[-1].end
        else:
            since = old[start - 1].end if start else segment.start
            until = old[stop].start if stop < len(old) else segment.end
        spans = _shares(texts, since, max(since, until))
    pairs = zip(texts, spans, strict=True)
    return [Word(text, since, until, TYPED, speaker) for text, (since, until) in pairs]


def _shares(texts: Sequence[str], since: float, until: float) -> list[tuple[float, float]]:
    """(start, end) of each text: a share of the time, by its length."""
    lengths = [len(text.strip()) for text in texts]
    total = sum(lengths)
    ends = [round(since + (until - since) * n / total, 2) for n in accumulate(lengths[:-1])]
    return list(zip([since, *ends], [*ends, until], strict=True)) if texts else []


# -- corrections ---------------------------------------------------------------------------------

STEPS = 100  # that can be undone

Changed = dict[int, Segment]  # segments by their index


class ConflictError(SlimWhisperError):
    """The transcript differs from the one that the change assumes. `changed`: current segments."""

    def __init__(self, changed: Changed) -> None:
        self.changed = changed
        super().__init__("this was changed elsewhere in the meantime; check it and try again")


class Edits:
    """A transcript and its changes. Threads may share it; each change is atomic."""

    def __init__(self, transcript: Transcript) -> None:
        self._first = transcript
        lines = [segment.text for segment in transcript.segments]
        self._between = "\n" if transcript.text == "\n".join(lines) else ""  # of a script's lines
        self.transcript = transcript  # the current one, with as many segments as the first
        self._lock = threading.Lock()
        self.revision = 0  # grows with every change
        self._undo: deque[Transcript] = deque(maxlen=STEPS)
        self._redo: deque[Transcript] = deque()

    @property
    def file_transcript(self) -> Transcript:
        """The transcript for files: without the segments whose text was removed."""
        now = self.transcript
        pairs = zip(now.segments, self._first.segments, strict=True)
        nonempty = [segment for segment, first in pairs if segment.text or not first.text]
        if len(nonempty) == len(now.segments):
            return now
        return replace(now, segments=[replace(one, id=i) for i, one in enumerate(nonempty)])

    def correct(self, texts: Mapping[int, tuple[str, str]]) -> Changed:
        """Change texts: by the segment's index, (the current text, the new one), both stripped.

        Returns the segments that changed. Raises ConflictError, and IndexError for an index that
        does not exist.
        """

        def change(now: list[Segment]) -> Changed:
            changed = {i: now[i] for i, (was, _) in texts.items() if now[i].text.strip() != was}
            if changed:
                raise ConflictError(changed)
            new = {i: t and self._space(i) + t for i, (was, t) in texts.items() if t != was}
            return {i: with_text(now[i], text) for i, text in new.items()}

        return self._apply(change)

    def approve(self, index: int) -> Changed:
        """Remove a segment's flags, as a person found it correct. Raises IndexError."""
        return self._apply(lambda segments: {index: replace(segments[index], flags=())})

    def rename(self, speaker: str, name: str) -> Changed:
        """Rename a speaker everywhere. Speakers with the same name are merged."""
        return self._apply(
            lambda segments: {i: _renamed(s, speaker, name) for i, s in enumerate(segments)}
        )

    def undo(self, revision: int) -> Changed:
        """Undo the last change, if this is still the revision. Raises ConflictError."""
        return self._move(revision, self._undo, self._redo)

    def redo(self, revision: int) -> Changed:
        """Repeat the change that was undone last. Raises ConflictError."""
        return self._move(revision, self._redo, self._undo)

    def _apply(self, change: Callable[[list[Segment]], Changed]) -> Changed:
        with self._lock:
            now, segments = self.transcript, list(self.transcript.segments)
            for i, segment in change(now.segments).items():
                segments[i] = segment
            if segments == now.segments:
                return {}
            self._undo.append(now)
            self._redo.clear()
            text = self._between.join(segment.text for segment in segments)
            return self._replace(replace(now, text=text, segments=segments))

    def _move(self, revision: int, source: deque[Transcript], target: deque[Transcript]) -> Changed:
        with self._lock:
            if revision != self.revision or not source:
                raise ConflictError({})
            target.append(self.transcript)
            return self._replace(source.pop())

    def _replace(self, transcript: Transcript) -> Changed:
        pairs = zip(self.transcript.segments, transcript.segments, strict=True)
        changed = {i: now for i, (was, now) in enumerate(pairs) if was is not now and was != now}
        self.transcript = transcript
        self.revision += 1
        return changed

    def _space(self, index: int) -> str:
        """Whisper's prefix of a segment's text: a space, or nothing."""
        first = self._first.segments[index].text
        return first[: len(first) - len(first.lstrip())]


def _renamed(segment: Segment, speaker: str, name: str) -> Segment:
    words = segment.words and [
        replace(word, speaker=name) if word.speaker == speaker else word for word in segment.words
    ]
    matches = segment.speaker == speaker
    return replace(segment, words=words, speaker=name if matches else segment.speaker)
