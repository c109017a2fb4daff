"""`whisper.timing`: dynamic time warping and word timestamps. For scripts written for it."""

from slimwhisper._lazy import lazy_names

WORDS = "model.transcribe(audio, word_timestamps=True); it needs a model of modules, with hooks"

__getattr__, __dir__ = lazy_names(
    __name__,
    {},
    fallback="whisper.timing",
    missing=dict.fromkeys(("add_word_timestamps", "find_alignment"), WORDS),
)
