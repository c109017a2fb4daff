"""Secrets: client secrets fill no memory and no table, and the log opens nothing."""

import logging
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from websockets.sync.client import connect

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.sites import network_of
from slimwhisper.app.realtime import client_secrets
from slimwhisper.app.realtime.client_secrets import FOR_PAGE, MAX_BYTES, ClientSecrets
from slimwhisper.app.realtime.session import START, SessionConfig
from tests.support.live import Live

ROUTE = "/v1/realtime/client_secrets"


def session(**transcription: object) -> dict[str, Any]:
    audio = {"input": {"transcription": transcription}}
    return {"session": {"type": "transcription", "audio": audio}}


def until_full(found: ClientSecrets, config: SessionConfig, address: str | None) -> int:
    for count in range(20_000):
        try:
            found.issue(config, 7200, address)
        except APIError as error:
            assert error.status == 429 and error.headers == {"Retry-After": "60"}
            return count
    raise AssertionError("never full")


def test_one_address_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_secrets, "MAX_SECRETS", 100)
    monkeypatch.setattr(client_secrets, "FOR_PAGE", 10)
    now = [0.0]
    found = ClientSecrets(lambda: now[0])
    assert until_full(found, START, "a") == 45
    assert until_full(found, START, "b") == 45
    assert until_full(found, START, "c") == 0
    assert until_full(found, START, None) == 10, "the page's are kept for it"
    now[0] = 7201.0
    assert until_full(found, START, "c") == 45


def test_bytes_are_bounded() -> None:
    emoji = "\U0001f600"
    keywords = [f"{i:02}{98 * emoji}" for i in range(100)]
    large = START.transcribing(model="a" * 200, prompt=10_000 * emoji, keywords=keywords)
    size = 4 * (10_000 + 10_000)
    found = ClientSecrets()
    assert 100 < until_full(found, large, "a") < MAX_BYTES / size / 2
    assert 100 < until_full(found, large, "b") < MAX_BYTES / size / 2
    found.issue(START, 60)
    assert FOR_PAGE < client_secrets.MAX_SECRETS / 2


def test_what_may_be_asked_for(keyless: Live) -> None:
    url = keyless.url + ROUTE
    long = httpx.post(url, json=session(model="m" * 201))
    assert long.status_code == 400 and "at most 200 characters" in long.text
    assert httpx.post(url, json=session(model="m" * 200)).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = httpx.post(url, content=b"{}", headers={"Content-Type": kind})
        assert answer.status_code == 415 and "send application/json" in answer.text
    kind = "application/json; charset=utf-8"
    assert httpx.post(url, content=b"{}", headers={"Content-Type": kind}).status_code == 200
    keyless.server._realtime.client_secrets._found.clear()


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("/a/socket", "/a/socket"),
    ],
)
def test_networks(host: str, network: str) -> None:
    assert network_of(Request({"type": "http", "client": (host, 1)})) == network


SECRETS = (
    *("/page/audio/t0ken?key=s3cret", "/page/result/t0ken.srt", "//page/result//t0ken"),
    *("/page/edit/t0ken", "/gradio_api/file=/tmp/t0ken/a.wav", "/v1/models?api_key=s3cret"),
    *("/gradio_api/queue/data?session_hash=s3cret", "/gradio_api/call/transcribe/t0ken"),
)


def test_the_log_opens_nothing(keyless: Live, caplog: pytest.LogCaptureFixture) -> None:
    access = logging.getLogger("uvicorn.access")
    access.addHandler(caplog.handler)
    for path in SECRETS:
        assert httpx.get(keyless.url + path).status_code in (200, 401, 403, 404, 405)
    access.removeHandler(caplog.handler)
    text = "\n".join(r.getMessage() for r in caplog.records if r.name == access.name)
    assert "t0ken" not in text and "s3cret" not in text
    for shown in (
        "/page/audio/...?...",
        "/page/edit/...",
        "/v1/models?...",
        "/gradio_api/file/...",
    ):
        assert f"GET {shown} HTTP" in text
    assert "GET /gradio_api/queue/...?... HTTP" in text


def test_websockets_are_logged_without_their_secrets(
    keyless: Live, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("uvicorn.error")
    log.addHandler(caplog.handler)
    with connect(f"{keyless.url.replace('http', 'ws')}/v1/realtime?model=digits&key=s3cret"):
        pass
    log.removeHandler(caplog.handler)
    text = "\n".join(r.getMessage() for r in caplog.records if r.name == log.name)
    assert "/v1/realtime?..." in text and "s3cret" not in text
