"""Names of models: OpenAI's, and short ones of well-known models on the Hugging Face hub, with MIT
or Apache-2.0 licences; and those that come with the package.
"""

import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "models"

# name -> a warning for its users
BUNDLED = {
    "digits": "'digits' knows only the English words zero to nine; choose --model turbo or small"
}


def bundled_file(name: str) -> Path:
    """Its checkpoint, in OpenAI's format; the model card is the .md file next to it."""
    return FOLDER / f"{name}.pt"


# openai-whisper's tables: the file's address, whose last part but one is its SHA-256, and a dump of
# the heads that the times of words are read from
_OPENAI = json.loads(Path(__file__).with_name("openai_models.json").read_text(encoding="utf-8"))
MODEL_URLS: dict[str, str] = {name: row["url"] for name, row in _OPENAI.items()}
ALIGNMENT_DUMPS: dict[str, bytes] = {name: row["heads"].encode() for name, row in _OPENAI.items()}


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub."""

    repository: str  # its id there
    language: str  # what it was trained for
    shape: str | None  # a model of OpenAI's or distil-whisper's with the same dimensions, if known


SIZES = ("tiny", "base", "small", "medium")
DISTIL = ("small.en", "medium.en", "large-v2", "large-v3", "large-v3.5")
HUB_MODELS = {
    **{f"distil-{n}": HubModel(f"distil-whisper/distil-{n}", "en", f"distil-{n}") for n in DISTIL},
    "kotoba-whisper-v2.0": HubModel("kotoba-tech/kotoba-whisper-v2.0", "ja", "distil-large-v3"),
    **{f"kb-whisper-{n}": HubModel(f"KBLab/kb-whisper-{n}", "sv", n) for n in SIZES},
    "kb-whisper-large": HubModel("KBLab/kb-whisper-large", "sv", "large-v3"),
    **{f"nb-whisper-{n}": HubModel(f"NbAiLab/nb-whisper-{n}", "no", n) for n in SIZES},
    "nb-whisper-large": HubModel("NbAiLab/nb-whisper-large", "no", None),
}
HUB_IDS = {name: model.repository for name, model in HUB_MODELS.items()}


def available_models() -> list[str]:
    """List the names that `load_model` knows. This is `whisper.available_models`.

    Returns:
        The names of the bundled models, of OpenAI's, and of some models of the Hugging Face hub.
    """
    return [*BUNDLED, *MODEL_URLS, *HUB_IDS]
