"""How a server is reached, and what it takes."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says of a server, but for its model."""

    host: str = "127.0.0.1"
    port: int = 7860
    api_key: str | None = None
    login: tuple[str, str] | None = None
    root_path: str = ""
    most_bytes: int = 1 << 30  # of an upload
    timeout: float = 3600.0  # seconds that a request of the API may take
    patience: float = 30.0  # seconds that running requests get at the end
    page: Path | None = None  # where the page keeps its files; None: no page
    cache: str | None = None  # the preset of the model as it is loaded; None: none of them
