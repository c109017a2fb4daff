"""`whisper.normalizers`: texts as error rates compare them. For scripts written for it."""

from slimwhisper._lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, {}, fallback="whisper.normalizers")
