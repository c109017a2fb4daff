"""The log opens nothing for whoever reads it."""

import logging

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.live import Live

SECRETS = (
    *("/page/audio/t0ken?key=s3cret", "/page/result/t0ken.srt", "//page/result//t0ken"),
    *("/page/edit/t0ken", "/gradio_api/file=/tmp/t0ken/a.wav", "/v1/models?api_key=s3cret"),
    *("/gradio_api/queue/data?session_hash=s3cret", "/gradio_api/call/transcribe/t0ken"),
)


def test_the_log_opens_nothing(keyless: Live, caplog: pytest.LogCaptureFixture) -> None:
    logs = [logging.getLogger(f"uvicorn.{name}") for name in ("access", "error")]
    for log in logs:
        log.addHandler(caplog.handler)
    for path in SECRETS:
        assert httpx.get(keyless.url + path).status_code in (200, 401, 403, 404, 405)
    with connect(f"{keyless.url.replace('http', 'ws')}/v1/realtime?model=digits&key=s3cret"):
        pass
    for log in logs:
        log.removeHandler(caplog.handler)
    text = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("uvicorn."))
    assert "t0ken" not in text and "s3cret" not in text
    for shown in ("page/audio/...?...", "page/edit/...", "v1/models?...", "gradio_api/file/..."):
        assert f"GET /{shown} HTTP" in text
    assert "GET /gradio_api/queue/...?... HTTP" in text and "/v1/realtime?..." in text
