"""Files that are sent to the page: they never fill the disk, and none is forgotten there."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from gradio.route_utils import GradioUploadFile
from gradio.routes import file_upload_statuses

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.page import tempdir, uploads
from slimwhisper.app.page.tempdir import FILES
from slimwhisper.app.page.transcripts.results import Results
from slimwhisper.app.page.uploads import Uploads
from tests.support.live import Begin, Live, connected, eventually
from tests.support.page_calls import PHONE, call, clear_page, upload

LIMIT = 300_000  # bytes of a file; the recording has 219,000


@pytest.fixture
def live(begin_page: Begin) -> Iterator[Live]:
    running = begin_page(max_bytes=LIMIT)
    yield running
    clear_page(running)


def stored(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / FILES).rglob("*") if path.is_file())


def left(folder: Path) -> list[Path]:
    return list((folder / FILES).iterdir())


@pytest.mark.slow
def test_all_uploads_together_are_bounded(live: Live, folder: Path) -> None:
    with httpx.Client(base_url=live.url, timeout=60) as client:
        sent = [upload(client, PHONE) for _ in range(25)]
        assert 14 * PHONE.stat().st_size < stored(folder) <= 16 * LIMIT
        kind, said = call(client, sent[0])
        assert kind == "error" and "no longer on the server. Add it again" in str(said)
        assert call(client, sent[-1])[0] == "complete"


def test_one_folder_for_each(live: Live) -> None:
    """Nobody can guess a path from the content, or replace a file of that content."""
    with httpx.Client(base_url=live.url) as client:
        one, other = (Path(upload(client, PHONE)["path"]) for _ in range(2))
    assert one.parents[1] != other.parents[1] and one.name == other.name == PHONE.name


def half_sent(live: Live, size: int, upload_id: str = "") -> None:
    """An upload whose client leaves in the middle."""
    part = '--x\r\nContent-Disposition: form-data; name="files"; filename="a.wav"\r\n\r\n'
    head = (
        f"POST /gradio_api/upload?upload_id={upload_id} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: multipart/form-data; boundary=x",
        "Content-Length: 290000",
    )
    connected(live, ("\r\n".join(head) + f"\r\n\r\n{part}").encode() + bytes(size)).close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Gradio's file
def test_nothing_of_an_upload_that_ends_early_stays(
    live: Live, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "TOLD", 0.01)
    for number in range(4):
        half_sent(live, 200_000, f"id{number}")
    assert eventually(lambda: left(folder) == [])
    assert eventually(lambda: not file_upload_statuses._statuses)


def test_forms_that_are_refused_leave_nothing(live: Live, folder: Path) -> None:
    url, kind = f"{live.url}/gradio_api/upload", "multipart/form-data"
    field = b'--x\r\nContent-Disposition: form-data; %bfilename="a"\r\n\r\nabc\r\n'
    for content, header in (
        *((b"x", kind), (b"x", f"{kind}; boundary=x"), (b"{}", "application/json")),
        (field % b'name="files"; ' + field % b"", f"{kind}; boundary=x"),
    ):
        answer = httpx.post(url, content=content, headers={"Content-Type": header})
        assert answer.status_code == 400 and left(folder) == [], answer.text
    large = httpx.post(url, files={"files": ("a.wav", bytes(LIMIT + 1))})
    assert large.status_code == 413 and left(folder) == []


def test_a_disk_without_room(
    live: Live, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, file = f"{live.url}/gradio_api/upload", {"files": ("a.wav", PHONE.read_bytes())}

    async def full(self: GradioUploadFile, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Uploads, "room", lambda *_: 1000)
        answer = httpx.post(url, files=file)
        assert answer.status_code == 507 and "no room for this file" in answer.text
        assert left(folder) == []
    with monkeypatch.context() as patched:
        patched.setattr(GradioUploadFile, "write", full)
        answer = httpx.post(url, files=file)
        assert answer.status_code == 507 and "the server's disk is full" in answer.text
        assert left(folder) == []
    assert not [record for record in caplog.records if record.exc_info]
    assert httpx.post(url, files=file).status_code == 200


def test_the_oldest_go_first(tmp_path: Path) -> None:
    found = Uploads(tmp_path / "files", max_bytes=100)
    first, second, third = (found.begin() for _ in range(3))
    found.grow(first, 40), found.grow(second, 40)
    found.end(first, 1)
    found.grow(third, 40)
    assert not first.path.exists() and second.path.exists(), "what still arrives is kept"
    with pytest.raises(APIError, match="no room") as raised:
        found.grow(third, 40)
    assert raised.value.status == 507


def test_uploads_of_many_files(tmp_path: Path) -> None:
    """All their files count; what is there alone is kept, however many it has."""
    found = Uploads(tmp_path / "files", max_bytes=10**6, max_count=3)
    kept = [found.begin() for _ in range(3)]
    for each, count in zip(kept, (2, 2, 4), strict=True):
        found.end(each, count)
    assert [each.path.exists() for each in kept] == [False, False, True]


@pytest.mark.parametrize("kind", [Uploads, Results])
def test_half_of_a_disk_is_left_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Uploads] | type[Results]
) -> None:
    """So that all else that needs files, the API above all, goes on."""
    found, source = kind(tmp_path / "kept", max_bytes=10**6), tmp_path / "a.wav"
    source.write_bytes(bytes(100))
    usage = lambda _: SimpleNamespace(free=1000 - found.size)  # noqa: E731
    monkeypatch.setattr(tempdir.shutil, "disk_usage", usage)
    for _ in range(20):
        if isinstance(found, Results):
            found.add(source, "a.wav", "g")
        else:
            upload = found.begin()
            found.grow(upload, 100)
            found.end(upload, 1)
        assert 0 < found.size <= 500
