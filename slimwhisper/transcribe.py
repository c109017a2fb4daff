"""`whisper.transcribe`: the function, and the command. For scripts written for it."""

import sys

from slimwhisper.functions import transcribe


def cli() -> int:
    """`slimwhisper transcribe` with the command's own arguments. Returns its exit status."""
    from slimwhisper.cli import main

    return main(["transcribe", *sys.argv[1:]])


# As in `whisper`, `slimwhisper.transcribe` is the function. An import of this module would put the
# module there, so the function takes its place, with the module's names.
vars(transcribe).update(transcribe=transcribe, cli=cli)
sys.modules[__name__] = transcribe  # type: ignore[assignment]
