"""Access to the real app: without the key, no path and no kind of connection reaches the API."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Scope

from slimwhisper.api import SlimWhisper
from slimwhisper.app.api.access import Access
from slimwhisper.app.server import make_app
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings
from tests.support.live import Begin, Live, connected, rest

KEY = (b"authorization", b"Bearer secret")


@pytest.fixture
def app() -> Iterator[FastAPI]:
    """The app of a server with a key, without a page; no model is loaded."""

    def load(_: object) -> SlimWhisper:
        raise AssertionError("nothing is transcribed here")

    service = Service(load)
    yield make_app(service, Models("digits"), Settings(api_key="secret"))
    service.close()


def scope_of(kind: str, path: str, *headers: tuple[bytes, bytes], root_path: str = "") -> Scope:
    return {
        "type": kind,
        "path": path,
        "root_path": root_path,
        "headers": list(headers),
        "method": "GET",
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("here", 80),
        "client": ("there", 1),
        "subprotocols": [],
    }


def sent_by(app: ASGIApp, scope: Scope) -> list[Message]:
    """What an app sends to a client that only connects."""
    found: list[Message] = []
    first = {"http": {"type": "http.request", "body": b""}}
    received = [first.get(scope["type"], {"type": f"{scope['type']}.connect"})]

    async def receive() -> Message:
        return received.pop() if received else {"type": f"{scope['type']}.disconnect"}

    async def send(message: Message) -> None:
        found.append(message)

    asyncio.run(app(scope, receive, send))
    return found


def status_of(app: ASGIApp, scope: Scope) -> int:
    return int(sent_by(app, scope)[0]["status"])


def raw_get(live: Live, target: str) -> tuple[int, str]:
    """Status and answer of a GET whose target is sent as it is, which no client would do."""
    head = f"GET {target} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    with connected(live, head.encode()) as connection:
        answer = rest(connection).decode(errors="replace")
    return int(answer.split(maxsplit=2)[1]), answer


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health", "/", "/v2/live"])
@pytest.mark.parametrize("headers", [(), (KEY,)], ids=["no key", "key"])
def test_websockets_are_refused(app: ASGIApp, path: str, headers: Any) -> None:
    (message,) = sent_by(app, scope_of("websocket", path, *headers))
    assert message["type"] == "websocket.close" and message["code"] == 1008


@pytest.mark.parametrize("root", ["", "/speech", "/v1"])
def test_the_realtime_route_behind_a_path(app: ASGIApp, root: str) -> None:
    path = f"{root}/v1/realtime"
    (refused,) = sent_by(app, scope_of("websocket", path, root_path=root))
    assert refused["type"] == "websocket.close" and "key" in refused["reason"]
    accepted, *_ = sent_by(app, scope_of("websocket", path, KEY, root_path=root))
    assert accepted["type"] == "websocket.accept"


def test_unknown_scopes_are_an_error(app: ASGIApp) -> None:
    for kind in ("webtransport", "HTTP", ""):
        with pytest.raises(RuntimeError, match=f"ASGI scopes of type '{kind}' are not served"):
            sent_by(app, scope_of(kind, "/v1/models", KEY))


@pytest.mark.parametrize("path", ["/new", "/page/new", "/gradio_api/new", "/v1/new", "/healthy"])
@pytest.mark.parametrize("page", [False, True], ids=["no page", "page"])
def test_a_route_that_somebody_adds_is_closed(app: FastAPI, page: bool, path: str) -> None:
    app.router.routes.insert(0, Route(path, lambda _: PlainTextResponse("open")))
    app.router.routes.insert(0, WebSocketRoute(path, lambda websocket: websocket.accept()))
    assert status_of(app.router, scope_of("http", path)) == 200
    assert sent_by(app.router, scope_of("websocket", path))[0]["type"] == "websocket.accept"
    signed_in = (lambda _: False) if page else None
    for guarded in (app, Access(app.router, Settings(api_key="secret"), signed_in=signed_in)):
        assert status_of(guarded, scope_of("http", path)) == 401
        assert sent_by(guarded, scope_of("websocket", path, KEY))[0]["type"] == "websocket.close"


def test_without_a_page_every_path_but_health_needs_the_key(app: ASGIApp) -> None:
    for path in ("/", "/v1/models", "/v2/models", "/metrics", "/healthy", "/health/", "/docs", ""):
        assert status_of(app, scope_of("http", path)) == 401, path
    assert status_of(app, scope_of("http", "/v2/models", KEY)) == 404
    assert status_of(app, scope_of("http", "/v1/models", KEY)) == 200
    assert status_of(app, scope_of("http", "/health")) == 200


def test_root_path_is_cut_as_the_router_cuts_it(app: ASGIApp) -> None:
    for page in (False, True):
        signed_in = (lambda _: False) if page else None
        guarded = Access(app, Settings(api_key="secret"), signed_in=signed_in)
        for root, path in (
            *(("/v", "/v1/models"), ("/m", "/metrics"), ("/v1", "/v1/v1/models")),
            *(("/speech", "/speech/v1/models"), ("/speech", "/v1/models"), ("/s/", "/s/v1/models")),
        ):
            scope = scope_of("http", path, root_path=root)
            assert status_of(guarded, scope) in (401, 404), (root, path)
    assert status_of(app, scope_of("http", "/speech/health", root_path="/speech")) == 200


TRICKS = (
    *("/v1", "/v1/", "/v1/models/", "/v1/models/digits", "//v1/models", "/v1//models", "///v1"),
    *("/V1/models", "/v1/Models", "/%76%31/models", "/v1%2Fmodels", "/%2Fv1/models"),
    *("/./v1/models", "/page/../v1/models", "/v1/models/../../health", "/health/../v1/models"),
    *("/v1/../health", "/v1?/health", "/v1/models?x=/health", "/%2576%2531/models"),
    *("v1/models", "1/models", "http://here/v1/models", "/metrics/", "//metrics", "/METRICS"),
    *("/health/%2e%2e/v1/models", "/health%2F..%2Fv1/models", "/health//v1/models"),
    *("/v1;a/models", "/v1%00/models", "\\v1\\models"),
)


@pytest.mark.parametrize("root_path", ["", "/v", "/speech"])
@pytest.mark.parametrize("page", [False, True], ids=["no page", "page"])
def test_no_spelling_of_a_path_goes_round_the_key(
    begin: Begin, folder: Path, page: bool, root_path: str
) -> None:
    live = begin(page=folder if page else None, api_key="secret", root_path=root_path)
    for target in (*TRICKS, *(f"{root_path}{trick}" for trick in TRICKS)):
        status, answer = raw_get(live, target)
        assert status in (307, 400, 401, 404), (target, answer)
        assert '"owned_by"' not in answer and "slimwhisper_slots" not in answer, target
        assert "not available here" not in answer, target
    for target in ("/v1/models", "//v1/models", "/V1/models", "/%76%31/models", "/metrics/"):
        assert raw_get(live, target)[0] == 401, target
    assert raw_get(live, "/health")[0] == 200


def test_no_spelling_opens_what_gradio_would_fetch(begin: Begin, folder: Path) -> None:
    live = begin(page=folder, api_key="secret", root_path="/g")
    for target in (
        *("/gradio_api/proxy=http://127.0.0.1:1/", "radio_api/proxy=http://127.0.0.1:1/"),
        *("/gradio_api/proxy%3Dhttp://127.0.0.1:1/", "//gradio_api/proxy=http://127.0.0.1:1/"),
        *("/Gradio_api/file=HTTP://127.0.0.1:1/", "/gradio_api/file%3Dhttp://127.0.0.1:1/"),
    ):
        status, answer = raw_get(live, target)
        assert status == 401, (target, answer)
