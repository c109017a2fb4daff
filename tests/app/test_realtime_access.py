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

from slimwhisper.api import SlimWhisper
from slimwhisper.app.api.errors import APIError
from slimwhisper.app.realtime import client_secrets
from slimwhisper.app.realtime.client_secrets import ClientSecrets, read_request
from slimwhisper.app.realtime.session import START
from tests.support.live import Live, start, stop
from tests.support.realtime import sound

BASIC = "Basic " + base64.b64encode(b"ann:secret").decode()
BEARER = {"Authorization": "Bearer the-key"}
KEY = "openai-insecure-api-key."
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


def connects(live: Live, *, protocols: Any = None, **headers: str) -> int | dict[str, Any]:
    """The first event of a session, or the status of the refusal."""
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    url = f"{live.url}/v1/realtime?intent=transcription".replace("http", "ws", 1)
    origin = headers.pop("Origin", None)
    options: Any = {"subprotocols": protocols, "origin": origin, "additional_headers": headers}
    try:
        with connect(url, **options) as websocket:
            assert websocket.subprotocol == ("realtime" if protocols else None)
            return dict(json.loads(websocket.recv(timeout=10)))
    except InvalidStatus as refused:
        assert json.loads(refused.response.body)["error"]["message"]
        return refused.response.status_code


def secret_of(live: Live, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(f"{live.url}{ROUTE}", json=body, headers=headers)


def test_a_websocket_needs_a_key(closed: Live, caplog: pytest.LogCaptureFixture) -> None:
    server_log = logging.getLogger("uvicorn.error")
    server_log.addHandler(caplog.handler)
    assert connects(closed) == 401
    assert connects(closed, Authorization="Bearer wrong") == 401
    assert connects(closed, protocols=["realtime", f"{KEY}wrong"]) == 401
    for headers in (BEARER, {"Authorization": BASIC}):
        assert isinstance(connects(closed, **headers), dict)
    assert isinstance(connects(closed, protocols=["realtime", f"{KEY}the-key"]), dict)
    server_log.removeHandler(caplog.handler)
    levels = {record.levelno for record in caplog.records}
    assert levels == {logging.INFO}, "a refusal is no error of the server"


def test_pages_of_other_sites_need_a_key_of_their_own(closed: Live, live: Live) -> None:
    own = closed.url
    for origin in ("https://evil.example", "null", own.replace("http://", "http://x.")):
        assert connects(closed, Origin=origin, Authorization=BASIC) == 403
        assert connects(live, Origin=origin) == 403
    found = connects(closed, Origin="https://app.example", protocols=["realtime", f"{KEY}the-key"])
    assert isinstance(found, dict)
    assert isinstance(connects(closed, Origin=own, Authorization=BASIC), dict)
    assert isinstance(connects(live, Origin=live.url), dict)
    assert connects(live, Authorization="Bearer ek_x") == 401, "unknown, even without a key"
    assert connects(live, protocols=["realtime", f"{KEY}ek_x"]) == 401
    secret = secret_of(live, {}).json()["value"]
    found = connects(live, Origin="https://a.example", protocols=["realtime", KEY + secret])
    assert isinstance(found, dict)


def test_a_client_secret_opens_its_session_and_nothing_else(closed: Live) -> None:
    assert secret_of(closed, {}).status_code == 401
    answer = secret_of(
        closed, transcribing(turns=False, language="en"), Authorization="Bearer the-key"
    )
    found = ClientSecretCreateResponse.model_validate_json(answer.content, strict=True)
    assert found.value.startswith("ek_")
    bearer = {"Authorization": f"Bearer {found.value}"}
    for headers in (bearer, {**bearer, "Origin": "https://a.example"}):
        created = connects(closed, **headers)
        assert isinstance(created, dict)
        sound = created["session"]["audio"]["input"]
        assert sound["transcription"]["language"] == "en" and sound["turn_detection"] is None
    with_subprotocol = connects(closed, protocols=["realtime", KEY + found.value])
    assert isinstance(with_subprotocol, dict)
    for path in ("/v1/models", "/metrics", "/v1/realtime"):
        assert httpx.get(closed.url + path, headers=bearer).status_code == 401
    assert secret_of(closed, {}, **bearer).status_code == 401
    assert closed.post(headers=bearer, files={"file": b"x"}).status_code == 401


def test_a_secret_is_ours_whole_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    found = ClientSecrets(lambda: now[0])
    before = int(time.time())
    value, expires_at = found.issue(START.transcribing(language="de"), 60)
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
    found = secret_of(closed, transcribing(prompt=prompt), **BEARER).json()["value"]
    created = connects(closed, protocols=["realtime", KEY + found])
    assert isinstance(created, dict)
    assert created["session"]["audio"]["input"]["transcription"]["prompt"] == prompt
    for prompt in ("a" * 5000, "\U0001f600" * 1500):
        refused = secret_of(closed, transcribing(prompt=prompt), **BEARER)
        assert refused.status_code == 400 and "too long for a client secret" in refused.text
    long = secret_of(closed, transcribing(model="m" * 201), **BEARER)
    assert long.status_code == 400 and "at most 200 characters" in long.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body: input should be a valid dictionary"),
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
    json_kind = "application/json; charset=utf-8"
    for content, kind, status in (
        *((b"{", json_kind, 400), (b"[" * 100_000, json_kind, 400), (b" " * (2 << 20), "", 413)),
        *((b"", "", 200), (b"{}", json_kind, 200), (b"{}", "text/plain", 415), (b"{}", "", 415)),
        *((b"{}", "application/x-www-form-urlencoded", 415), (b"{}", "multipart/form-data", 415)),
    ):
        headers = {"Content-Type": kind}
        answer = httpx.post(f"{live.url}{ROUTE}", content=content, headers=headers)
        assert answer.status_code == status, (content[:2], kind, answer.text)
