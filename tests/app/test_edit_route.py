"""Corrections over HTTP: what is accepted, what is refused, and that every download has them."""

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from slimwhisper.app.page.assets_route import make_assets_router
from slimwhisper.app.page.edit_route import make_edit_router
from slimwhisper.app.page.posted import MAX_TEXT
from slimwhisper.app.page.results import Result, Results, make_results_router
from slimwhisper.app.server import add_error_handlers
from slimwhisper.outputs.formats import FORMATS
from slimwhisper.types import Segment, Transcript, Word

WRITTEN = [row.name for row in FORMATS.values() if not row.speakers]  # there are none


def transcript() -> Transcript:
    """Three segments of three words, a second each."""
    segments = []
    for i, text in enumerate((" five five five", " zero one four", " two seven nine")):
        words = [
            Word(f" {w}", 4.0 * i + n, 4.0 * i + n + 1, 0.5) for n, w in enumerate(text.split())
        ]
        made = Segment(i, 0, 4.0 * i, 4.0 * i + 3, text, [1], 0.0, -0.1, 1.0, 0.0, words)
        segments.append(replace(made, flags=("repeats",) if i else ()))
    return Transcript("".join(segment.text for segment in segments), segments, "en")


class Site:
    """The page's routes over two results."""

    def __init__(self, folder: Path) -> None:
        results = Results(folder / "kept", 10**6)
        (folder / "a.wav").write_bytes(b"RIFF")
        self.results: list[Result] = [results.add(folder / "a.wav", n) for n in ("a.wav", "b.wav")]
        for result in self.results:
            result.finish(transcript())
        self.group = results.group(self.results)
        self.unfinished = results.add(folder / "a.wav", "c.wav")
        app = FastAPI()
        add_error_handlers(app)
        for router in (
            *(make_results_router(results), make_edit_router(results), make_assets_router()),
        ):
            app.include_router(router)
        self.client = TestClient(app)
        self.path = f"/page/edit/{self.results[0].token}"

    def downloads(self) -> dict[str, bytes]:
        token = self.results[0].token
        return {f: self.client.get(f"/page/result/{token}.{f}").content for f in WRITTEN}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.client.close()


def test_corrections_are_in_every_download(site: Site) -> None:
    client, plain = site.client, site.downloads()
    change = {"texts": [[1, "zero one four", "  zero\none   FORTY-TWO "]]}
    found = client.post(site.path, json=change)
    assert found.status_code == 200
    text = "zero one   FORTY-TWO"
    words = [[4.0, 5.0, " zero", 0.5], [5.0, 6.0, " one", 0.5], [6.0, 7.0, "   FORTY-TWO", 1.0]]
    assert found.json() == {
        "revision": 1,
        "text": f"five five five {text} two seven nine",
        "segments": {"1": [4.0, 7.0, text, json.dumps(words, separators=(",", ":")), None, []]},
    }
    for format, content in site.downloads().items():
        assert b"FORTY-TWO" in content and content != plain[format], format
    with zipfile.ZipFile(io.BytesIO(client.get(f"/page/results/{site.group}.zip").content)) as all_:
        names = [name for name in all_.namelist() if b"FORTY-TWO" in all_.read(name)]
    assert names == [f"a.{format}" for format in WRITTEN], "and in no other file"
    assert client.post(site.path, json={"undo": 1}).json()["revision"] == 2
    assert site.downloads() == plain
    assert client.post(site.path, json={"redo": 2}).status_code == 200
    late = client.post(site.path, json=change)
    assert late.status_code == 409 and late.json()["segments"]["1"][2] == text
    assert "changed elsewhere" in late.json()["error"]["message"]
    approved = client.post(site.path, json={"approve": 2}).json()
    assert approved["segments"]["2"][5] == []


def test_what_is_refused(site: Site) -> None:
    plain = site.downloads()

    def refused(status: int, content: str | bytes, **headers: str) -> str:
        headers = {"Content-Type": "application/json", **headers}
        found = site.client.post(site.path, content=content, headers=headers)
        assert found.status_code == status, (content, found.text)
        message = found.json()["error"]["message"]
        assert "\n" not in message and len(message) < 300
        return str(message)

    was = "five five five"
    good = json.dumps({"texts": [[0, was, "nine"]]})
    for body in (
        *("", "[]", "null", "{", "{}", '{"texts": 3}', '{"texts": [[0]]}', '{"undo": "1"}'),
        *('{"texts": [[-1, "", ""]]}', '{"texts": [[true, "", ""]]}', '{"other": 1}'),
        *('{"speaker": ["A", ""]}', '{"speaker": ["A", " "]}', '{"undo": 0, "redo": 0}'),
        *('{"texts": [[99, "", "a"]]}', '{"approve": 99}', '{"texts": [[0, "", "\\ud800"]]}'),
        *('{"texts": null}', json.dumps({"speaker": ["A", "x" * 101]})),
    ):
        refused(400, body)
    assert "texts.0.2" in refused(400, json.dumps({"texts": [[0, was, "x" * (MAX_TEXT + 1)]]}))
    refused(409, '{"undo": 0}')
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        refused(415, good, **{"Content-Type": kind})
    for token in ("x" * 32, site.unfinished.token):
        assert site.client.post(f"/page/edit/{token}", json={"undo": 0}).status_code == 404
    assert site.downloads() == plain, "nothing was changed"
    markup = "<script>alert(1)</script> --> {\\b1}"
    answer = site.client.post(site.path, json={"texts": [[0, was, markup]]}).json()
    assert answer["segments"]["0"][2] == markup.replace("-->", "->")
    assert site.downloads()["vtt"].count(b"-->") == 3, "a text does not make a cue"


def test_the_scripts_are_served(site: Site) -> None:
    found = site.client.get("/page/assets/player.js")
    assert found.status_code == 200 and found.headers["content-type"].startswith("text/javascript")
    assert found.headers["cache-control"] == "no-cache"
    for wrong in ("page.css", "nothing.js", "..%2fpage.py", "%2e%2e/page.py", ""):
        assert site.client.get(f"/page/assets/{wrong}").status_code == 404, wrong
