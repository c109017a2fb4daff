"""`whisper.decoding` with our models: decodes single windows. For scripts written for it."""

from slimwhisper._lazy import lazy_names

MODULES = "slimwhisper.decode or model.decode; it needs a model of modules, with hooks"

__getattr__, __dir__ = lazy_names(
    __name__,
    {"decode": "slimwhisper.functions", "detect_language": "slimwhisper.functions"},
    fallback="whisper.decoding",
    missing=dict.fromkeys(("DecodingTask", "Inference", "PyTorchInference"), MODULES),
)
