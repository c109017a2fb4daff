"""`whisper.timing`: dynamic time warping and word timestamps. For scripts written for it."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {}, fallback="whisper.timing")
