"""Recordings: any file or array -> 16 kHz samples -> windows of the log-mel spectrogram.

The names of `whisper.audio` are here as well, for scripts written for it.
"""

from slimwhisper._lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__, {"load_audio": "slimwhisper.audio.load"}, fallback="whisper.audio"
)
