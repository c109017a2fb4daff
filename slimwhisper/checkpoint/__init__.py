"""Checkpoints: name, file or folder -> dimensions and weights under OpenAI's tensor names."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

__all__ = ["load_checkpoint"]

if TYPE_CHECKING:
    from slimwhisper.checkpoint.load import load_checkpoint
else:
    home = "slimwhisper.checkpoint.load"
    __getattr__, __dir__ = lazy_names(__name__, {"load_checkpoint": home})
