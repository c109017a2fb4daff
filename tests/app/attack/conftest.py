"""Servers that are attacked. Every test leaves them as they were."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import Limits
from tests.support.harm import unharmed
from tests.support.live import Live, served
from tests.support.paths import PHONE

KEY = {"Authorization": "Bearer s3cret"}
SERVERS = ("keyed", "keyless")


@pytest.fixture(scope="package")
def keyed(model: SlimWhisper, folder: Path) -> Iterator[Live]:
    """With a key."""
    yield from served(model, Limits(seconds=600), page=folder, cache="slim", api_key="s3cret")


@pytest.fixture(autouse=True)
def nothing_stays_behind(request: pytest.FixtureRequest, folder: Path) -> Iterator[None]:
    """The servers that a test uses are asked whether they still run. folder: other processes write
    into the system's temporary one, too.
    """
    used = [request.getfixturevalue(name) for name in SERVERS if name in request.fixturenames]
    for live in used:  # once it has its readers, its engine and its threads
        while live.service.counts.finished < 2:
            assert live.post(files={"file": PHONE.read_bytes()}, headers=KEY).status_code == 200
    with unharmed(*used):
        yield


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No error, and no traceback in the log."""
    yield
    assert not [r for r in caplog.get_records("call") if r.levelno >= logging.ERROR]
    assert "Traceback" not in "".join(capfd.readouterr())
