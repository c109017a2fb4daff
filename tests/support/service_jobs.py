"""A job of the service and its events, for tests without a server."""

import queue
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from slimwhisper.app.service.jobs import Event, Job, ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.service.source import Failed, Finished
from tests.support.paths import SAMPLES

Make = Callable[..., Service]
DIGITS = ModelChoice("digits")
PHONE = "phone-number.wav"


class Upload:
    """A job and its events."""

    def __init__(
        self,
        service: Service,
        path: Path | str = PHONE,
        user: str = "ann",
        model: str = "digits",
        on_samples: Callable[..., None] | None = None,
        **options: Any,
    ) -> None:
        """path: a sample's name, or of another file."""
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        file, choice = SAMPLES / path, ModelChoice(model)
        self.job = Job(file, file.name, choice, options, user, self.events.put, on_samples)
        service.submit(self.job)

    def until_the_end(self) -> list[Event]:
        events = [self.events.get(timeout=120)]
        while not isinstance(events[-1], Finished | Failed):
            events.append(self.events.get(timeout=120))
        return events

    @cached_property
    def last(self) -> Event:
        return self.until_the_end()[-1]

    @property
    def text(self) -> str:
        last = self.last
        assert isinstance(last, Finished), last
        return str(last.result.text).strip()

    @property
    def error(self) -> Exception:
        last = self.last
        assert isinstance(last, Failed), last
        return last.error
