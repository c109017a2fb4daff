"""In place of `whisper_live.transcriber.transcriber_faster_whisper`, WhisperLive's own copy of
`faster_whisper.transcribe`, whose segments are a list.
"""

from typing import Any

from slimwhisper.faster_whisper.model import WhisperModel as _Model
from slimwhisper.faster_whisper.types import Segment, TranscriptionInfo


class WhisperModel(_Model):
    """A model that WhisperLive's connections share."""

    def transcribe(self, *args: Any, **arguments: Any) -> tuple[list[Segment], TranscriptionInfo]:
        """As the other class's, once the recording is done."""
        segments, info = super().transcribe(*args, **arguments)
        return list(segments), info
