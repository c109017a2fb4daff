"""Checkpoints: name, file or folder -> dimensions and weights under OpenAI's tensor names."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

__all__ = [
    "Checkpoint",
    "available_models",
    "default_download_root",
    "expected_shapes",
    "load_checkpoint",
]

if TYPE_CHECKING:
    from slimwhisper.checkpoint.formats.openai import default_download_root
    from slimwhisper.checkpoint.load import Checkpoint, available_models, load_checkpoint
    from slimwhisper.checkpoint.validate import expected_shapes
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Checkpoint": "slimwhisper.checkpoint.load",
            "available_models": "slimwhisper.checkpoint.load",
            "default_download_root": "slimwhisper.checkpoint.formats.openai",
            "expected_shapes": "slimwhisper.checkpoint.validate",
            "load_checkpoint": "slimwhisper.checkpoint.load",
        },
    )
