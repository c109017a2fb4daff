"""A transcript that a person corrects: changes, each of which can be undone.

A change names what it replaces, so that nothing is lost where two people correct the same
transcript: the second change of a text is refused, and told the text that is there now.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from slimwhisper.app.page.transcripts.retiming import with_text
from slimwhisper.errors import SlimWhisperError
from slimwhisper.types import Segment, Transcript

STEPS = 100  # that can be undone

Changed = dict[int, Segment]  # segments by their index


class ConflictError(SlimWhisperError):
    """The transcript is no longer as the change takes it to be. `changed`: what is there now."""

    def __init__(self, changed: Changed) -> None:
        self.changed = changed
        super().__init__("this was changed elsewhere in the meantime; look at it and try again")


class Edits:
    """A transcript and its changes. Threads may share it; each change is made whole or not."""

    def __init__(self, transcript: Transcript) -> None:
        self._first = transcript
        self.transcript = transcript  # as it is now, with a place for every segment of the first
        self._lock = threading.Lock()
        self.revision = 0  # grows with every change
        self._undo: deque[Transcript] = deque(maxlen=STEPS)
        self._redo: deque[Transcript] = deque()

    @property
    def written(self) -> Transcript:
        """The transcript as it is written to files: without the segments that were emptied."""
        now = self.transcript
        pairs = zip(now.segments, self._first.segments, strict=True)
        kept = [one for one, first in pairs if one.text or not first.text]
        if len(kept) == len(now.segments):
            return now
        return replace(now, segments=[replace(one, id=i) for i, one in enumerate(kept)])

    def correct(self, texts: Mapping[int, tuple[str, str]]) -> Changed:
        """Change texts: by the segment's index, (the text that it has, the new one), both stripped.

        Returns the segments that changed. Raises ConflictError, and IndexError for an index that
        does not exist.
        """

        def change(segments: list[Segment]) -> Changed:
            missed = {i: segments[i] for i, (was, _) in texts.items() if _shown(segments[i]) != was}
            if missed:
                raise ConflictError(missed)
            return {
                i: with_text(segments[i], f"{self._space(i)}{text}" if text else "")
                for i, (was, text) in texts.items()
                if text != was
            }

        return self._do(change)

    def approve(self, index: int) -> Changed:
        """Remove a segment's flags: a person found it right. Raises IndexError."""
        return self._do(lambda segments: {index: replace(segments[index], flags=())})

    def rename(self, speaker: str, name: str) -> Changed:
        """Rename a speaker everywhere. Two speakers with one name are one from then on."""
        return self._do(
            lambda segments: {i: _renamed(s, speaker, name) for i, s in enumerate(segments)}
        )

    def undo(self, revision: int) -> Changed:
        """Take back the last change, if this is still the revision. Raises ConflictError."""
        return self._move(revision, self._undo, self._redo)

    def redo(self, revision: int) -> Changed:
        """Make the change again that was taken back last. Raises ConflictError."""
        return self._move(revision, self._redo, self._undo)

    def _do(self, change: Callable[[list[Segment]], Changed]) -> Changed:
        with self._lock:
            now, segments = self.transcript, list(self.transcript.segments)
            for i, segment in change(now.segments).items():
                segments[i] = segment
            if segments == now.segments:
                return {}
            self._undo.append(now)
            self._redo.clear()
            text = "".join(segment.text for segment in segments)
            return self._become(replace(now, text=text, segments=segments))

    def _move(self, revision: int, source: deque[Transcript], target: deque[Transcript]) -> Changed:
        with self._lock:
            if revision != self.revision or not source:
                raise ConflictError({})
            target.append(self.transcript)
            return self._become(source.pop())

    def _become(self, transcript: Transcript) -> Changed:
        pairs = zip(self.transcript.segments, transcript.segments, strict=True)
        changed = {i: now for i, (was, now) in enumerate(pairs) if was is not now and was != now}
        self.transcript = transcript
        self.revision += 1
        return changed

    def _space(self, index: int) -> str:
        """What Whisper put before a segment's text: a space, or nothing."""
        first = self._first.segments[index].text
        return first[: len(first) - len(first.lstrip())]


def _shown(segment: Segment) -> str:
    return segment.text.strip()


def _renamed(segment: Segment, speaker: str, name: str) -> Segment:
    words = segment.words and [
        replace(word, speaker=name) if word.speaker == speaker else word for word in segment.words
    ]
    mine = segment.speaker == speaker
    return replace(segment, words=words, speaker=name if mine else segment.speaker)
