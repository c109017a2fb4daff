"""`whisper.tokenizer`: languages, and texts as token ids. For scripts written for it."""

from slimwhisper._lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, {}, fallback="whisper.tokenizer")
