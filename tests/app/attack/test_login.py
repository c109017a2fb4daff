"""The page's login: a cookie for this site only, few tries, and a small form."""

from http.cookies import Morsel, SimpleCookie

import httpx
import pytest

from slimwhisper.app.page import gradio_internals, login
from slimwhisper.app.page.login import MAX_TRIES, WITHIN, LoginAttempts
from tests.support.live import Begin, Live

RIGHT = {"username": "ann", "password": "s3cret"}
WRONG = {"username": "ann", "password": "wrong"}


@pytest.fixture
def live(begin_page: Begin) -> Live:
    return begin_page(login=("ann", "s3cret"))


def post(live: Live, data: dict[str, str], **headers: str) -> httpx.Response:
    return httpx.post(f"{live.url}/login", data=data, headers=headers)


def cookie(answer: httpx.Response) -> "Morsel[str]":
    assert answer.status_code == 200, answer.text
    (found,) = SimpleCookie(answer.headers["set-cookie"]).values()
    return found


def config(live: Live, cookie: "Morsel[str]", more: str = "") -> int:
    """The status of what needs a login. more: characters after the cookie's value."""
    headers = {"Cookie": f"{cookie.key}={cookie.value}{more}"}
    return httpx.get(f"{live.url}/config", headers=headers).status_code


def test_the_cookie_is_for_this_site(live: Live) -> None:
    plain = cookie(post(live, RIGHT))
    assert plain["httponly"] and plain["samesite"] == "lax" and not plain["secure"]
    ways = ({"X-Forwarded-Proto": "https"}, {"Origin": f"https{live.url.removeprefix('http')}"})
    for headers in ways:  # a proxy on this machine, and one that says nothing
        secure = cookie(post(live, RIGHT, **headers))
        assert secure["httponly"] and secure["samesite"] == "lax" and secure["secure"]
    for found in (plain, secure):
        assert config(live, found, "x") == 401 and config(live, found) == 200
    headers = {"Cookie": f"{plain.key}={plain.value}"}
    left = httpx.get(f"{live.url}/logout", headers=headers)
    assert plain.key in str(left.headers["set-cookie"]) and config(live, plain) == 401


def test_few_tries(live: Live) -> None:
    """Right ones are not counted: users behind a proxy may all have its address."""
    with httpx.Client(base_url=live.url) as client:
        for _ in range(MAX_TRIES + 5):
            assert client.post("/login", data=RIGHT).status_code == 200
        assert [client.post("/login", data=WRONG).status_code for _ in range(MAX_TRIES)] == [
            400
        ] * 10
        for path, data in (("/login", WRONG), ("/login/", RIGHT), ("/login", RIGHT)):
            answer = client.post(path, data=data)
            assert answer.status_code == 429 and "try again in a minute" in answer.text
            assert 1 <= int(answer.headers["Retry-After"]) <= 61


def test_tries_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "MAX_ADDRESSES", 3)
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


def test_the_number_of_logins_is_bounded(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradio_internals, "MAX_USERS", 3)
    given = [cookie(post(live, RIGHT)) for _ in range(5)]
    assert [config(live, each) for each in given] == [401, 401, 200, 200, 200]


@pytest.mark.slow
def test_a_small_form(live: Live) -> None:
    url = f"{live.url}/login"
    long = {"username": "a" * 2000, "password": "b"}
    file = {"username": ("a.wav", b"a")}
    for options in (
        {"data": long},
        {"data": long, "files": {"x": (None, b"")}},
        {"files": file},
        {"data": {f"a{i}": "" for i in range(20)}},
        {"content": b"x"},
        {"json": RIGHT},
        {"data": {"username": "\ud7ff", "password": "\0"}},
    ):
        answer = httpx.post(url, **options)  # type: ignore[arg-type]
        assert answer.status_code == 400, (options, answer.text)
    multipart = httpx.post(url, files={name: (None, text) for name, text in RIGHT.items()})
    assert multipart.status_code == 200
