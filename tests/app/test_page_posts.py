"""What the page keeps and what it posts: results, corrections, the Live tab's transcripts."""

import io
import json
import os
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from slimwhisper import outputs as formats
from slimwhisper.app.page import posts
from slimwhisper.app.page.edits import Edits
from slimwhisper.app.page.files import PageResults, make_results_router
from slimwhisper.app.server import add_error_handlers
from slimwhisper.outputs import FORMATS, OutputFormat, formats_for
from slimwhisper.types import Segment, Transcript, Word
from tests.support.refusals import TABLES

WAS = "five five five"  # the first segment's text
FILE = "/page/live/transcript"
SEGMENT = {"start": 0, "end": 1, "text": "a"}


def transcript() -> Transcript:
    """Three segments of three words, a second each."""
    segments = []
    for i, text in enumerate((f" {WAS}", " zero one four", " two seven nine")):
        words = [
            Word(f" {w}", 4.0 * i + n, 4.0 * i + n + 1, 0.5) for n, w in enumerate(text.split())
        ]
        made = Segment(i, 0, 4.0 * i, 4.0 * i + 3, text, [1], 0.0, -0.1, 1.0, 0.0, words)
        segments.append(replace(made, flags=("repeats",) if i else ()))
    return Transcript("".join(segment.text for segment in segments), segments, "en")


class Site:
    """The page's own routes over two results of the same name, and one that is not done."""

    def __init__(self, folder: Path) -> None:
        results = PageResults(folder / "kept", 10**6)
        (folder / "a.wav").write_bytes(b"RIFF")
        one, other, self.unfinished = (results.add(folder / "a.wav", "a.wav", "g") for _ in "abc")
        one.edits, other.edits = Edits(transcript()), Edits(transcript())
        app = FastAPI()
        add_error_handlers(app)
        routers = make_results_router(results), posts.make_edit_router(results)
        for router in (*routers, posts.make_live_router(lambda: "ek_1")):
            app.include_router(router)
        self.client = TestClient(app)
        self.result = f"/page/result/{one.token}"
        self.edit = f"/page/edit/{one.token}"

    def downloads(self) -> dict[str, bytes]:
        """The first result's files: there are no speakers."""
        return {f: self.client.get(f"{self.result}.{f}").content for f in formats_for(False)}

    def zipped(self) -> dict[str, bytes]:
        """The files of both."""
        content = self.client.get("/page/results/g.zip").content
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def refused(self, status: int, path: str, content: Any, kind: str = "application/json") -> str:
        """The message of an answer. content: the body, or what it is to say as JSON."""
        body = content if isinstance(content, str | bytes) else json.dumps(content)
        found = self.client.post(path, content=body, headers={"Content-Type": kind})
        assert found.status_code == status, (content, found.text)
        message = str(found.json()["error"]["message"])
        assert "\n" not in message and len(message) < 300
        return message

    def written(self, format: str, segments: list[dict[str, Any]], language: str = "en") -> str:
        """A live transcript as a file."""
        body = {"language": language, "segments": segments}
        found = self.client.post(f"{FILE}.{format}", json=body)
        assert found.status_code == 200, found.text
        assert found.headers["content-disposition"].endswith(f"live.{format}")
        return found.text


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.client.close()


def test_a_registered_format_is_downloaded(site: Site) -> None:
    row = OutputFormat(
        "chapters", "text/x-chapters", lambda t, file, _: file.write(f"{len(t.text)}\n")
    )
    formats.register(row)
    try:
        found = site.client.get(f"{site.result}.chapters")
        assert found.headers["content-type"].partition(";")[0] == row.media_type
        assert found.headers["content-disposition"].endswith("a.chapters")
        files = site.zipped()
        assert len(files) == 2 * (len(FORMATS) - 1), "without speakers"
        assert files["a (2).chapters"] == files["a.chapters"] == found.content == b"44\n"
    finally:
        del FORMATS[row.name]  # the page still shows its link
    for format in ("chapters", "rttm"):
        found = site.client.get(f"{site.result}.{format}")
        assert found.status_code == 404 and "choose: txt" in found.json()["error"]["message"]


