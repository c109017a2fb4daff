"""Corrections of a transcript, each of which can be undone.

A change names the text that it replaces, so that no correction is lost when two people edit the
same transcript: the second change of a text is refused, with the current text in the error.
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

        def change(segments: list[Segment]) -> Changed:
            changed = {i: segments[i] for i, (was, _) in texts.items() if _text(segments[i]) != was}
            if changed:
                raise ConflictError(changed)
            wanted = ((i, text) for i, (was, text) in texts.items() if text != was)
            spaced = ((i, f"{self._space(i)}{text}" if text else "") for i, text in wanted)
            return {i: with_text(segments[i], text) for i, text in spaced}

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


def _text(segment: Segment) -> str:
    return segment.text.strip()


def _renamed(segment: Segment, speaker: str, name: str) -> Segment:
    words = segment.words and [
        replace(word, speaker=name) if word.speaker == speaker else word for word in segment.words
    ]
    matches = segment.speaker == speaker
    return replace(segment, words=words, speaker=name if matches else segment.speaker)
