"""Who may open a realtime session: keys, client secrets, and pages of other sites."""

import base64
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types.realtime import ClientSecretCreateResponse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from slimwhisper.api import SlimWhisper
from slimwhisper.app.api.errors import APIError
from slimwhisper.app.realtime import client_secrets
from slimwhisper.app.realtime.client_secrets import ClientSecrets, read_request
from slimwhisper.app.realtime.session import START
from tests.support.live import Live, start, stop
from tests.support.realtime import sound

BASIC = {"Authorization": "Basic " + base64.b64encode(b"ann:secret").decode()}
BEARER = {"Authorization": "Bearer the-key"}
ROUTE = "/v1/realtime/client_secrets"


def transcribing(turns: bool = True, **fields: str) -> dict[str, Any]:
    """A request for a secret."""
    detection: dict[str, Any] = {} if turns else {"turn_detection": None}
    session = {"type": "transcription", **sound(transcription=fields, **detection)}
    return {"session": session}


@pytest.fixture(scope="module")
def closed(model: SlimWhisper) -> Iterator[Live]:
    """A server with a key and a login."""
    running = start(model, api_key="the-key", login=("ann", "secret"))
    yield running
    stop(running)


def session_of(live: Live, key: str = "", **headers: str) -> dict[str, Any]:
    """The session's first event. key: in a subprotocol, as browsers send it."""
    url = f"{live.url}/v1/realtime?intent=transcription".replace("http", "ws", 1)
    protocols: Any = ["realtime", f"openai-insecure-api-key.{key}"] if key else None
    with connect(url, subprotocols=protocols, additional_headers=headers) as websocket:
        assert websocket.subprotocol == ("realtime" if key else None)
        return dict(json.loads(websocket.recv(timeout=10))["session"])


def status_of(live: Live, key: str = "", **headers: str) -> int:
    """101 if a session begins."""
    try:
        return 101 if session_of(live, key, **headers) else 0
    except InvalidStatus as refused:
        assert json.loads(refused.response.body)["error"]["message"]
        return refused.response.status_code


def secret_of(live: Live, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(f"{live.url}{ROUTE}", json=body, headers=headers)


def test_a_websocket_needs_a_key(closed: Live, caplog: pytest.LogCaptureFixture) -> None:
    server_log = logging.getLogger("uvicorn.error")
    server_log.addHandler(caplog.handler)
    assert status_of(closed) == status_of(closed, "wrong") == 401
    assert status_of(closed, Authorization="Bearer wrong") == 401
    assert status_of(closed, **BEARER) == status_of(closed, **BASIC) == 101
    assert status_of(closed, "the-key") == 101
    server_log.removeHandler(caplog.handler)
    levels = {record.levelno for record in caplog.records}
    assert levels == {logging.INFO}, "a refusal is no error of the server"


def test_pages_of_other_sites_need_a_key_of_their_own(closed: Live, live: Live) -> None:
    for origin in ("https://evil.example", "null", closed.url.replace("http://", "http://x.")):
        assert status_of(closed, Origin=origin, **BASIC) == 403
        assert status_of(live, Origin=origin) == 403
        assert status_of(closed, "the-key", Origin=origin) == 101
        assert status_of(live, secret_of(live, {}).json()["value"], Origin=origin) == 101
    assert status_of(closed, Origin=closed.url, **BASIC) == 101
    assert status_of(live, Origin=live.url) == 101
    assert status_of(live, "ek_x") == status_of(live, Authorization="Bearer ek_x") == 401


def test_a_client_secret_opens_its_session_and_nothing_else(closed: Live) -> None:
    assert secret_of(closed, {}).status_code == 401
    answer = secret_of(closed, transcribing(turns=False, language="en"), **BEARER)
    found = ClientSecretCreateResponse.model_validate_json(answer.content, strict=True)
    bearer = {"Authorization": f"Bearer {found.value}"}
    for ways in (bearer, {**bearer, "Origin": "https://a.example"}, {"key": found.value}):
        sound = session_of(closed, **ways)["audio"]["input"]
        assert sound["transcription"]["language"] == "en" and sound["turn_detection"] is None
    for path in ("/v1/models", "/metrics", "/v1/realtime"):
        assert httpx.get(closed.url + path, headers=bearer).status_code == 401
    assert secret_of(closed, {}, **bearer).status_code == 401
    assert closed.post(headers=bearer, files={"file": b"x"}).status_code == 401


def test_a_secret_is_ours_whole_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    found = ClientSecrets(lambda: now[0])
    before = int(time.time())
    config = read_request(transcribing(language="de"))[0]
    value, expires_at = found.issue(config, 60)
    assert before + 60 <= expires_at <= time.time() + 60
    assert ClientSecrets(lambda: now[0]).session(value) is None, "another server's"
    for place in range(len(value)):
        other = "A" if value[place] != "A" else "B"
        assert found.session(f"{value[:place]}{other}{value[place + 1 :]}") is None
    assert [found.session(odd) for odd in ("", "ek_", "ek_.", "é.é", value[:-1])] == [None] * 5
    now[0] = 1059.9
    for wall in (0.0, time.time() + 10**6):
        monkeypatch.setattr(client_secrets.time, "time", lambda wall=wall: wall)
        session = found.session(value)
        assert session is not None and session.audio.input.transcription.language == "de"
    now[0] = 1060.1
    assert found.session(value) is None


def test_the_longest_secret(closed: Live) -> None:
    prompt = "a" * 3500
    value = secret_of(closed, transcribing(prompt=prompt), **BEARER).json()["value"]
    assert session_of(closed, value)["audio"]["input"]["transcription"]["prompt"] == prompt
    for fields, message in (
        ({"prompt": "a" * 5000}, "too long for a client secret"),
        ({"prompt": "\U0001f600" * 1500}, "too long for a client secret"),
        ({"model": "m" * 201}, "at most 200 characters"),
    ):
        refused = secret_of(closed, transcribing(**fields), **BEARER)
        assert refused.status_code == 400 and message in refused.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"expires_after": {"anchor": "now"}}, "anchor 'now': input should be 'created_at'"),
        ({"expires_after": {"seconds": 9}}, "greater than or equal to 10"),
        ({"expires_after": {"seconds": True}}, "a valid integer"),
        ({"expires_after": {"seconds": 10.5}}, "a valid integer"),
        ({"session": {"type": "realtime"}}, "transcribes and makes no responses"),
    ],
)
def test_secrets_that_are_refused(body: Any, message: str) -> None:
    with pytest.raises(APIError, match=message) as raised:
        read_request(body)
    assert raised.value.status == 400


def test_a_secret_lasts_as_long_as_asked() -> None:
    body = {"expires_after": {"anchor": "created_at", "seconds": 7200}, "x": 1}
    assert read_request(body) == (START, 7200, ["x"])
    assert read_request({})[1] == 600


def test_bodies_that_are_not_json_or_too_large(live: Live) -> None:
    json, deep, large = "application/json; charset=utf-8", b"[" * 100_000, b" " * (2 << 20)
    many = b'{"x": [' + b"[]," * 60_000 + b"1]}"
    for content, kind, status in (
        *((content, json, 400) for content in (b"{", b"[]", deep, many)),
        *((b"", "", 200), (b"{}", json, 200), (large, "", 413), (b"{}", "", 415)),
        *((b"{}", kind, 415) for kind in ("text/plain", "multipart/form-data")),
    ):
        headers = {"Content-Type": kind}
        answer = httpx.post(f"{live.url}{ROUTE}", content=content, headers=headers)
        assert answer.status_code == status, (content[:2], kind, answer.text)
