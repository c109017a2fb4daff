"""The page's login: a cookie for this site only, few tries, and a small form."""

from collections.abc import Iterator
from http.cookies import Morsel, SimpleCookie
from itertools import count
from typing import Any

import httpx
import pytest

from slimwhisper.app.page import gradio_guard
from slimwhisper.app.page.gradio_guard import MAX_TRIES, WITHIN, LoginAttempts
from slimwhisper.app.service.host import ServerSettings
from tests.support.live import Live
from tests.support.page_calls import call, clear_page, upload
from tests.support.paths import PHONE

RIGHT = {"username": "ann", "password": "s3cret"}
WRONG = {"username": "ann", "password": "wrong"}
SETTINGS = {"login": ("ann", "s3cret"), "api_key": "k", "root_path": "/speech"}
ADDRESSES = (f"127.0.0.{number}" for number in count(2))


@pytest.fixture
def client(page_server: Live) -> Iterator[httpx.Client]:
    """From an address of its own, without cookies."""
    transport = httpx.HTTPTransport(local_address=next(ADDRESSES))
    with httpx.Client(base_url=page_server.url, transport=transport, timeout=60) as found:
        yield found


def cookie(answer: httpx.Response) -> "Morsel[str]":
    assert answer.status_code == 200, answer.text
    (found,) = SimpleCookie(answer.headers["set-cookie"]).values()
    return found


def config(live: Live, cookie: "Morsel[str]", more: str = "") -> int:
    """The status of what needs a login. more: characters after the cookie's value."""
    headers = {"Cookie": f"{cookie.key}={cookie.value}{more}"}
    return httpx.get(f"{live.url}/config", headers=headers).status_code


def test_the_cookie_is_for_this_site(page_server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{page_server.url}/login"
    plain = cookie(httpx.post(url, data=RIGHT))
    assert plain["httponly"] and plain["samesite"] == "lax" and not plain["secure"]
    https = page_server.url.replace("http", "https", 1)
    # a proxy on this machine, and one that says nothing
    for headers in ({"X-Forwarded-Proto": "https"}, {"Origin": https}):
        secure = cookie(httpx.post(url, data=RIGHT, headers=headers))
        assert secure["httponly"] and secure["samesite"] == "lax" and secure["secure"]
    for found in (plain, secure):
        assert config(page_server, found, "x") == 401 and config(page_server, found) == 200
    left = httpx.get(f"{page_server.url}/logout", headers={"Cookie": f"{plain.key}={plain.value}"})
    assert plain.key in str(left.headers["set-cookie"]) and config(page_server, plain) == 401
    monkeypatch.setattr(gradio_guard, "MAX_USERS", 3)  # their number is bounded
    given = [cookie(httpx.post(url, data=RIGHT)) for _ in range(5)]
    assert [config(page_server, each) for each in given] == [401, 401, 200, 200, 200]


def test_who_is_logged_in_uses_the_page(page_server: Live, client: httpx.Client) -> None:
    page = client.get("/").text.replace(" ", "")
    assert '"auth_required":true' in page and f'"root":"{page_server.url}/speech"' in page
    for password, status, config in (("k", 400, 401), ("s3cret", 200, 200)):
        assert client.post("/login", data=RIGHT | {"password": password}).status_code == status
        assert client.get("/config").status_code == config
    assert call(client, upload(client, PHONE))[0] == "complete"
    clear_page(page_server)
    assert client.post("/page/live/key", json={}).json()["value"].startswith("ek_")
    assert client.get("/v1/models").status_code == 401, "the API needs its own"
    left = client.get("/logout", headers={"X-Forwarded-Host": "a.example"}).headers["location"]
    assert left == "http://a.example/speech", "behind a proxy that does not tell its prefix"


def test_whose_password_it_is() -> None:
    """The login's; if there is none, the key."""
    for settings, user, right, wrong in (
        (ServerSettings(api_key="secret"), "anybody", "secret", "Secret"),
        (ServerSettings(api_key="secret", login=("ann", "pass")), "ann", "pass", "secret"),
    ):
        check = gradio_guard.login_check(settings)
        assert check is not None and check(user, right) and not check(user, wrong)
        message = gradio_guard.login_message(settings)
        assert ("key as the password" in message) == (user == "anybody")


def test_few_tries(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right ones are not counted: users behind a proxy may all have its address."""
    for _ in range(MAX_TRIES + 5):
        assert client.post("/login", data=RIGHT).status_code == 200
    tried = [client.post("/login", data=WRONG).status_code for _ in range(MAX_TRIES)]
    assert tried == [400] * MAX_TRIES
    for path, data in (("/login", WRONG), ("/login/", RIGHT), ("/login", RIGHT)):
        answer = client.post(path, data=data)
        assert answer.status_code == 429 and "try again in a minute" in answer.text
        assert 1 <= int(answer.headers["Retry-After"]) <= 61
    monkeypatch.setattr(gradio_guard, "MAX_ADDRESSES", 3)
    now = [5.0]
    tries = LoginAttempts(lambda: now[0])
    for _ in range(MAX_TRIES):
        assert tries.wait("a") == 0
        tries.fail("a")
    assert tries.wait("a") == WITHIN and tries.wait("b") == 0
    now[0] += WITHIN - 1
    assert tries.wait("a") == 1
    now[0] += 1
    assert tries.wait("a") == 0
    for address in "abcde":
        tries.fail(address)
    assert list(tries._by_address) == ["c", "d", "e"]


def test_a_small_form(client: httpx.Client) -> None:
    long: Any = {"username": "a" * 2000, "password": "b"}
    wrong: list[dict[str, Any]] = [
        *({"data": long}, {"data": long, "files": {"x": (None, b"")}}),
        *({"files": {"username": ("a.wav", b"a")}}, {"data": {f"a{i}": "" for i in range(20)}}),
        *({"content": b"x"}, {"json": RIGHT}, {"data": {"username": "\ud7ff", "password": "\0"}}),
    ]
    for options in wrong:
        answer = client.post("/login", **options)
        assert answer.status_code == 400, (options, answer.text)
    multipart = client.post("/login", files={name: (None, text) for name, text in RIGHT.items()})
    assert multipart.status_code == 200
