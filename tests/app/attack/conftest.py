"""Servers that are attacked. Every test leaves them as they were."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


@contextmanager
def with_page(**settings: Any) -> Iterator[Live]:
    """A server with a page, once it has its readers, its engine and its threads."""
    with page_folder() as folder:
        limits, model = Limits(seconds=600), slimwhisper.load_model("digits")
        running = start(model, limits, page=folder, cache="slim", **settings)
        for _ in range(2):
            assert running.post(files={"file": PHONE.read_bytes()}, headers=KEY).status_code == 200
        yield running
        stop(running)


@pytest.fixture(scope="package")
def keyed(temporary: Path) -> Iterator[Live]:
    """With a key."""
    with with_page(api_key=KEY["Authorization"].removeprefix("Bearer ")) as found:
        yield found


@pytest.fixture(scope="package")
def keyless(temporary: Path) -> Iterator[Live]:
    """Without a key, on this machine's own address."""
    with with_page(allow_origins=("https://app.example",)) as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_stays_behind(
    keyed: Live, keyless: Live, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Both servers run in every process; those that a test uses are asked whether they still do."""
    servers = {"keyed": keyed, "keyless": keyless}
    with unharmed(*(servers[name] for name in servers if name in request.fixturenames)):
        yield
