"""`whisper.decoding` with our models: decodes single windows. For scripts written for it."""

from typing import Any

from torch import Tensor

from slimwhisper.api import SlimWhisper
from slimwhisper.windows import DecodingOptions, DecodingResult

__all__ = ["DecodingOptions", "DecodingResult", "decode", "detect_language"]


def decode(
    model: SlimWhisper, mel: Tensor, options: DecodingOptions | None = None, **changes: Any
) -> DecodingResult | list[DecodingResult]:
    """Decode windows of 30 s, as `whisper.decode` does.

    Arguments:
        mel: [n_mels, 3000] or [B, n_mels, 3000], as `log_mel_spectrogram` and `pad_or_trim` make
            them, or `embed_audio`'s [B, 1500, d] of these; B windows are decoded side by side.
        options: whisper's; `changes` replace single fields. `fp16` is ignored.
    Returns:
        whisper's `DecodingResult`, or a list of B; their `audio_features` can be decoded again.
    Raises:
        OptionError.
    """
    return model.decode(mel, options, **changes)


def detect_language(model: SlimWhisper, mel: Tensor, tokenizer: Any = None) -> tuple[Tensor, Any]:
    """mel [n_mels, 3000] or [B, n_mels, 3000] -> tokens [] or [B] int64, and probabilities.

    As `whisper.detect_language`, see `SlimWhisper.detect_language`; `tokenizer` is not needed.
    """
    return model.detect_language(mel)
