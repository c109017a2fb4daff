"""What stands in for silero-vad where words are tones."""

import pytest

from slimwhisper.live import segmenter
from tests.support.tones import Loudness


@pytest.fixture
def loudness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is loud is speech."""
    monkeypatch.setattr(segmenter, "SpeechStream", Loudness)
