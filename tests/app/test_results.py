"""What the page keeps for its users: formats, downloads, zip files, for how long."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import httpx
import pytest

from slimwhisper.app.page.results import Results
from slimwhisper.outputs import formats
from slimwhisper.outputs.formats import FORMATS, Format, Layout
from slimwhisper.types import Transcript
from tests.support.live import Begin
from tests.support.page_calls import PHONE, call, upload


def test_an_unknown_format_is_one_line(begin_page: Begin) -> None:
    live = begin_page()
    with httpx.Client(base_url=live.url, timeout=60) as client:
        _, (_, view) = call(client, upload(client, PHONE))
        path = view["files"][0]["downloads"]["txt"]
        for wrong in ("exe", "TXT", "tar.gz", "", "x" * 200):
            found = client.get(f"/{path.removesuffix('txt')}{wrong}")
            assert found.status_code == 404
            message = found.json()["error"]["message"]
            assert message.endswith("no such format; choose: " + ", ".join(FORMATS)), message
            assert "\n" not in message


@pytest.fixture
def chapters() -> Iterator[Format]:
    """A format of a user's own, registered for one test."""

    def write(transcript: Transcript, file: TextIO, layout: Layout) -> None:
        file.writelines(f"{s.start:.0f} {s.text.strip()}\n" for s in transcript.segments)

    row = Format("chapters", "text/x-chapters", write)
    formats.register(row)
    yield row
    FORMATS.pop(row.name, None)


def test_a_registered_format_is_downloaded(begin_page: Begin, chapters: Format) -> None:
    live = begin_page()
    with httpx.Client(base_url=live.url, timeout=60) as client:
        file = upload(client, PHONE)
        _, (_, view) = call(client, file, file)
        one = view["files"][0]
        assert list(one["downloads"]) == [f for f in FORMATS if f != "rttm"], "without speakers"
        assert "chapters" in FORMATS
        found = client.get(f"/{one['downloads']['chapters']}")
        assert found.headers["content-type"].partition(";")[0] == chapters.media_type
        assert found.headers["content-disposition"].endswith("phone-number.chapters")
        lines = [f"{start:.0f} {text}" for start, _, text, *_ in one["segments"]]
        assert found.text.splitlines() == lines and len(lines) > 1
        with zipfile.ZipFile(io.BytesIO(client.get(f"/{view['zip']}").content)) as archive:
            assert archive.read("phone-number (2).chapters").decode() == found.text
        del FORMATS[chapters.name]  # the page still shows its link
        assert client.get(f"/{one['downloads']['chapters']}").status_code == 404
        with zipfile.ZipFile(io.BytesIO(client.get(f"/{view['zip']}").content)) as archive:
            assert not any(name.endswith(".chapters") for name in archive.namelist())


def test_a_format_that_is_removed_while_it_is_written(begin_page: Begin) -> None:
    """The download is finished, and so is the zip."""

    def write(transcript: Transcript, file: TextIO, layout: Layout) -> None:
        file.write(transcript.text)
        FORMATS.pop("fleeting", None)

    row = Format("fleeting", "text/plain", write)
    live = begin_page()
    with httpx.Client(base_url=live.url, timeout=60) as client:
        file = upload(client, PHONE)
        _, (_, view) = call(client, file, file)
        path = view["files"][0]["downloads"]["txt"].removesuffix("txt")
        try:
            for address in (f"{path}{row.name}", view["zip"]):
                formats.register(row)
                found = client.get(f"/{address}")
                assert found.status_code == 200, found.text
        finally:
            FORMATS.pop(row.name, None)


def test_what_is_kept_and_for_how_long(tmp_path: Path) -> None:
    results = Results(tmp_path / "kept", max_bytes=30, keep=3600, max_count=3)
    source = tmp_path / "a.wav"
    source.write_bytes(b"0123456789")
    first, second = results.add(source, "a.wav"), results.add(source, "b.wav")
    group = results.group([first, second])
    source.unlink()
    assert first.path.read_bytes() == b"0123456789", "whatever becomes of the upload"
    assert results.find(first.token) is first and len(first.token) >= 32
    assert results.find_group(group) == [], "no transcripts yet"
    source.write_bytes(b"0123456789")
    results.add(source, "c.wav")
    results.add(source, "d.wav")
    assert results.find(first.token) is None and not first.path.exists()
    assert results.find(second.token) is second
    source.write_bytes(b"x" * 100)
    large = results.add(source, "e.wav")
    assert results.find(large.token) is large and results.find(second.token) is None
    assert [p.name for p in (tmp_path / "kept").iterdir()] == [large.token]
    large.made -= 4000
    results.forget()
    assert list((tmp_path / "kept").iterdir()) == [] and results.find_group(group) == []


def test_same_names_in_one_zip(begin_page: Begin) -> None:
    live = begin_page()
    with httpx.Client(base_url=live.url, timeout=60) as client:
        file = upload(client, PHONE)
        _, (_, view) = call(client, file, file)
        found = client.get(f"/{view['zip']}")
    with zipfile.ZipFile(io.BytesIO(found.content)) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names)) == 2 * (len(FORMATS) - 1)
    assert "phone-number.txt" in names and "phone-number (2).txt" in names
