"""Access to the real app: without the key, no path and no kind of connection reaches the API."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.types import ASGIApp

from slimwhisper.api import SlimWhisper
from slimwhisper.app.api.access import Access
from slimwhisper.app.server import make_app
from slimwhisper.app.service.models import Models
from slimwhisper.app.service.service import Service
from slimwhisper.app.service.settings import ServerSettings
from tests.support.live import Begin, Live, connected, rest


@pytest.fixture
def app() -> Iterator[FastAPI]:
    """The app of a server with a key, without a page; no model is loaded."""

    def load(_: object) -> SlimWhisper:
        raise AssertionError("nothing is transcribed here")

    service = Service(load)
    yield make_app(service, Models("digits"), ServerSettings(api_key="secret"))
    service.close()


def as_with_a_page(app: ASGIApp) -> Access:
    """Where nobody is logged in."""
    return Access(app, ServerSettings(api_key="secret"), signed_in=lambda _: False)


def opened(app: ASGIApp, path: str, key: str = "", root: str = "") -> int:
    """The status of a websocket: 101 if it is accepted."""
    try:
        with client_of(app, key, root).websocket_connect(path):
            return 101
    except WebSocketDenialResponse as refused:
        return refused.status_code
    except CancelledError:  # by the client, which waits for no end
        return 101


def got(app: ASGIApp, path: str, key: str = "", root: str = "") -> int:
    """The status of a GET."""
    return client_of(app, key, root).get(path).status_code


def client_of(app: ASGIApp, key: str, root: str) -> TestClient:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return TestClient(app, root_path=root, headers=headers)


@pytest.mark.parametrize("root", ["", "/speech", "/v1"])
def test_the_realtime_route_behind_a_path(app: ASGIApp, root: str) -> None:
    path = f"{root}/v1/realtime"
    assert [opened(app, path, key, root) for key in ("", "wrong", "secret")] == [401, 401, 101]


def test_unknown_scopes_are_an_error(app: Any) -> None:
    for kind in ("webtransport", "HTTP", ""):
        with pytest.raises(RuntimeError, match=f"ASGI scopes of type '{kind}' are not served"):
            asyncio.run(app({"type": kind, "path": "/v1/models"}, None, None))


@pytest.mark.parametrize("path", ["/new", "/page/new", "/gradio_api/new", "/v1/new", "/healthy"])
def test_a_route_that_somebody_adds_is_closed(app: FastAPI, path: str) -> None:
    app.router.routes.insert(0, Route(path, lambda _: PlainTextResponse("open")))
    app.router.routes.insert(0, WebSocketRoute(path, lambda websocket: websocket.accept()))
    assert (got(app.router, path), opened(app.router, path)) == (200, 101)
    for guarded in (app, as_with_a_page(app.router)):
        assert got(guarded, path) == 401
        assert opened(guarded, path, "secret") == opened(guarded, path) == 403


def test_every_path_but_health_needs_the_key(app: ASGIApp) -> None:
    for path in ("/", "/v1/models", "/v2/models", "/metrics", "/healthy", "/health/", "/docs"):
        assert got(app, path) == 401, path
    assert got(app, "/v2/models", "secret") == 404 and got(app, "/v1/models", "secret") == 200
    assert got(app, "/health") == got(app, "/speech/health", root="/speech") == 200


def test_root_path_is_cut_as_the_router_cuts_it(app: ASGIApp) -> None:
    for root, path in (
        *(("/v", "/v1/models"), ("/m", "/metrics"), ("/v1", "/v1/v1/models")),
        *(("/speech", "/speech/v1/models"), ("/speech", "/v1/models"), ("/s/", "/s/v1/models")),
    ):
        for guarded in (app, as_with_a_page(app)):
            assert got(guarded, path, root=root) in (401, 404), (root, path)


TRICKS = (
    *("/v1", "/v1/", "/v1/models/", "/v1/models/digits", "//v1/models", "/v1//models", "///v1"),
    *("/V1/models", "/v1/Models", "/%76%31/models", "/v1%2Fmodels", "/%2Fv1/models"),
    *("/./v1/models", "/page/../v1/models", "/v1/models/../../health", "/health/../v1/models"),
    *("/v1/../health", "/v1?/health", "/v1/models?x=/health", "/%2576%2531/models"),
    *("v1/models", "1/models", "http://here/v1/models", "/metrics/", "//metrics", "/METRICS"),
    *("/health/%2e%2e/v1/models", "/health%2F..%2Fv1/models", "/health//v1/models"),
    *("/v1;a/models", "/v1%00/models", "\\v1\\models"),
)
FETCHED = (  # by Gradio, if it is asked
    *("/gradio_api/proxy=http://127.0.0.1:1/", "radio_api/proxy=http://127.0.0.1:1/"),
    *("/gradio_api/proxy%3Dhttp://127.0.0.1:1/", "//gradio_api/proxy=http://127.0.0.1:1/"),
    *("/Gradio_api/file=HTTP://127.0.0.1:1/", "/gradio_api/file%3Dhttp://127.0.0.1:1/"),
)


def raw_get(live: Live, target: str) -> tuple[int, str]:
    """Status and answer of a GET whose target is sent as it is, which no client would do."""
    head = f"GET {target} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    with connected(live, head.encode()) as connection:
        answered = rest(connection).decode(errors="replace")
    return int(answered.split(maxsplit=2)[1]), answered


@pytest.mark.parametrize(
    ("page", "root_path"), [(False, ""), (False, "/speech"), (True, "/v"), (True, "/g")]
)
def test_no_spelling_of_a_path_goes_round_the_key(
    begin: Begin, folder: Path, page: bool, root_path: str
) -> None:
    live = begin(page=folder if page else None, api_key="secret", root_path=root_path)
    for target in (*TRICKS, *(f"{root_path}{trick}" for trick in TRICKS)):
        status, answered = raw_get(live, target)
        assert status in (307, 400, 401, 404), (target, answered)
        assert '"owned_by"' not in answered and "slimwhisper_slots" not in answered, target
        assert "not available here" not in answered, target
    closed = ("/v1/models", "//v1/models", "/V1/models", "/%76%31/models", "/metrics/")
    for target in (*closed, *FETCHED):
        assert raw_get(live, target)[0] == 401, target
    assert raw_get(live, "/health")[0] == 200
