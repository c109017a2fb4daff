"""What a server was started with: its settings, the models that requests may use (installed ones
and, if allowed, those to be downloaded), and the objects that all of its routes share.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from slimwhisper.app.service.service import Service
from slimwhisper.errors import CheckpointError
from slimwhisper.formats.downloads import default_download_root
from slimwhisper.formats.names import BUNDLED, available_models
from slimwhisper.live.types import LiveOptions

# -- models --------------------------------------------------------------------------------------

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


# -- settings ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The flags of `serve`, except those of the model."""

    host: str = "127.0.0.1"
    port: int = 7860
    api_key: str | None = None
    login: tuple[str, str] | None = None  # user, password
    tls: tuple[str, str] | None = None  # files of the certificate and its key; None: plain HTTP
    root_path: str = ""  # the path behind a proxy, such as "/speech"
    allow_hosts: tuple[str, ...] = ()  # names accepted in Host, besides this machine's
    allow_origins: tuple[str, ...] = ()  # sites whose pages may use the API: "https://a.example"
    max_bytes: int = 1 << 30  # of an upload
    timeout: float = 3600.0  # seconds a request to the API may take
    patience: float = 30.0  # seconds for running requests at shutdown
    page: Path | None = None  # the folder for the page's files; None: no page
    cache: str | None = None  # the preset the model is loaded with; None: not a preset
    live: LiveOptions = field(default_factory=LiveOptions)  # defaults of streams
    session_seconds: float = 3600.0  # of a realtime session
    idle_seconds: float = 300.0  # without audio, after which a realtime session ends
    results: Path | None = None  # the folder of jobs in the background; None: there are none
    keep_results: float = 86_400.0  # seconds
    allow_webhooks: tuple[str, ...] = ()  # hosts that are told of their ends
    wyoming: int | None = None  # the port of the Wyoming protocol; None: it is not served


class ServerHost(NamedTuple):
    """A server's service, the models that it may load, and the settings."""

    service: Service
    models: Models
    settings: ServerSettings
