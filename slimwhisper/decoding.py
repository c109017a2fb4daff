"""The functions and classes of `whisper.decoding`, which decode single windows.

They are here for scripts that were written for it.
"""

from typing import Any

from torch import Tensor

from slimwhisper.api import SlimWhisper
from slimwhisper.windows import DecodingOptions, DecodingResult

__all__ = ["DecodingOptions", "DecodingResult", "decode", "detect_language"]


def decode(
    model: SlimWhisper, mel: Tensor, options: DecodingOptions | None = None, **changes: Any
) -> DecodingResult | list[DecodingResult]:
    """Decode windows of 30 s, as `whisper.decode` does.

    Args:
        model: The model.
        mel: Spectrograms of shape [n_mels, 3000] or [B, n_mels, 3000], as `log_mel_spectrogram` and
            `pad_or_trim` make them; or what `embed_audio` makes of these, [1500, d] or [B, 1500,
            d]. B windows are decoded side by side.
        options: The options. None means the defaults of `DecodingOptions`.
        **changes: Fields of `DecodingOptions` that replace those of `options`. `fp16` has no
            effect.

    Returns:
        The result of the window, or a list of B results. Their `audio_features` can be decoded
            again.

    Raises:
        OptionError: When `mel` has another shape or is not finite, an option has an invalid value,
            or there is too little memory.

    Examples:
        >>> audio = slimwhisper.pad_or_trim(slimwhisper.load_audio("talk.mp3"))
        >>> mel = slimwhisper.log_mel_spectrogram(audio, n_mels=model.dims.n_mels)
        >>> slimwhisper.decode(model, mel, language="en").text
    """
    return model.decode(mel, options, **changes)


def detect_language(model: SlimWhisper, mel: Tensor, tokenizer: Any = None) -> tuple[Tensor, Any]:
    """Detect the language of windows, as `whisper.detect_language` does.

    Args:
        model: The model.
        mel: Spectrograms of shape [n_mels, 3000] or [B, n_mels, 3000], or the encoder's output,
            [1500, d] or [B, 1500, d].
        tokenizer: This has no effect: the model has its own.

    Returns:
        The tokens of the most likely languages, int64 [] or [B].
        The probability of every language by its code, in one dictionary or in a list of B.

    Raises:
        OptionError: When `mel` is not finite, or there is too little memory.
    """
    return model.detect_language(mel)
