"""Numbers and texts that JSON does not have, or that no number of Python's holds."""

import json

import pytest
from websockets.sync.client import connect

from tests.support.live import Live
from tests.support.page_calls import PHONE

HUGE = "1" * 400


@pytest.mark.parametrize(
    "event",
    [
        r'{"type": "session.update", "event_id": "\ud800"}',
        r'{"type": "\udc00x"}',
        r'{"type": "session.update", "session": {"type": "transcription", "audio": {"input":'
        r' {"transcription": {"prompt": "\ud800"}}}}}',
        r'{"type": "session.update", "session": {"\ud800": 1}}',
        '{"type": "session.update", "session": NaN}',
        '{"type": "session.update", "session": {"type": "transcription", "audio": {"input":'
        f' {{"turn_detection": {{"silence_duration_ms": {HUGE}}}}}}}}}}}',
        '{"type": "session.update", "session": {"type": "transcription", "audio": {"input":'
        ' {"turn_detection": {"threshold": 1e999}}}}}',
    ],
)
def test_events(keyless: Live, event: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each gets an error, and the session goes on."""
    with connect(f"{keyless.url.replace('http', 'ws')}/v1/realtime") as websocket:
        websocket.recv(timeout=10)
        websocket.send(event)
        found = json.loads(websocket.recv(timeout=10))
        assert found["type"] == "error", found
        assert found["error"]["type"] == "invalid_request_error"
        websocket.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(websocket.recv(timeout=10))["type"] == "input_audio_buffer.cleared"
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "strategy",
    [
        f'{{"type": "server_vad", "threshold": {HUGE}}}',
        f'{{"type": "server_vad", "silence_duration_ms": -{HUGE}}}',
        '{"type": "server_vad", "prefix_padding_ms": NaN}',
        '{"type": "server_vad", "prefix_padding_ms": 1e999}',
        r'{"type": "\ud800"}',
        r'{"type": "server_vad", "\ud800": 1}',
    ],
)
def test_strategies(keyless: Live, strategy: str) -> None:
    """Each gets an error that says where it is."""
    data, files = {"chunking_strategy": strategy}, {"file": PHONE.read_bytes()}
    found = keyless.post(data=data, files=files)
    assert found.status_code == 400 and found.json()["error"]["param"] == "chunking_strategy"
