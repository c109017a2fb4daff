"""Windows in, answers out: batch decoding in slots and rows."""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

__all__ = [
    "Align",
    "Alignment",
    "Answer",
    "Attempt",
    "Decoded",
    "Engine",
    "Languages",
    "Request",
    "Retry",
    "Rules",
    "Ticket",
    "Window",
]

if TYPE_CHECKING:
    from slimwhisper.engine.engine import Engine
    from slimwhisper.engine.lanes import Ticket
    from slimwhisper.engine.requests import (
        Align,
        Alignment,
        Answer,
        Attempt,
        Decoded,
        Languages,
        Request,
        Retry,
        Rules,
        Window,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Align": "slimwhisper.engine.requests",
            "Alignment": "slimwhisper.engine.requests",
            "Answer": "slimwhisper.engine.requests",
            "Attempt": "slimwhisper.engine.requests",
            "Decoded": "slimwhisper.engine.requests",
            "Engine": "slimwhisper.engine.engine",
            "Languages": "slimwhisper.engine.requests",
            "Request": "slimwhisper.engine.requests",
            "Retry": "slimwhisper.engine.requests",
            "Rules": "slimwhisper.engine.requests",
            "Ticket": "slimwhisper.engine.lanes",
            "Window": "slimwhisper.engine.requests",
        },
    )
