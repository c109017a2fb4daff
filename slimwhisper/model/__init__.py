"""The network: encoder, decoder, and both set up with the caches that the guard accepted."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

if not TYPE_CHECKING:  # `whisper.model`, for scripts written for it
    __getattr__, __dir__ = lazy_names(
        __name__, {"ModelDimensions": "slimwhisper.types:Dims", "Whisper": "slimwhisper.api"}
    )
