"""Files that are sent to the page: they never fill the disk, and none is forgotten there."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gradio.route_utils import GradioUploadFile
from gradio.routes import file_upload_statuses

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.page import tempdir, uploads
from slimwhisper.app.page.tempdir import FILES
from slimwhisper.app.page.transcripts.results import PageResults
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


PART = '--x\r\nContent-Disposition: form-data; name="files"; filename="a.wav"\r\n\r\n'
KIND = "multipart/form-data; boundary=x"


def half_sent(live: Live, number: int) -> None:
    """An upload whose client leaves in the middle."""
    head = (
        f"POST /gradio_api/upload?upload_id=id{number} HTTP/1.1\r\nHost: 127.0.0.1",
        f"Content-Type: {KIND}\r\nContent-Length: 290000\r\n\r\n{PART}",
    )
    connected(live, "\r\n".join(head).encode() + bytes(200_000)).close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Gradio's file
def test_nothing_of_an_upload_that_ends_early_stays(
    live: Live, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PROGRESS_SECONDS", 0.01)
    for number in range(4):
        half_sent(live, number)
    assert eventually(lambda: left(folder) == [])
    assert eventually(lambda: not file_upload_statuses._statuses)


def test_forms_that_are_refused_leave_nothing(live: Live, folder: Path) -> None:
    url = f"{live.url}/gradio_api/upload"
    nameless = f"{PART}abc\r\n" + PART.replace('name="files"; ', "")
    for content, kind in (
        *(("x", "multipart/form-data"), ("x", KIND), (nameless, KIND), ("{}", "application/json")),
    ):
        answer = httpx.post(url, content=content, headers={"Content-Type": kind})
        assert answer.status_code == 400, answer.text
        assert left(folder) == []
    large = httpx.post(url, files={"files": ("a.wav", bytes(LIMIT + 1))})
    assert large.status_code == 413 and left(folder) == []
    with httpx.Client(base_url=live.url) as client:  # nobody can guess or replace what is taken
        one, other = (Path(upload(client, PHONE)["path"]) for _ in range(2))
    assert one.parents[1] != other.parents[1] and one.name == other.name == PHONE.name


def test_a_disk_without_room(
    live: Live, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def sent() -> str:
        url, file = f"{live.url}/gradio_api/upload", ("a.wav", PHONE.read_bytes())
        answer = httpx.post(url, files={"files": file})
        assert answer.status_code == 200 or left(folder) == []
        return f"{answer.status_code} {answer.text}"

    async def full(self: GradioUploadFile, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    for patch, message in (
        ((Uploads, "room", lambda *_: 1000), "no room for this file"),
        ((GradioUploadFile, "write", full), "the server's disk is full"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(*patch)
            answer = sent()
        assert answer.startswith("507 ") and message in answer
    assert not [record for record in caplog.records if record.exc_info]
    assert sent().startswith("200 ")


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
    found.drop(third)
    found.grow(second, 60)
    found.end(second, 1)
    assert second.path.exists()


def test_uploads_of_many_files(tmp_path: Path) -> None:
    """All their files count; what is there alone is kept, however many it has."""
    found = Uploads(tmp_path / "files", max_bytes=10**6, max_count=3)
    kept = []
    for count in (2, 2, 4):
        kept.append(found.begin())
        found.end(kept[-1], count)
    assert [each.path.exists() for each in kept] == [False, False, True]


def test_half_of_a_disk_is_left_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all else that needs files, the API above all, goes on."""
    disk, used = 1000, [0]

    class Usage:
        free = property(lambda self: disk - used[0])

    monkeypatch.setattr(tempdir.shutil, "disk_usage", lambda _: Usage())
    found = Uploads(tmp_path / "files", max_bytes=10**6)
    for _ in range(20):
        upload = found.begin()
        found.grow(upload, 100)
        found.end(upload, 1)
        used[0] = found.size
        assert used[0] <= disk // 2
    kept = PageResults(tmp_path / "results", max_bytes=10**6)
    source = tmp_path / "a.wav"
    source.write_bytes(bytes(100))
    used[0] = 0
    for _ in range(20):
        kept.add(source, "a.wav", "g")
        used[0] = kept.size
        assert used[0] <= disk // 2
