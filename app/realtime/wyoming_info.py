"""Describes the server's models in Wyoming's `info` event."""

from typing import Any

from slimwhisper.app.service.host import ServerHost
from slimwhisper.checkpoint.bundled import BUNDLED
from slimwhisper.checkpoint.names import HUB_MODELS


def info(host: ServerHost) -> dict[str, Any]:
    """The data of the event: the installed models, and their languages."""
    common = {
        "attribution": {"name": "OpenAI's Whisper", "url": "https://github.com/openai/whisper"},
        "installed": True,
        "version": None,
    }
    models = [
        {
            "name": name,
            "description": f"Whisper model {name}",
            "languages": _languages(name, host),
            **common,
        }
        for name in host.models.installed()
    ]
    program = {
        "name": "slimwhisper",
        "description": "Whisper speech-to-text with a small decoder cache",
        "models": models,
        "supports_transcript_streaming": True,
        "requires_external_vad": True,  # a recording ends with audio-stop
        **common,
    }
    return {"asr": [program]}


def _languages(name: str, host: ServerHost) -> list[str]:
    """The codes of a model's languages: from the model if it is loaded, else by its name."""
    from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES

    loaded = host.service.engines.model
    if name == host.models.display_name and loaded is not None:
        return list(loaded.network.vocabulary.languages.values()) or ["en"]
    code = HUB_MODELS[name].language if name in HUB_MODELS else ""
    if code in LANGUAGES:
        return [code]
    return ["en"] if name.endswith(".en") or name in BUNDLED else list(LANGUAGES)
