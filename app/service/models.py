"""Which models a server may use: what is installed and, where allowed, what can be fetched."""

from dataclasses import dataclass
from pathlib import Path

from slimwhisper.checkpoint.bundled import BUNDLED
from slimwhisper.checkpoint.load import available_models
from slimwhisper.checkpoint.openai import default_download_root
from slimwhisper.errors import CheckpointError

ALIAS = "whisper-1"  # what clients of OpenAI's API ask for: the server's own model


@dataclass(frozen=True, slots=True)
class Models:
    """The names a request may give."""

    default: str  # a name, or a file or folder that the server was started with
    folder: Path | None = None  # of downloaded models; None: `default_download_root()`
    download: bool = False  # names that are not installed may be fetched

    @property
    def shown(self) -> str:
        """The default's name, without the folder it lies in."""
        path = Path(self.default)
        return path.stem if path.suffix == ".pt" else path.name if path.exists() else self.default

    def installed(self) -> list[str]:
        """Names that need no download, the default first."""
        folder = self.folder or default_download_root()
        files = {p.stem for p in folder.glob("*.pt")} if folder.is_dir() else set()
        named = [n for n in available_models() if n in BUNDLED or n in files]
        return list(dict.fromkeys([self.shown, *named]))

    def choices(self) -> list[str]:
        """All that may be asked for."""
        return list(dict.fromkeys([*self.installed(), *(available_models() * self.download)]))

    def resolve(self, name: str | None) -> str:
        """The model to load for a request. Raises CheckpointError for what is not to be had."""
        if name in (None, "", ALIAS, self.shown):
            return self.default
        if name in self.choices():
            return str(name)
        known = ", ".join(self.choices())
        raise CheckpointError(
            f"model {str(name)[:100]!r} is not available here; there are: {known}"
        )
