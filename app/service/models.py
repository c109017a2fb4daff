"""The models that requests may use: installed ones and, if allowed, those to be downloaded."""

import re
from dataclasses import dataclass
from pathlib import Path

from slimwhisper.checkpoint.formats.openai import default_download_root
from slimwhisper.checkpoint.load import available_models
from slimwhisper.checkpoint.names import BUNDLED
from slimwhisper.errors import CheckpointError

DIARIZE = "gpt-4o-transcribe-diarize"
MODEL_NAMES = "whisper-1 gpt-transcribe gpt-4o-transcribe gpt-4o-mini-transcribe"
OPENAI_MODELS = (*MODEL_NAMES.split(), DIARIZE)  # OpenAI's names, for the server's default
_SNAPSHOT = re.compile(r"-\d{4}-\d\d-\d\d$")
# what other programs write around a model's name: openai/whisper-base, Systran/faster-whisper-base
_AROUND = re.compile(r"^.*/|faster-|whisper-|-ct2$|-en$|large-v3-(?=turbo)")
_BEFORE = ("whisper-", "openai/whisper-", "Systran/faster-whisper-")
_DEFAULT = ("whisper", "default", "gpt-realtime-whisper")  # and OpenAI's names


def openai_model(name: str | None) -> str | None:
    """The name in `OPENAI_MODELS`, without a snapshot's date; None if it is not one of them."""
    family = _SNAPSHOT.sub("", name or "")
    return family if family in OPENAI_MODELS else None


def _bare(name: str) -> str:
    return _AROUND.sub("", name.lower())


@dataclass(frozen=True, slots=True)
class Models:
    """The names of the models, and the model that each name selects."""

    default: str  # the name or path that the server was started with
    folder: Path | None = None  # of downloaded models; None: `default_download_root()`
    download: bool = False  # whether requests may cause downloads
    strict: bool = False  # refuse names that are not of a model here

    @property
    def display_name(self) -> str:
        """The default model's name, without its folder."""
        path = Path(self.default)
        return path.stem if path.suffix == ".pt" else path.name if path.exists() else self.default

    def installed(self) -> list[str]:
        """The names that need no download, the default first."""
        folder = self.folder or default_download_root()
        files = {p.stem for p in folder.glob("*.pt")} if folder.is_dir() else set()
        named = [n for n in available_models() if n in BUNDLED or n in files]
        return list(dict.fromkeys([self.display_name, *named]))

    def aliases(self, name: str) -> list[str]:
        """What other programs call a model."""
        own = [f"{before}{name}" for before in _BEFORE]
        return [*own, *OPENAI_MODELS, *_DEFAULT] if name == self.display_name else own

    def choices(self) -> list[str]:
        """Every name that a request may use."""
        return list(dict.fromkeys([*self.installed(), *(available_models() * self.download)]))

    def resolve(self, name: str | None) -> str:
        """The model to load for a name, as other programs may spell it. Raises CheckpointError for
        a name that is not of one in `choices`.
        """
        if name in (None, "", self.display_name, *_DEFAULT) or openai_model(name):
            return self.default
        names = self.choices()  # looks into the folder of models
        found = [name] if name in names else [n for n in names if _bare(n) == _bare(name)]
        if found:
            return self.default if found[0] == self.display_name else found[0]
        choices = ", ".join(names)
        raise CheckpointError(f"model {str(name)[:100]!r} is not available here; choose: {choices}")
