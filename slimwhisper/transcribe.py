"""The function and the command of `whisper.transcribe`, for scripts that were written for it."""

import sys
from importlib import import_module
from typing import Any

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import AudioSource
from slimwhisper.types import Transcript


def transcribe(model: SlimWhisper, audio: AudioSource, **options: Any) -> Transcript:
    """Transcribe one recording of any length, as `whisper.transcribe` does.

    Args:
        model: The model.
        audio: The recording, as in `SlimWhisper.transcribe`.
        **options: The other arguments of `SlimWhisper.transcribe`.

    Returns:
        The dictionary of `whisper`, with the keys "text", "segments" and "language".

    Raises:
        AudioError: When the recording cannot be read.
        OptionError: When an option has an unknown name or an invalid value.
        DependencyError: When an option needs a package that is not installed.

    Examples:
        >>> model = slimwhisper.load_model("turbo")
        >>> slimwhisper.transcribe(model, "talk.mp3")["text"]
    """
    return model.transcribe(audio, **options)


def cli() -> int:
    """Run `slimwhisper transcribe` with the arguments of this process.

    Returns:
        The exit status.
    """
    # by name: the package itself, which every module may import, knows this one
    status: int = import_module("slimwhisper.cli").main(["transcribe", *sys.argv[1:]])
    return status


# As in `whisper`, `slimwhisper.transcribe` is the function. An import of this module would put the
# module there, so the function takes its place, with the module's names.
vars(transcribe).update(transcribe=transcribe, cli=cli)
sys.modules[__name__] = transcribe  # type: ignore[assignment]
