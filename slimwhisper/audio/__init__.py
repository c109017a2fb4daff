"""Recordings: any file or array -> 16 kHz samples -> windows of the log-mel spectrogram."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

if not TYPE_CHECKING:  # `whisper.audio`, for scripts written for it
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "load_audio": "slimwhisper.audio.load",
            "log_mel_spectrogram": "slimwhisper.audio.mel",
            "mel_filters": "slimwhisper.audio.mel",
            "pad_or_trim": "slimwhisper.audio.mel",
        },
    )
    SAMPLE_RATE, N_FFT, HOP_LENGTH, CHUNK_LENGTH = 16_000, 400, 160, 30
    N_SAMPLES, N_FRAMES, N_SAMPLES_PER_TOKEN = 480_000, 3_000, 320
    FRAMES_PER_SECOND, TOKENS_PER_SECOND = 100, 50
