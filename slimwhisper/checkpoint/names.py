"""Short names of well-known models on the Hugging Face hub, with MIT or Apache-2.0 licences."""

from dataclasses import dataclass


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
