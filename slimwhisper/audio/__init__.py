"""Recordings: any file or array -> 16 kHz samples -> windows of the log-mel spectrogram."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

if not TYPE_CHECKING:  # `whisper.audio`, for scripts written for it
    __getattr__, __dir__ = lazy_names(
        __name__, {"load_audio": "slimwhisper.audio.load"}, fallback="audio"
    )
