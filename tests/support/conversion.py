"""What the tests of `slimwhisper convert` share."""

import json
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.commands.conversion.convert import convert
from slimwhisper.errors import SlimWhisperError
from tests.support.checkpoints import DIMS, random_state

STATE = random_state(DIMS, seed=5)


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def refused(kind: type[SlimWhisperError], *arguments: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        convert(*map(str, arguments), **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    return message
