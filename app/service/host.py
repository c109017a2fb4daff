"""What a server works with."""

from typing import NamedTuple

from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings


class Host(NamedTuple):
    """A server's service, the models that it may load, and the settings."""

    service: Service
    models: Models
    settings: Settings
