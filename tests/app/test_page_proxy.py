"""The page behind a proxy and a login, in a browser: both of its tabs."""

from contextlib import closing
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.browser import WAIT
from tests.support.live import Live
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


def test_behind_a_proxy_and_a_login(browser: Any, page_server: Live) -> None:
    config = page_server.server.config
    config.loaded_app = behind_a_proxy(config.loaded_app)
    url, sockets, asked = f"{page_server.url}{PREFIX}/", list[str](), list[str]()
    with closing(browser.new_context(permissions=["microphone"])) as context:
        context.set_default_timeout(WAIT)
        page = context.new_page()
        page.on("websocket", lambda socket: sockets.append(socket.url))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        for password in ("wrong", "secret"):
            page.get_by_label("Username").fill("ann")
            page.get_by_label("Password").fill(password)
            page.get_by_role("button", name="Login").click()
            if password == "wrong":
                page.wait_for_selector("text=Incorrect Credentials")
        page.set_input_files("#sw-files input[type=file]", str(PHONE))
        page.wait_for_selector("#sw-files .file")
        (cookie,) = context.cookies()
        assert cookie["sameSite"] == "Lax" and cookie["httpOnly"] and not cookie["secure"]
        page.click("#sw-go")
        page.wait_for_selector(".sw-file[data-state=done]")
        with page.expect_download() as download:
            page.get_by_text("txt", exact=True).click()
        said = download.value.path().read_text().split()
        assert said == EXPECTED[PHONE.name]["text"].split()
        assert any("/page/audio/" in address for address in asked)
        page.get_by_role("tab", name="Live").click()
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_function(
            "document.querySelector('.sw-committed')?.textContent.includes('five')"
        )
        with page.expect_download() as download:
            page.get_by_label("Save as txt").click()
        assert "five" in download.value.path().read_text()
        assert sockets == [f"{url.replace('http', 'ws', 1)}v1/realtime?intent=transcription"]
        assert [each for each in asked if not each.startswith((url, "blob:", "data:"))] == []
