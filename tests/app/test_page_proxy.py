"""The page behind a proxy and a login, in a browser: both of its tabs."""

from contextlib import closing
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.live import Live
from tests.support.live_tab import Tab
from tests.support.paths import PHONE
from tests.support.spoken import EXPECTED

pytestmark = pytest.mark.slow

PREFIX = "/speech"
FLAGS = (f"--use-file-for-fake-audio-capture={PHONE}%noloop",)
SETTINGS = {"root_path": PREFIX, "login": ("ann", "secret")}


def behind_a_proxy(app: ASGIApp) -> ASGIApp:
    """What is asked for has lost its prefix on the way; uvicorn puts it before every path."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = scope["path"].removeprefix(PREFIX)
        await app(scope, receive, send)

    return served


class LoggedIn(Tab):
    """The Live tab, after a wrong password and the right one."""

    def arrive(self, address: str) -> None:
        self.page.goto(address)
        for password in ("wrong", "secret"):
            self.page.get_by_label("Username").fill("ann")
            self.page.get_by_label("Password").fill(password)
            self.page.get_by_role("button", name="Login").click()
            if password == "wrong":
                self.page.wait_for_selector("text=Incorrect Credentials")


def test_behind_a_proxy_and_a_login(browser: Any, page_server: Live) -> None:
    config = page_server.server.config
    config.loaded_app = behind_a_proxy(config.loaded_app)
    url, sockets, asked = f"{page_server.url}{PREFIX}/", list[str](), list[str]()
    with closing(LoggedIn(browser, url)) as tab:
        tab.page.on("websocket", lambda socket: sockets.append(socket.url))
        tab.page.on("request", lambda request: asked.append(request.url))
        (cookie,) = tab.context.cookies()
        assert cookie["sameSite"] == "Lax" and cookie["httpOnly"] and not cookie["secure"]
        tab.begin()
        tab.until("document.querySelector('.sw-committed')?.textContent.includes('five')")
        assert "five" in tab.saved("txt")
        assert sockets == [f"{url.replace('http', 'ws', 1)}v1/realtime?intent=transcription"]
        tab.page.get_by_role("tab", name="Files").click()
        said = tab.downloaded(tab.transcribed(PHONE).get_by_text("txt", exact=True))
        assert said.read_text().split() == EXPECTED[PHONE.name]["text"].split()
        assert any("/page/audio/" in address for address in asked) and tab.strange == []
