"""Recordings: any file or array -> 16 kHz samples -> windows of the log-mel spectrogram.

Scripts written for `whisper.audio` find its names here.
"""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__, {"load_audio": "slimwhisper.audio.load"}, fallback="whisper.audio"
    )
