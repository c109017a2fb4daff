"""What the page keeps for its users: formats, downloads, zip files, for how long."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import httpx
import pytest

from slimwhisper.app.page.transcripts.results import Results
from slimwhisper.outputs import formats
from slimwhisper.outputs.formats import FORMATS, Format
from slimwhisper.outputs.layout import Layout
from slimwhisper.types import Transcript
from tests.support.page_calls import PHONE, call, upload


@pytest.fixture
def view(client: httpx.Client) -> Any:
    """What the page shows of one recording that was sent twice."""
    file = upload(client, PHONE)
    return call(client, file, file)[1][1]


@pytest.fixture
def chapters() -> Iterator[Format]:
    """A format of a user's own, registered for one test."""

    def write(transcript: Transcript, file: TextIO, layout: Layout) -> None:
        file.writelines(f"{s.start:.0f} {s.text.strip()}\n" for s in transcript.segments)

    row = Format("chapters", "text/x-chapters", write)
    formats.register(row)
    yield row
    FORMATS.pop(row.name, None)


def zipped(client: httpx.Client, view: Any) -> dict[str, str]:
    """The texts in the zip file of a view, by their names."""
    with zipfile.ZipFile(io.BytesIO(client.get(f"/{view['zip']}").content)) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names))
        return {name: archive.read(name).decode() for name in names}


def test_a_registered_format_is_downloaded(
    chapters: Format, client: httpx.Client, view: Any
) -> None:
    one = view["files"][0]
    assert list(one["downloads"]) == [f for f in FORMATS if f != "rttm"], "without speakers"
    assert "chapters" in FORMATS
    found = client.get(f"/{one['downloads']['chapters']}")
    assert found.headers["content-type"].partition(";")[0] == chapters.media_type
    assert found.headers["content-disposition"].endswith("phone-number.chapters")
    lines = [f"{start:.0f} {text}" for start, _, text, *_ in one["segments"]]
    assert found.text.splitlines() == lines and len(lines) > 1
    files = zipped(client, view)
    assert len(files) == 2 * (len(FORMATS) - 1) and "phone-number.txt" in files
    assert files["phone-number (2).chapters"] == found.text
    del FORMATS[chapters.name]  # the page still shows its link
    assert client.get(f"/{one['downloads']['chapters']}").status_code == 404
    assert not any(name.endswith(".chapters") for name in zipped(client, view))


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
    large.since -= 4000
    results.forget()
    assert list((tmp_path / "kept").iterdir()) == [] and results.find_group(group) == []