def test_what_is_kept_and_for_how_long(tmp_path: Path) -> None:
    """Whatever becomes of the upload; how much of it: attack/test_uploads.py. The folder is never
    so old that a service which cleans /tmp would remove it.
    """
    results = PageResults(tmp_path / "kept", max_bytes=30, keep=3600)
    source = tmp_path / "a.wav"
    source.write_bytes(b"0123456789")
    first, second = (results.add(source, "a.wav", "g") for _ in range(2))
    source.unlink()
    assert first.path.read_bytes() == b"0123456789"
    os.utime(results.folder, (0, 0))
    assert results.find(first.token) is first and len(first.token) >= 32
    assert time.time() - results.folder.stat().st_mtime < 60
    first.edits = Edits(transcript())
    assert results.find_group("g") == [first], "of what has a transcript"
    first.since = second.since = time.monotonic() - 4000
    assert results.find_group("g") == list(results.folder.iterdir()) == []
    with pytest.raises(HTTPException, match="no longer available"):
        results.find(first.token)


def test_corrections_are_in_every_download(site: Site) -> None:
    client, plain = site.client, site.downloads()
    change = {"texts": [[1, "zero one four", "  zero\none   FORTY-TWO "]]}
    found = client.post(site.edit, json=change)
    assert found.status_code == 200
    text = "zero one   FORTY-TWO"
    words = [[4.0, 5.0, " zero", 0.5], [5.0, 6.0, " one", 0.5], [6.0, 7.0, "   FORTY-TWO", 1.0]]
    assert found.json() == {
        "revision": 1,
        "text": f"{WAS} {text} two seven nine",
        "segments": {"1": [4.0, 7.0, text, json.dumps(words, separators=(",", ":")), None, []]},
    }
    for format, content in site.downloads().items():
        assert b"FORTY-TWO" in content and content != plain[format], format
    names = [name for name, content in site.zipped().items() if b"FORTY-TWO" in content]
    assert names == [f"a.{format}" for format in plain], "and in no other file"
    assert client.post(site.edit, json={"undo": 1}).json()["revision"] == 2
    assert site.downloads() == plain
    assert client.post(site.edit, json={"redo": 2}).status_code == 200
    late = client.post(site.edit, json={"texts": [[0, WAS, "nine"], *change["texts"]]})
    assert late.status_code == 409 and late.json()["text"].startswith(WAS), "none is half changed"
    assert {i: shown[2] for i, shown in late.json()["segments"].items()} == {"1": text}
    assert "changed elsewhere" in late.json()["error"]["message"]
    approved = client.post(site.edit, json={"approve": 2}).json()
    assert approved["segments"]["2"][5] == []


def test_corrections_that_are_refused(site: Site) -> None:
    plain = site.downloads()
    for body in (*TABLES["edits"], {"speaker": ["A", "x" * 101]}):
        site.refused(400, site.edit, body)
    long = {"texts": [[0, WAS, "x" * (posts.MAX_TEXT + 1)]]}
    assert "texts.0.2" in site.refused(400, site.edit, long)
    site.refused(409, site.edit, '{"undo": 0}')
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        site.refused(415, site.edit, {"texts": [[0, WAS, "nine"]]}, kind)
    for token in ("x" * 32, site.unfinished.token):
        site.refused(404, f"/page/edit/{token}", {"undo": 0})
    assert site.downloads() == plain, "nothing was changed"


SAID = [
    {"start": 0.5, "end": 2.25, "text": " five  five"},
    {"start": 4.0, "end": 7.5, "text": "zero\none --> four"},
]
WORDS = [
    [
        {"start": 0.5, "end": 1.0, "word": " five", "probability": 0.5},
        {"start": 1.5, "end": 2.25, "word": "-five", "probability": 1},
    ],
    [{"start": 4.0, "end": 7.5, "word": " zero", "probability": 0}],
]


