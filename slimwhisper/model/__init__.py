"""The network: encoder, decoder, and both set up with the caches that the guard accepted.

The names of `whisper.model` are here as well, for scripts written for it.
"""

from slimwhisper._lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {"ModelDimensions": "slimwhisper.types:Dims", "Whisper": "slimwhisper.api"},
    fallback="whisper.model",
)
