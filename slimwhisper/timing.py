"""`whisper.timing`: dynamic time warping and word timestamps. For scripts written for it."""

from slimwhisper._lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, {}, fallback="whisper.timing")
