"""The network: encoder, decoder, and both set up with the caches that the guard accepted."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

__all__ = [
    "Decoder",
    "Encoder",
    "Model",
]

if TYPE_CHECKING:
    from slimwhisper.model.decoder import Decoder
    from slimwhisper.model.encoder import Encoder
    from slimwhisper.model.model import Model
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Decoder": "slimwhisper.model.decoder",
            "Encoder": "slimwhisper.model.encoder",
            "Model": "slimwhisper.model.model",
            "ModelDimensions": "slimwhisper.types:Dims",
            "Whisper": "slimwhisper.api",
        },
        fallback="model",
    )
