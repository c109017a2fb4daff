"""What a request asks for, once its form has been checked: the one thing that both forms, OpenAI's
and whisper.cpp's, are turned into.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import UploadFile

from slimwhisper.app.service.jobs import ModelChoice

MAX_WARNINGS = 5
MAX_NAME = 40  # characters of a field's name in a header


@dataclass(frozen=True, slots=True)
class Reference:
    """A known speaker: a name, and a recording of the voice."""

    name: str
    data: bytes  # an audio file


@dataclass(slots=True)
class Wanted:
    """A checked request."""

    upload: UploadFile
    task: str  # "transcribe" or "translate"
    format: str  # of the response
    model: ModelChoice
    served_by: str  # the model's name, as it is shown
    options: dict[str, Any]  # fields of `slimwhisper.Options`
    asked: str = ""  # OpenAI's model that was asked for, without a date; "": one of ours
    granularities: tuple[str, ...] = ("segment",)  # of verbose_json
    words_inside: bool = False  # verbose_json has each segment's words in it, as whisper.cpp
    stream: bool = False
    logprobs: bool = False
    references: tuple[Reference, ...] = ()
    longest: float = math.inf  # seconds of audio that may be sent without chunking_strategy
    unknown: list[str] = field(default_factory=list)  # fields that were ignored

    def headers(self) -> dict[str, str]:
        """Of the response: which model served it, and which fields were ignored."""
        found = {"X-Slimwhisper-Model": _plain(self.served_by)}
        if self.unknown:
            shown = [f'unknown field "{_plain(n)}" was ignored' for n in self.unknown]
            more = len(shown) - MAX_WARNINGS
            rest = [f"and {more} more"] if more > 0 else []
            found["X-Slimwhisper-Warning"] = "; ".join([*shown[:MAX_WARNINGS], *rest])
        return found


def _plain(text: str) -> str:
    """A text that may stand in a header, between quotes: short, printable ASCII."""
    fits = (c if c.isascii() and c.isprintable() and c not in '"\\' else "?" for c in text)
    return "".join(fits)[:MAX_NAME]
