"""The settings of a server, and the objects that all of its routes share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.live.types import LiveOptions


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
