"""Recordings: any file or array -> 16 kHz samples -> windows of the log-mel spectrogram."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

__all__ = [
    "AUDIO_SUFFIXES",
    "AudioSource",
    "Source",
    "as_waveform",
    "load_audio",
    "load_samples",
    "resample",
    "resampler",
]

if TYPE_CHECKING:
    from slimwhisper.audio.formats import AUDIO_SUFFIXES
    from slimwhisper.audio.load import (
        AudioSource,
        as_waveform,
        load_audio,
        load_samples,
        resample,
        resampler,
    )
    from slimwhisper.audio.sources import Source
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AUDIO_SUFFIXES": "slimwhisper.audio.formats",
            "AudioSource": "slimwhisper.audio.load",
            "Source": "slimwhisper.audio.sources",
            "as_waveform": "slimwhisper.audio.load",
            "load_audio": "slimwhisper.audio.load",
            "load_samples": "slimwhisper.audio.load",
            "resample": "slimwhisper.audio.load",
            "resampler": "slimwhisper.audio.load",
        },
        fallback="audio",
    )
