"""A server's settings."""

from dataclasses import dataclass, field
from pathlib import Path

from slimwhisper.live.types import LiveOptions


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says about a server, except its model."""

    host: str = "127.0.0.1"
    port: int = 7860
    api_key: str | None = None
    login: tuple[str, str] | None = None  # user, password
    root_path: str = ""  # the path behind a proxy, such as "/speech"
    allow_hosts: tuple[str, ...] = ()  # names that the server is asked by, besides this machine's
    allow_origins: tuple[str, ...] = ()  # sites whose pages may use the API: "https://a.example"
    max_bytes: int = 1 << 30  # of an upload
    timeout: float = 3600.0  # seconds a request to the API may take
    patience: float = 30.0  # seconds for running requests at shutdown
    page: Path | None = None  # the folder for the page's files; None: no page
    cache: str | None = None  # the preset the model is loaded with; None: not a preset
    live: LiveOptions = field(default_factory=LiveOptions)  # streams, unless they say
    session_seconds: float = 3600.0  # of a realtime session
    idle_seconds: float = 300.0  # without audio, which end a realtime session
    wyoming: int | None = None  # the port of the Wyoming protocol; None: it is not served
