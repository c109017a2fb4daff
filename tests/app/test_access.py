"""Access to the real app: without the key, no path and no kind of connection reaches the API."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from slimwhisper.api import SlimWhisper
from slimwhisper.app.api.access import Access
from slimwhisper.app.server import make_app
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import Settings
from tests.support.live import Begin, Live, connected, rest

KEY = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    """The app of a server with a key, without a page; no model is loaded."""

    def load(_: object) -> SlimWhisper:
        raise AssertionError("nothing is transcribed here")

    service = Service(load)
    yield make_app(service, Models("digits"), Settings(api_key="secret"))
    service.close()


def status_of(app: ASGIApp, path: str, headers: Any = (), root: str = "") -> int:
    client = TestClient(app, root_path=root, follow_redirects=False, headers=dict(headers))
    return client.get(f"http://here{path}").status_code


def socket_status_of(app: ASGIApp, path: str, headers: Any = (), root: str = "") -> int:
    """101, or that of the refusal of a websocket."""
    client = TestClient(app, root_path=root)
    try:  # where it is taken, the app may still be at work when this client leaves
        with suppress(CancelledError), client.websocket_connect(path, headers=dict(headers)):
            pass
    except WebSocketDenialResponse as refused:
        return refused.status_code
    return 101


def raw_get(live: Live, target: str) -> tuple[int, str]:
    """Status and answer of a GET whose target is sent as it is, which no client would do."""
    head = f"GET {target} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    with connected(live, head.encode()) as connection:
        answer = rest(connection).decode(errors="replace")
    return int(answer.split(maxsplit=2)[1]), answer


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health", "/", "/v2/live"])
def test_websockets_are_refused(app: ASGIApp, path: str) -> None:
    assert [socket_status_of(app, path, headers) for headers in ({}, KEY)] == [403, 403]
    for kind in ("webtransport", "HTTP", ""):
        with pytest.raises(RuntimeError, match=f"ASGI scopes of type '{kind}' are not served"):
            asyncio.run(app({"type": kind, "path": path}, None, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("root", ["", "/speech", "/v1"])
def test_the_realtime_route_behind_a_path(app: ASGIApp, root: str) -> None:
    path = f"{root}/v1/realtime"
    assert [socket_status_of(app, path, headers, root) for headers in ({}, KEY)] == [401, 101]


async def accepted(websocket: WebSocket) -> None:
    await websocket.accept()


@pytest.mark.parametrize("path", ["/new", "/page/new", "/gradio_api/new", "/v1/new", "/healthy"])
def test_a_route_that_somebody_adds_is_closed(
    app: FastAPI, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = [Route(path, lambda _: PlainTextResponse("open")), WebSocketRoute(path, accepted)]
    monkeypatch.setattr(app.router, "routes", [*added, *app.router.routes])
    assert (status_of(app.router, path), socket_status_of(app.router, path)) == (200, 101)
    with_page = Access(app.router, Settings(api_key="secret"), signed_in=lambda _: False)
    for guarded in (app, with_page):
        assert (status_of(guarded, path), socket_status_of(guarded, path, KEY)) == (401, 403)


def test_without_a_page_every_path_but_health_needs_the_key(app: ASGIApp) -> None:
    for path in ("/", "/v1/models", "/v2/models", "/metrics", "/healthy", "/health/", "/docs", ""):
        assert status_of(app, path) == 401, path
    for path, status in (("/v2/models", 404), ("/v1/models", 200)):
        assert status_of(app, path, KEY) == status
    assert status_of(app, "/health") == status_of(app, "/speech/health", root="/speech") == 200


def test_root_path_is_cut_as_the_router_cuts_it(app: ASGIApp) -> None:
    with_page = Access(app, Settings(api_key="secret"), signed_in=lambda _: False)
    for guarded in (app, with_page):
        for root, path in (
            *(("/v", "/v1/models"), ("/m", "/metrics"), ("/v1", "/v1/v1/models")),
            *(("/speech", "/speech/v1/models"), ("/speech", "/v1/models"), ("/s/", "/s/v1/models")),
        ):
            assert status_of(guarded, path, root=root) in (401, 404), (root, path)


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
