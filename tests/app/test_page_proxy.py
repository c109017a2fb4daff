"""The page behind a proxy and a login, in a browser: both of its tabs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slimwhisper.api import SlimWhisper
from tests.support.browser import WAIT, chromium
from tests.support.live import Live, start, stop
from tests.support.proxy import proxy
from tests.support.spoken import EXPECTED, SAMPLES

pytestmark = pytest.mark.slow

SOUND = SAMPLES / "phone-number.wav"
TEXT = EXPECTED[SOUND.name]["text"]
PREFIX = "/speech"  # of the server behind the proxy


@pytest.fixture
def behind(model: SlimWhisper, folder: Path) -> Iterator[Live]:
    """The server behind it."""
    running = start(model, page=folder, cache="slim", root_path=PREFIX, login=("ann", "secret"))
    yield running
    stop(running)


def test_behind_a_proxy_and_a_login(behind: Live) -> None:
    sound = f"--use-file-for-fake-audio-capture={SOUND}%noloop"
    with proxy(behind.server.config.port, PREFIX) as url, chromium(sound) as browser:
        context = browser.new_context(permissions=["microphone"])
        context.set_default_timeout(WAIT)
        page = context.new_page()
        sockets: list[str] = []
        asked: list[str] = []
        page.on("websocket", lambda socket: sockets.append(socket.url))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}{PREFIX}/")
        page.get_by_label("Username").fill("ann")
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button", name="Login").click()
        page.set_input_files("#sw-files input[type=file]", str(SOUND))
        page.wait_for_selector("#sw-files .file")
        page.click("#sw-go")
        page.wait_for_selector(".sw-file[data-state=done]")
        with page.expect_download() as download:
            page.get_by_text("txt", exact=True).click()
        assert download.value.path().read_text().split() == TEXT.split()
        assert any("/page/audio/" in address for address in asked)
        page.get_by_role("tab", name="Live").click()
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_function("document.querySelector('.sw-said')?.textContent.includes('five')")
        with page.expect_download() as download:
            page.get_by_label("Save as txt").click()
        assert "five" in download.value.path().read_text()
        place = url.replace("http", "ws", 1) + PREFIX
        assert sockets == [f"{place}/v1/realtime?intent=transcription"]
        inside = (f"{url}{PREFIX}/", "blob:", "data:")
        assert [address for address in asked if not address.startswith(inside)] == []
        context.close()
