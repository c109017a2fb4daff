"""The server's fixtures: one without a key, which most tests share, and those of a test's own."""

import inspect
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

with patch.object(inspect, "getfile", side_effect=OSError):
    import gradio  # noqa: F401  # it would compare its files with its types', for two seconds

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.app.page.files import page_folder
from slimwhisper.app.service.jobs import Limits, ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.audio_formats import readers
from slimwhisper.audio_formats.readers import ReaderProcess
from slimwhisper.errors import CheckpointError
from tests.support.live import Begin, Live, served, start, stop
from tests.support.page_calls import clear_page


@pytest.fixture(scope="package", autouse=True)
def no_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All servers here speak plain HTTP; reading the certificates takes httpx 20 ms a request."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("SSL_CERT_FILE", raising=False)
        patched.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        yield


@pytest.fixture(scope="package", autouse=True)
def kept_readers() -> Iterator[None]:
    """Processes read for one server after another, as for a server's jobs: each takes half a second
    to start.
    """
    idle, kind, end = list[ReaderProcess](), ReaderProcess, ReaderProcess.end

    def keep(reader: ReaderProcess) -> None:
        if reader.busy or reader.poll() is not None:
            end(reader)
        else:
            idle.append(reader)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(readers, "ReaderProcess", lambda: idle.pop() if idle else kind())
        patched.setattr(kind, "end", keep)
        yield
    for reader in idle:
        reader.end()


@pytest.fixture(scope="package")
def model() -> SlimWhisper:
    return slimwhisper.load_model("digits")


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where pages keep their files; all temporary files are beside it, and no one else's."""
    place = str(tmp_path_factory.mktemp("server"))
    with patch.object(tempfile, "tempdir", place), page_folder() as found:
        yield found


@pytest.fixture(scope="package")
def keyless(model: SlimWhisper, folder: Path) -> Iterator[Live]:
    """A server with a page, without a key, on this machine's own address."""
    origins = ("https://app.example",)
    yield from served(model, Limits(seconds=600), page=folder, cache="slim", allow_origins=origins)


@pytest.fixture
def live(keyless: Live) -> Live:
    """A server."""
    return keyless


@pytest.fixture
def make(model: SlimWhisper, request: pytest.FixtureRequest) -> Callable[..., Service]:
    """Begins services, whose models are "digits" and "other"; they are closed in the end."""

    def load(choice: ModelChoice) -> SlimWhisper:
        if choice.name not in ("digits", "other"):
            raise CheckpointError(f"{choice.name}: no such model")
        return model

    def service(**options: Any) -> Service:
        made = Service(load, **{"batch_size": 4, **options})
        request.addfinalizer(made.close)
        return made

    return service


@pytest.fixture
def begin(model: SlimWhisper, request: pytest.FixtureRequest) -> Begin:
    """Starts servers; they stop with the test."""

    def begins(**settings: Any) -> Live:
        running = start(model, **settings)
        request.addfinalizer(lambda: stop(running))
        return running

    return begins


@pytest.fixture(scope="module")
def page_server(model: SlimWhisper, folder: Path, request: pytest.FixtureRequest) -> Iterator[Live]:
    """A server with a page and the module's SETTINGS; without any, the one that is shared."""
    if settings := getattr(request.module, "SETTINGS", None):
        yield from served(model, page=folder, cache="slim", **settings)
    else:
        yield request.getfixturevalue("keyless")


@pytest.fixture
def client(page_server: Live) -> Iterator[httpx.Client]:
    """A client of a server with a page, which keeps nothing of it."""
    with httpx.Client(base_url=page_server.url, timeout=60) as found:
        yield found
    clear_page(page_server)


@pytest.fixture(scope="module")
def browser(page_server: Live, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A browser, with the module's FLAGS. No server begins after it, as its loop runs here."""
    from tests.support.browser import chromium

    with chromium(*getattr(request.module, "FLAGS", ())) as found:
        yield found


@pytest.fixture
def show(
    browser: Any, page_server: Live, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Any]]:
    """Opens the page, as the module's BROWSER_PAGE; at the end, it has sent no request elsewhere,
    and no script has failed."""
    from tests.support.browser import BrowserPage

    kind, opened = getattr(request.module, "BROWSER_PAGE", BrowserPage), list[BrowserPage]()

    def opens(**context: Any) -> BrowserPage:
        opened.append(kind(browser, page_server.url, **context))
        return opened[-1]

    yield opens
    for shown in opened:
        shown.close()
        assert shown.strange == []
