"""Stands in for `whisper_live.transcriber.transcriber_faster_whisper`.

That is WhisperLive's own copy of `faster_whisper.transcribe`, whose segments are a list.
"""

from typing import Any

from slimwhisper.faster_whisper.model import WhisperModel as _Model
from slimwhisper.faster_whisper.types import Segment, TranscriptionInfo


class WhisperModel(_Model):
    """A model that WhisperLive's connections share."""

    def transcribe(self, *args: Any, **arguments: Any) -> tuple[list[Segment], TranscriptionInfo]:
        """Transcribe a recording, and return when it is done.

        Args:
            *args: The arguments of `slimwhisper.faster_whisper.WhisperModel.transcribe`.
            **arguments: The same by name.

        Returns:
            The segments.
            What is known of the recording.

        Raises:
            AudioError: When the recording cannot be read.
            OptionError: When an argument is not offered, or has an invalid value.
        """
        segments, info = super().transcribe(*args, **arguments)
        return list(segments), info
