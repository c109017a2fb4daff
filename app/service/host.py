"""The objects that all of a server's routes share."""

from typing import NamedTuple

from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import ServerSettings


class ServerHost(NamedTuple):
    """A server's service, the models that it may load, and the settings."""

    service: Service
    models: Models
    settings: ServerSettings
