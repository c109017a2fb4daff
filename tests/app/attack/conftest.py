"""Servers that are attacked. Every test leaves them as they were."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import slimwhisper
from slimwhisper.app.page.tempdir import page_folder
from slimwhisper.app.service.jobs import Limits
from tests.support.harm import unharmed
from tests.support.live import Live, start, stop
from tests.support.spoken import SAMPLES

PHONE = SAMPLES / "phone-number.wav"
KEY = {"Authorization": "Bearer s3cret"}


@pytest.fixture(scope="package")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the servers keep files, and nobody else."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("attack")))
        yield Path(tempfile.gettempdir())


@pytest.fixture(scope="package")
def keyed(temporary: Path) -> Iterator[Live]:
    """A server with a page and a key."""
    with page_folder() as folder:
        running = start(
            slimwhisper.load_model("digits"),
            Limits(seconds=600),
            page=folder,
            cache="slim",
            api_key=KEY["Authorization"].removeprefix("Bearer "),
        )
        yield warm(running)
        stop(running)


@pytest.fixture(scope="package")
def keyless(temporary: Path) -> Iterator[Live]:
    """A server with a page and without a key, on this machine's own address."""
    with page_folder() as folder:
        model = slimwhisper.load_model("digits")
        running = start(
            model,
            Limits(seconds=600),
            page=folder,
            cache="slim",
            allow_origins=("https://app.example",),
        )
        yield warm(running)
        stop(running)


def warm(live: Live) -> Live:
    """The server, once it has its readers, its engine and its threads."""
    for _ in range(2):
        assert live.post(files={"file": PHONE.read_bytes()}, headers=KEY).status_code == 200
    return live


@pytest.fixture(autouse=True)
def nothing_stays_behind(
    keyed: Live, keyless: Live, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Both servers run in every process; those that a test uses are asked whether they still do."""
    servers = {"keyed": keyed, "keyless": keyless}
    with unharmed(*(servers[name] for name in servers if name in request.fixturenames)):
        yield
