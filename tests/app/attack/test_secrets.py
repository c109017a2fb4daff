"""Secrets: client secrets fill no memory and no table, and the log opens nothing."""

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.sites import network_of
from slimwhisper.app.realtime import client_secrets
from slimwhisper.app.realtime.client_secrets import FOR_PAGE, MAX_BYTES, ClientSecrets
from slimwhisper.app.realtime.session import START, SessionConfig
from tests.support.live import Live
from tests.support.page_calls import PHONE, call, clear_page, upload

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


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is written about requests and websockets."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Handler()
    loggers = [logging.getLogger(name) for name in ("uvicorn.access", "uvicorn.error")]
    for logger in loggers:
        logger.addHandler(handler)
    yield lines
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.slow
def test_the_log_opens_nothing(keyless: Live, logged: list[str]) -> None:
    with httpx.Client(base_url=keyless.url, timeout=60) as client:
        file = upload(client, PHONE)
        (found,) = call(client, file)[1][1]["files"]
        for path in (found["audio"], found["downloads"]["srt"]):
            assert client.get(f"/{path}?key=s3cret").status_code == 200
        assert client.post(f"/{found['edit']}", json={"undo": 0}).status_code == 409
        assert client.get(f"/gradio_api/file={file['path']}").status_code == 200
        client.get(f"{keyless.url}//page/result//{found['audio'].rpartition('/')[2]}")
        client.get("/gradio_api/queue/data?session_hash=s3cret")
        client.get("/v1/models?api_key=s3cret")
    clear_page(keyless)
    text = "\n".join(logged)
    token = found["audio"].rpartition("/")[2]
    for secret in (token, file["path"], file["path"].split("/")[-3], "s3cret"):
        assert secret not in text
    assert "GET /page/audio/...?... HTTP" in text and "POST /page/edit/... HTTP" in text
    assert "GET /gradio_api/file/... HTTP" in text and "GET /v1/models?... HTTP" in text
    assert "POST /gradio_api/call/... HTTP" in text and "POST /gradio_api/upload HTTP" in text
