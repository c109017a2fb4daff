"""Files that are sent to the page: they never fill the disk, and none is forgotten there."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import socket
from types import SimpleNamespace

import httpx
import pytest
from gradio.routes import file_upload_statuses
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.page import gradio_guard
from slimwhisper.app.page.files import FILES, TempFiles, page_folder
from slimwhisper.app.page.gradio_guard import Uploads
from tests.support.fuzz import examples
from tests.support.live import Live, connected, eventually
from tests.support.page_calls import call, upload
from tests.support.paths import PHONE

LIMIT = 300_000  # bytes of a file; the recording has 219,000
SETTINGS = {"max_bytes": LIMIT}


@pytest.fixture(scope="module")
def folder(folder: Path) -> Iterator[Path]:
    """No other server's."""
    with page_folder() as found:
        yield found


def stored(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / FILES).rglob("*") if path.is_file())


def left(folder: Path) -> list[Path]:
    return list((folder / FILES).iterdir())


@pytest.mark.slow
def test_all_uploads_together_are_bounded(client: httpx.Client, folder: Path) -> None:
    sent = [upload(client, PHONE) for _ in range(25)]
    assert 14 * PHONE.stat().st_size < stored(folder) <= 16 * LIMIT
    kind, said = call(client, sent[0])
    assert kind == "error" and "no longer on the server. Add it again" in str(said)
    assert call(client, sent[-1])[0] == "complete"


PART = '--x\r\nContent-Disposition: form-data; name="files"; filename="a.wav"\r\n\r\n'
KIND = "multipart/form-data; boundary=x"


def half_sent(live: Live, number: int) -> socket:
    """The connection of an upload of which half has been sent."""
    head = (
        f"POST /gradio_api/upload?upload_id=id{number} HTTP/1.1\r\nHost: 127.0.0.1",
        f"Content-Type: {KIND}\r\nContent-Length: 290000\r\n\r\n{PART}",
    )
    return connected(live, "\r\n".join(head).encode() + bytes(200_000))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Gradio's file
@pytest.mark.usefixtures("client", "quiet")
def test_nothing_of_an_upload_that_ends_early_stays(
    page_server: Live, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the log take a client that leaves for an error."""
    monkeypatch.setattr(gradio_guard, "PROGRESS_SECONDS", 0.01)
    with ExitStack() as clients:
        for number in range(4):
            clients.enter_context(half_sent(page_server, number))
        assert eventually(lambda: len(left(folder)) == len(file_upload_statuses._statuses) == 4)
    assert eventually(lambda: left(folder) == [])
    assert eventually(lambda: not file_upload_statuses._statuses)


def test_forms_that_are_refused_leave_nothing(client: httpx.Client, folder: Path) -> None:
    url = "/gradio_api/upload"
    nameless = f"{PART}abc\r\n" + PART.replace('name="files"; ', "")
    for content, kind in (
        *(("x", "multipart/form-data"), ("x", KIND), (nameless, KIND), ("{}", "application/json")),
    ):
        answer = client.post(url, content=content, headers={"Content-Type": kind})
        assert answer.status_code == 400, answer.text
        assert eventually(lambda: left(folder) == [])
    large = client.post(url, files={"files": ("a.wav", bytes(LIMIT + 1))})
    assert large.status_code == 413 and eventually(lambda: left(folder) == [])
    # nobody can guess or replace what is taken
    one, other = (Path(upload(client, PHONE)["path"]) for _ in range(2))
    assert one.parents[1] != other.parents[1] and one.name == other.name == PHONE.name


@examples(60)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 4), st.booleans())), st.booleans())
def test_what_is_stored_is_bounded(sent: list[tuple[int, int, bool]], small: bool) -> None:
    """In bytes and in files: the oldest go first, what still arrives is kept, and so is what is
    there alone, however many files it has. Half of a small disk is left free for all else.
    """
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        found = Uploads(Path(folder) / "files", max_bytes=100, max_count=3)
        disk = 120 if small else 10**6
        free = lambda _: SimpleNamespace(free=disk - found.size)  # noqa: E731
        patched.setattr("shutil.disk_usage", free)
        most, arriving, ended = min(100, disk // 2), list[TempFiles](), list[TempFiles]()
        for size, files, ends in sent:
            arriving.append(found.begin())
            try:
                found.grow(arriving[-1], size)
            except APIError as error:
                assert error.status_code == 507
                others = sum(upload.size for upload in arriving[:-1])
                kept = ended[-1].size if ended and ended[-1].path.exists() else 0
                assert others + kept + size > most or len(found.entries) == 1
                found.drop(arriving.pop())
            if ends and arriving:
                ended.append(arriving.pop(0))
                found.end(ended[-1], files)
                assert ended[-1].path.exists() or len(found.entries) > 1
            assert found.size <= most and all(upload.path.exists() for upload in arriving)
            there = [upload for upload in ended if upload.path.exists()]
            assert there == ended[len(ended) - len(there) :], "the oldest go first"
            assert sum(upload.files for upload in there) <= 3 or len(there) == 1
            assert {path.name for path in found.folder.iterdir()} == found.entries.keys()
