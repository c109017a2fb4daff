"""A headless Chromium, and the page in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WAIT = 90_000  # milliseconds for anything that happens on a busy machine
CONTRAST = Path(__file__).with_name("contrast.js").read_text()
FAKES = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@contextmanager
def chromium(*flags: str) -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *FAKES, *flags])
        yield browser
        browser.close()


class BrowserPage:
    """The page as a user sees it; counts what it should not do."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        self.url = url
        self.context = browser.new_context(**context)
        self.context.set_default_timeout(WAIT)
        self.strange: list[str] = []
        self.page = self.context.new_page()
        self.page.on("request", self._check_request)
        self.page.on("pageerror", lambda error: self.strange.append(str(error)))
        self.arrive(url)
        self.page.wait_for_selector("#sw-go")

    def arrive(self, address: str) -> None:
        self.page.goto(address)

    def _check_request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "blob:", "data:")):
            self.strange.append(request.url)

    def close(self) -> None:
        """Close it as its user would."""
        self.context.close()

    def asks(self) -> bool:
        """Whether the browser would ask before it leaves the page."""
        return not self.page.evaluate("dispatchEvent(new Event('beforeunload', {cancelable: 1}))")

    def go(self, *files: Any) -> None:
        """Add files, or {"name", "mimeType", "buffer"}, and transcribe them."""
        paths = [str(f) if isinstance(f, Path) else f for f in files]
        self.page.set_input_files("#sw-files input[type=file]", paths)
        self.page.wait_for_function(
            "n => document.querySelectorAll('#sw-files .file').length === n", arg=len(files)
        )
        self.page.click("#sw-go")

    def ended(self, count: int) -> None:
        """Wait until all have ended."""
        self.page.wait_for_function(
            "n => document.querySelectorAll("
            "'.sw-file:is([data-state=done], [data-state=failed], [data-state=stopped])'"
            ").length === n",
            arg=count,
        )

    def transcribed(self, *files: Any) -> Any:
        """What is shown of the first file once all have ended."""
        self.go(*files)
        self.ended(len(files))
        return self.page.locator(".sw-file").first

    def downloaded(self, link: Any) -> Path:
        """The file that a click brings."""
        with self.page.expect_download() as download:
            link.click()
        return Path(download.value.path())

    def playing(self, least: float) -> None:
        """Wait until the first file is heard, from some second on."""
        self.page.wait_for_function(
            "least => { const a = document.querySelector('.sw-file audio');"
            " return !a.paused && a.currentTime >= least; }",
            arg=least,
        )

    def assert_readable(self, *selectors: str) -> None:
        """Each text's contrast with what is behind it (WCAG) is 4.5 at least."""
        for theme in ("light", "dark"):
            self.page.evaluate(
                "dark => document.body.classList.toggle('dark', dark)", theme == "dark"
            )
            for selector in selectors:
                assert self.page.evaluate(CONTRAST, selector) > 4.5, (theme, selector)
