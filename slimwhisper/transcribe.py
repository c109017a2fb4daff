"""`whisper.transcribe`: the function, and the command. For scripts written for it."""

import sys
from importlib import import_module
from typing import Any

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import AudioSource
from slimwhisper.types import Transcript


def transcribe(model: SlimWhisper, audio: AudioSource, **options: Any) -> Transcript:
    """`model.transcribe(audio, ...)`, called as `whisper.transcribe`."""
    return model.transcribe(audio, **options)


def cli() -> int:
    """`slimwhisper transcribe` with the command's own arguments. Returns its exit status."""
    # by name: the package itself, which every module may import, knows this one
    status: int = import_module("slimwhisper.cli").main(["transcribe", *sys.argv[1:]])
    return status


# As in `whisper`, `slimwhisper.transcribe` is the function. An import of this module would put the
# module there, so the function takes its place, with the module's names.
vars(transcribe).update(transcribe=transcribe, cli=cli)
sys.modules[__name__] = transcribe  # type: ignore[assignment]
