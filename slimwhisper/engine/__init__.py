"""Batch decoding: windows of audio in slots, their texts in rows, answers to whoever asked."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

__all__ = ["Engine"]

if TYPE_CHECKING:
    from slimwhisper.engine.engine import Engine
else:
    __getattr__, __dir__ = lazy_names(__name__, {"Engine": "slimwhisper.engine.engine"})
