"""Short names of well-known models on the Hugging Face hub, with MIT or Apache-2.0 licences."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub."""

    repository: str  # its id there
    language: str  # what it was trained for
    shape: str | None  # a model of OpenAI's or distil-whisper's with the same dimensions, if known


def _distil(name: str) -> HubModel:
    return HubModel(f"distil-whisper/{name}", "en", name)


HUB_MODELS = {
    "distil-small.en": _distil("distil-small.en"),
    "distil-medium.en": _distil("distil-medium.en"),
    "distil-large-v2": _distil("distil-large-v2"),
    "distil-large-v3": _distil("distil-large-v3"),
    "distil-large-v3.5": _distil("distil-large-v3.5"),
    "kotoba-whisper-v2.0": HubModel("kotoba-tech/kotoba-whisper-v2.0", "ja", "distil-large-v3"),
    "kb-whisper-tiny": HubModel("KBLab/kb-whisper-tiny", "sv", "tiny"),
    "kb-whisper-base": HubModel("KBLab/kb-whisper-base", "sv", "base"),
    "kb-whisper-small": HubModel("KBLab/kb-whisper-small", "sv", "small"),
    "kb-whisper-medium": HubModel("KBLab/kb-whisper-medium", "sv", "medium"),
    "kb-whisper-large": HubModel("KBLab/kb-whisper-large", "sv", "large-v3"),
    "nb-whisper-tiny": HubModel("NbAiLab/nb-whisper-tiny", "no", "tiny"),
    "nb-whisper-base": HubModel("NbAiLab/nb-whisper-base", "no", "base"),
    "nb-whisper-small": HubModel("NbAiLab/nb-whisper-small", "no", "small"),
    "nb-whisper-medium": HubModel("NbAiLab/nb-whisper-medium", "no", "medium"),
    "nb-whisper-large": HubModel("NbAiLab/nb-whisper-large", "no", None),
}
HUB_IDS = {name: model.repository for name, model in HUB_MODELS.items()}
