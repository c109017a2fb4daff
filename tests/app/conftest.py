"""The server's fixtures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.app.page.tempdir import page_folder
from tests.support.live import Begin, Live, start, stop


@pytest.fixture(scope="module")
def model() -> SlimWhisper:
    return slimwhisper.load_model("digits")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where pages keep their files."""
    with page_folder() as found:
        yield found


@pytest.fixture
def begin(model: SlimWhisper) -> Iterator[Begin]:
    """Starts servers; they stop with the test."""
    running: list[Live] = []

    def begins(**settings: Any) -> Live:
        running.append(start(model, **settings))
        return running[-1]

    yield begins
    for live in running:
        stop(live)


@pytest.fixture
def begin_page(begin: Begin, folder: Path) -> Begin:
    """Starts servers with a page."""

    def begins(**settings: Any) -> Live:
        return begin(page=folder, cache="slim", **settings)

    return begins
