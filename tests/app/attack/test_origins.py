"""Who gets in: keys, logins, pages of other sites, other hosts, and other spellings of a path."""

import asyncio
import base64
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from slimwhisper.api import SlimWhisper
from slimwhisper.app.api.access import HEADERS, Access, AllowedOrigins, network_of
from slimwhisper.app.api.errors import APIError
from slimwhisper.app.server import make_app
from slimwhisper.app.service.host import Models, ServerSettings
from slimwhisper.app.service.service import Service
from tests.support.live import Begin, Live, connected, rest
from tests.support.paths import PHONE

FILES = {"file": PHONE.read_bytes()}
EVIL = {"Origin": "http://evil.example"}
HOST = "127.0.0.1:7860"
SPEECH = "/v1/audio/transcriptions"
# what a browser or a program says of itself
OWN: tuple[dict[str, str], ...] = (
    *({}, {"Origin": f"http://{HOST}"}),
    *({"Sec-Fetch-Site": site} for site in ("same-origin", "none")),
)
FOREIGN = (
    *(EVIL, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": f"http://u@{HOST}"}),
    *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")),
    {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
)
ALLOWED = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
LOGIN = base64.b64encode(b"ann:pass").decode()
KEYS = ("Bearer s3cret", "BEARER s3cret", "Token s3cret", f"Basic {LOGIN}", f"basic {LOGIN}")
WRONG = ("", "Bearer wrong", f"Bearer {LOGIN}", "Tokens s3cret", f"Basic {LOGIN}x")
POSTS = [("POST", path) for path in (SPEECH, SPEECH[3:], "/inference", "/asr", "/v1/listen")]
API = (("GET", "/v1/models"), ("GET", "/metrics"), *POSTS)
OPEN_PAGE = (("GET", "/"), ("POST", "/login"), ("GET", "/page/result/x.txt"))
PAGE = (
    *(("GET", "/config"), ("GET", "/gradio_api/heartbeat/x"), ("POST", "/gradio_api/upload")),
    *(("POST", "/gradio_api/queue/join"), ("POST", "/page/live/key"), ("POST", "/page/edit/x")),
)


async def status(app: ASGIApp, method: str, path: str, **headers: str) -> int:
    """What an app answers to a request without a body."""
    sent: list[Message] = []
    lines = {"Host": HOST, **headers}.items()
    scope: Scope = {"type": "http", "method": method, "path": path, "query_string": b""}
    scope["headers"] = [(name.lower().encode(), value.encode()) for name, value in lines if value]

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


async def anything(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("reached")(scope, receive, send)


def test_every_caller_at_every_door() -> None:
    """Keys, sites and cookies in all combinations, against the rule as it is written down here."""
    callers = product((True, False), (*OWN, *FOREIGN, ALLOWED), (*KEYS, *WRONG), ("", "in=1"))

    async def check() -> None:
        for keyed, said, auth, cookie in callers:
            secrets: Any = {"api_key": "s3cret", "login": ("ann", "pass")} if keyed else {}
            settings = ServerSettings(allow_origins=("https://app.example",), **secrets)
            app = Access(
                anything, settings, signed_in=lambda r, k=keyed: not k or "in" in r.cookies
            )
            of_other_site, bearer = said not in OWN, auth.startswith(("Bearer", "BEARER", "Token "))
            for door in (*API, *OPEN_PAGE, *PAGE):
                harmless = door[0] == "GET" or said == ALLOWED
                if of_other_site and not bearer and not (door in API and harmless):
                    expected = 403
                elif keyed and (not cookie if door in PAGE else door in API and auth not in KEYS):
                    expected = 401
                else:
                    expected = 200
                found = await status(app, *door, **said, Authorization=auth, Cookie=cookie)
                assert found == expected, (keyed, said, auth, cookie, door)

    asyncio.run(check())


def test_other_sites_get_no_answer_that_they_could_read(keyless: Live) -> None:
    for said in FOREIGN[:2]:
        asked = {**EVIL, **said, "Access-Control-Request-Method": "POST"}
        for method, path in (*API, *OPEN_PAGE, *PAGE):
            answer = httpx.request(method, keyless.url + path, headers=said)
            assert not [name for name in answer.headers if name.startswith("access-control-allow")]
            answer = httpx.options(keyless.url + path, headers=asked)
            assert answer.status_code == 400, path
            assert "access-control-allow-origin" not in answer.headers
    for path, kind, expected in (
        *(("/", "document", 200), ("/", "iframe", 403), ("/", "empty", 403)),
        *(("/page/result/x.txt", "document", 404), ("/config", "document", 403)),
    ):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        answer = httpx.get(keyless.url + path, headers={**headers, "Sec-Fetch-Dest": kind})
        assert answer.status_code == expected, (path, kind)


def test_a_site_that_is_allowed_uses_the_api_and_not_the_page(keyless: Live) -> None:
    asked = {**ALLOWED, "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization,x-stainless-lang"
    before = httpx.options(f"{keyless.url}{SPEECH}", headers=asked)
    answer = keyless.post(files=FILES, headers=ALLOWED)
    for found in (before, answer):
        assert found.status_code == 200
        assert found.headers["access-control-allow-origin"] == ALLOWED["Origin"]
    assert "x-stainless-lang" in before.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in before.headers
    other = {"Origin": "https://app.example.evil.example"}
    assert keyless.post(files=FILES, headers=other).status_code == 403


def test_every_site_with_the_key(begin: Begin) -> None:
    server, site = begin(api_key="s3cret", allow_origins=("*",)), {"Origin": "app://obsidian.md"}
    asked = {**site, "Access-Control-Request-Method": "POST"}
    assert httpx.options(f"{server.url}{SPEECH}", headers=asked).status_code == 200
    for auth, expected in (("Bearer s3cret", 200), ("Bearer x", 401), (f"Basic {LOGIN}", 403)):
        answer = server.post(files=FILES, headers={**site, "Authorization": auth})
        assert answer.status_code == expected, auth
        assert answer.headers["access-control-allow-origin"] == "*"


def test_what_a_server_asks_for(begin: Begin, keyed: Live) -> None:
    for server, challenge in ((keyed, "Bearer"), (begin(login=("ann", "pass")), "Basic")):
        answer = httpx.get(f"{server.url}/v1/models")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, challenge)
        assert challenge in answer.text.title(), "what it asks for"
        assert httpx.get(f"{server.url}/health").status_code == 200
    for key, expected in (("s3cret", 200), ("s3cre", 401)):  # as Azure's clients send it
        answer = httpx.head(f"{keyed.url}/v1/models", headers={"api-key": key})
        assert answer.status_code == expected


def test_other_names_for_this_machine_are_refused(keyless: Live) -> None:
    """A site may give its own name the address 127.0.0.1."""
    headers = {"Host": "evil.example:7860", "Origin": "http://evil.example:7860"}
    headers["Sec-Fetch-Site"] = "same-origin"
    for method, path in (*API, *OPEN_PAGE, *PAGE):
        answer = httpx.request(method, keyless.url + path, headers=headers)
        assert answer.status_code == 403 and "--allow_host" in answer.text, path
    assert httpx.get(f"{keyless.url}/health", headers=headers).status_code == 200
    with pytest.raises(InvalidStatus, match="403"):
        connect("ws://evil.example/v1/realtime", sock=connected(keyless))


def test_no_site_shows_the_page_and_no_browser_keeps_a_text(keyless: Live, keyed: Live) -> None:
    paths = ("/", "/health", "/config", "/v1/models", "/x")
    answers = [httpx.get(live.url + path) for live in (keyless, keyed) for path in paths]
    answers += [keyless.post(files=FILES, data={"stream": stream}) for stream in ("true", "false")]
    answers += [keyless.post(), keyed.post(files=FILES)]
    assert any(answer.url.path == SPEECH and answer.is_success for answer in answers)
    for answer in answers:
        for name, value in HEADERS:
            assert answer.headers.get_list(name.decode()) == [value.decode()], answer.url
        kept = answer.url.path == "/"
        assert answer.headers.get("cache-control") == (None if kept else "no-store"), answer.url
    shown = httpx.get(f"{keyless.url}/page/assets/page.css")
    assert shown.headers["cache-control"] == "no-cache" and shown.headers["x-frame-options"]


def test_which_hosts_and_origins_are_known() -> None:
    a, known = ServerSettings(allow_hosts=("a.example",)), ServerSettings(host="0.0.0.0")
    default, both = ServerSettings(), replace(known, allow_hosts=a.allow_hosts)
    for settings, host, good in (
        *((default, host, False) for host in ("speech.example", "", "[::1", f"evil@{HOST}")),
        *((default, host, False) for host in (f"{HOST}:evil", "127.0.0.1/evil.example")),
        *((default, host, True) for host in ("LOCALHOST:7860", "[::1]:7860", "127.8.8.8:1")),
        *((ServerSettings(api_key="k"), "b.example", True), (known, "b.example", True)),
        *((a, "A.Example:443", True), (a, "b.example", False)),
        *((both, "b.example", False), (both, "localhost", True)),
    ):
        scope: Scope = {"type": "http", "headers": [(b"host", host.encode())]}
        try:
            AllowedOrigins(settings).check_host(scope)
        except APIError as error:
            assert not good and "--allow_host" in str(error), host
        else:
            assert good, host
    sites = AllowedOrigins(
        ServerSettings(allow_hosts=("proxy.example",), allow_origins=("https://app.example",))
    )
    for origin, host, foreign, calls in (
        *(("https://a.example", f"a.example{port}", False, True) for port in ("", ":443")),
        ("http://a.example:80", "a.example", False, True),
        ("http://a.example:8080", "a.example", True, False),
        ("https://proxy.example", "10.0.0.1:7860", False, True),
        ("https://app.example", "10.0.0.1:7860", True, True),
        ("http://app.example", "10.0.0.1:7860", True, False),
        *(("null", "", True, False), ("http://[", "a.example", True, False)),
    ):
        headers = [(b"host", host.encode()), (b"origin", origin.encode())]
        scope = {"type": "http", "headers": headers}
        assert (sites.is_foreign(scope), sites.may_call(scope)) == (foreign, calls), origin
    for host, network in (
        *(("192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64")),
        *(("::1", "::/64"), ("/a/socket", "/a/socket")),
    ):
        assert network_of(host) == network


# -- paths ---------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[FastAPI]:
    """The app of a server with a key, without a page; no model is loaded."""

    def load(_: object) -> SlimWhisper:
        raise AssertionError("nothing is transcribed here")

    service = Service(load)
    yield make_app(service, Models("digits"), ServerSettings(api_key="secret"))
    service.close()


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


def test_what_is_closed(app: FastAPI) -> None:
    """Every path but /health, every route that somebody adds, and every other kind of scope."""
    for root in ("", "/speech", "/v1"):
        path = f"{root}/v1/realtime"
        assert [opened(app, path, key, root) for key in ("", "wrong", "secret")] == [401, 401, 101]
    for path in ("/", "/v1/models", "/v2/models", "/metrics", "/healthy", "/health/", "/docs"):
        assert got(app, path) == 401, path
    assert got(app, "/v2/models", "secret") == 404 and got(app, "/v1/models", "secret") == 200
    assert got(app, "/health") == got(app, "/speech/health", root="/speech") == 200
    unchecked: Any = app
    with_page = Access(app, ServerSettings(api_key="secret"), signed_in=lambda _: False)
    for root, path in (
        *(("/v", "/v1/models"), ("/m", "/metrics"), ("/v1", "/v1/v1/models")),
        *(("/speech", "/speech/v1/models"), ("/speech", "/v1/models"), ("/s/", "/s/v1/models")),
    ):
        assert {got(guarded, path, root=root) for guarded in (app, with_page)} <= {401, 404}
    for kind in ("webtransport", "HTTP", ""):
        with pytest.raises(RuntimeError, match=f"type '{kind}' are not served"):
            asyncio.run(unchecked({"type": kind, "path": "/v1/models"}, None, None))
    for path in ("/new", "/page/new", "/gradio_api/new", "/v1/new"):
        app.router.routes.insert(0, Route(path, lambda _: PlainTextResponse("open")))
        app.router.routes.insert(0, WebSocketRoute(path, lambda websocket: websocket.accept()))
        assert (got(app.router, path), opened(app.router, path)) == (200, 101)
        for guarded in (app, Access(app.router, ServerSettings(api_key="secret"), signed_in=bool)):
            assert got(guarded, path) == 401
            assert opened(guarded, path, "secret") == opened(guarded, path) == 403


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


@pytest.mark.parametrize(("page", "root"), [(False, "/speech"), (True, "/v"), (True, "")])
def test_no_spelling_of_a_path_goes_round_the_key(
    begin: Begin, folder: Path, keyed: Live, page: bool, root: str
) -> None:
    live = keyed
    if root:
        live = begin(page=folder if page else None, api_key="secret", root_path=root)
    for target in (*TRICKS, *(f"{root}{trick}" for trick in TRICKS if root)):
        found, answered = raw_get(live, target)
        assert found in (307, 400, 401, 404), (target, answered)
        for text in ('"owned_by"', "slimwhisper_slots", "not available here"):
            assert text not in answered, target
    closed = ("/v1/models", "//v1/models", "/V1/models", "/%76%31/models", "/metrics/")
    for target in (*closed, *FETCHED):
        assert raw_get(live, target)[0] == 401, target
    assert raw_get(live, "/health")[0] == 200


# -- the log -------------------------------------------------------------------------------------

SECRETS = (
    *("/page/audio/t0ken?key=s3cret", "/page/result/t0ken.srt", "//page/result//t0ken"),
    *("/page/edit/t0ken", "/gradio_api/file=/tmp/t0ken/a.wav", "/v1/models?api_key=s3cret"),
    *("/gradio_api/queue/data?session_hash=s3cret", "/gradio_api/call/transcribe/t0ken"),
)


def test_the_log_opens_nothing(
    keyless: Live, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("uvicorn", "uvicorn.access"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    for path in SECRETS:
        assert httpx.get(keyless.url + path).status_code in (200, 401, 403, 404, 405)
    with connect(f"{keyless.url.replace('http', 'ws')}/v1/realtime?model=digits&key=s3cret"):
        pass
    text = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("uvicorn."))
    assert "t0ken" not in text and "s3cret" not in text
    for shown in ("page/audio/...?...", "page/edit/...", "v1/models?...", "gradio_api/file/..."):
        assert f"GET /{shown} HTTP" in text
    assert "GET /gradio_api/queue/...?... HTTP" in text and "/v1/realtime?..." in text