def test_every_format_of_a_live_transcript(site: Site) -> None:
    assert site.written("txt", SAID) == "five  five\nzero one -> four\n"
    assert site.written("srt", SAID) == (
        "1\n00:00:00,500 --> 00:00:02,250\nfive five\n\n"
        "2\n00:00:04,000 --> 00:00:07,500\nzero one -> four\n\n"
    )
    long = {"start": 3.0, "end": 23.0, "text": "We came home late, and nobody had seen us. " * 5}
    assert site.written("srt", [long]).count("\n\n") == 5, "a cue for each sentence"
    for format in formats_for(False):
        assert "five" in site.written(format, SAID)
        site.written(format, [])


def test_words_and_details_of_a_live_transcript(site: Site) -> None:
    """As `slimwhisper live -f json` writes them."""
    timed = [{**one, "words": words} for one, words in zip(SAID, WORDS, strict=True)]
    details = {"tokens": [50364, 1732], "temperature": 0.2, "avg_logprob": -0.5}
    details |= {"compression_ratio": 0.75, "no_speech_prob": 0.125}
    found = json.loads(site.written("json", [{**timed[0], **details}, timed[1]], "yue"))
    assert found["language"] == "yue" and found["text"] == " five  five zero one -> four"
    first, second = found["segments"]
    assert [w["word"] for w in first["words"]] == [" five", "-five"]
    assert {name: first[name] for name in details} == details
    assert second["tokens"] == [] and second["compression_ratio"] > 0
    assert "<00:01.50>" in site.written("lrc", timed).replace(" ", "")
    mixed = json.loads(site.written("json", [timed[0], SAID[1]]))
    assert "words" not in mixed["segments"][0], "all or nothing"


def test_live_transcripts_that_are_refused(site: Site) -> None:
    body: dict[str, Any] = {"language": "en", "segments": SAID}
    for field, value, message in (
        *(("end", "soon", "segments.0.end"), ("end", 0.1, "the end is before")),
        *(("end", 1e300, "segments.0.end"), ("end", float("inf"), "")),
        *(
            ("start", -1, "segments.0.start"),
            ("text", "x" * (posts.MAX_TEXT + 1), "segments.0.text"),
        ),
        *(("words", WORDS[0] * (posts.MAX_PARTS // 2 + 1), "words"), ("tokens", [-1], "tokens.0")),
        *(("tokens", [1] * (posts.MAX_PARTS + 1), "tokens"), ("avg_logprob", "low", "avg_logprob")),
    ):
        wrong = {**body, "segments": [{**SAID[0], field: value}]}
        assert message in site.refused(400, f"{FILE}.srt", wrong), field
    many = [{"start": 0, "end": 0, "text": ""}] * (posts.MAX_SEGMENTS + 1)
    for change in ({"language": "xx"}, {"segments": many}, {"path": "/etc/passwd"}):
        assert next(iter(change)) in site.refused(400, f"{FILE}.srt", body | change)
    site.refused(400, f"{FILE}.srt", "{")
    for format in ("rttm", "exe", "srt/x", ".."):
        assert site.client.post(f"{FILE}.{format}", json={}).status_code == 404


def test_only_the_first_mistake_is_looked_for(site: Site) -> None:
    """In 8 MB, there could be millions, of a kB each."""
    for kind, body in (
        (posts.EditRequest, {"texts": [1] * 9}),
        (posts.LiveTranscript, {"language": "en", "segments": [1] * 9}),
        (posts.LiveTranscript, {"language": "en", "segments": [SEGMENT | {"words": [1] * 9}]}),
        (posts.LiveTranscript, {"language": "en", "segments": [SEGMENT | {"tokens": ["x"] * 9}]}),
    ):
        with pytest.raises(ValidationError) as raised:
            kind.model_validate_json(json.dumps(body))
        assert raised.value.error_count() == 1
    for path in (site.edit, f"{FILE}.srt"):
        assert " mistakes" in site.refused(400, path, {str(name): 1 for name in range(200)})
        said = site.refused(400, path, b'{"texts": [' + b"[]," * 500_000 + b"1]}")
        assert "objects and arrays" in said


def test_who_gets_a_key(site: Site) -> None:
    found = site.client.post("/page/live/key", json={})
    assert found.json() == {"value": "ek_1"}
    for path in ("/page/live/key", f"{FILE}.srt"):
        site.refused(415, path, "{}", "")  # a form of another site
