"""The Live tab's routes: what is accepted, what is refused, and that the files are the writers'."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from slimwhisper.app.page.live_route import (
    MAX_SEGMENTS,
    MAX_TOKENS,
    MAX_WORDS,
    live_formats,
    make_live_router,
)
from slimwhisper.app.page.posted import MAX_TEXT
from slimwhisper.app.server import add_error_handlers

SAID = [
    {"start": 0.5, "end": 2.25, "text": " five  five"},
    {"start": 3.0, "end": 61.5, "text": "zero\none --> four"},
]
WORDS = [
    [
        {"start": 0.5, "end": 1.0, "word": " five", "probability": 0.5},
        {"start": 1.5, "end": 2.25, "word": "-five", "probability": 1},
    ],
    [{"start": 3.0, "end": 61.5, "word": " zero", "probability": 0}],
]
FILE = "/page/live/transcript"


class Site:
    """The routes alone."""

    def __init__(self) -> None:
        app = FastAPI()
        add_error_handlers(app)
        app.include_router(make_live_router(lambda: "ek_1"))
        self.client = TestClient(app)

    def written(self, format: str, segments: list[dict[str, Any]], language: str = "en") -> str:
        body = {"language": language, "segments": segments}
        found = self.client.post(f"{FILE}.{format}", json=body)
        assert found.status_code == 200, found.text
        assert found.headers["content-disposition"].endswith(f"live.{format}")
        assert found.headers["x-content-type-options"] == "nosniff"
        return found.text


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.client.close()


def test_every_format(site: Site) -> None:
    assert site.written("txt", SAID) == "five  five\nzero one -> four\n"
    assert site.written("srt", SAID) == (
        "1\n00:00:00,500 --> 00:00:02,250\nfive  five\n\n"
        "2\n00:00:03,000 --> 00:01:01,500\nzero one -> four\n\n"
    )
    assert site.written("tsv", SAID).splitlines()[2] == "3000\t61500\tzero one -> four"
    for format in live_formats():
        assert "five" in site.written(format, SAID)
        assert site.written(format, []) is not None
    assert "rttm" not in live_formats()


def test_times_of_words(site: Site) -> None:
    timed = [{**one, "words": words} for one, words in zip(SAID, WORDS, strict=True)]
    found = json.loads(site.written("json", timed, "yue"))
    assert found["language"] == "yue" and found["text"] == " five  five zero one -> four"
    assert [w["word"] for w in found["segments"][0]["words"]] == [" five", "-five"]
    assert "<00:01.50>" in site.written("lrc", timed).replace(" ", "")
    mixed = [timed[0], SAID[1]]
    assert "words" not in json.loads(site.written("json", mixed))["segments"][0]
    assert "five" in site.written("srt", mixed)


def test_details_of_segments(site: Site) -> None:
    """As `slimwhisper live -f json` writes them."""
    details = {"tokens": [50364, 1732], "temperature": 0.2, "avg_logprob": -0.5}
    details |= {"compression_ratio": 0.75, "no_speech_prob": 0.125}
    segments = json.loads(site.written("json", [{**SAID[0], **details}, SAID[1]]))["segments"]
    assert {name: segments[0][name] for name in details} == details
    assert segments[1]["tokens"] == [] and segments[1]["compression_ratio"] > 0


def test_what_is_refused(site: Site) -> None:
    def refused(status: int, said: str, **changes: Any) -> None:
        body = {"language": "en", "segments": SAID} | changes
        found = site.client.post(f"{FILE}.srt", json=body)
        assert found.status_code == status and said in found.json()["error"]["message"]

    one = SAID[0]
    refused(400, "language", language="xx")
    refused(400, "segments.0.end", segments=[{**one, "end": "soon"}])
    refused(400, "the end is before", segments=[{**one, "end": 0.1}])
    refused(400, "segments.0.start", segments=[{**one, "start": -1}])
    refused(400, "segments.0.end", segments=[{**one, "end": 1e300}])
    refused(400, "segments.0.text", segments=[{**one, "text": "x" * (MAX_TEXT + 1)}])
    refused(400, "segments", segments=[{"start": 0, "end": 0, "text": ""}] * (MAX_SEGMENTS + 1))
    refused(400, "words", segments=[{**one, "words": WORDS[0] * (MAX_WORDS // 2 + 1)}])
    refused(400, "tokens.0", segments=[{**one, "tokens": [-1]}])
    refused(400, "tokens", segments=[{**one, "tokens": [1] * (MAX_TOKENS + 1)}])
    refused(400, "avg_logprob", segments=[{**one, "avg_logprob": "low"}])
    refused(400, "path", path="/etc/passwd")
    for format in ("rttm", "exe", "srt/x", ".."):
        assert site.client.post(f"{FILE}.{format}", json={}).status_code == 404
    json_type = {"Content-Type": "application/json"}
    infinite = b'{"language": "en", "segments": [{"start": 0, "end": Infinity, "text": "x"}]}'
    for content, status in ((b"{", 400), (infinite, 400)):
        found = site.client.post(f"{FILE}.srt", content=content, headers=json_type)
        assert found.status_code == status
    assert site.client.post(f"{FILE}.srt", content=b"{}").status_code == 415


def test_who_gets_a_key(site: Site) -> None:
    found = site.client.post("/page/live/key", json={})
    assert found.json() == {"value": "ek_1"} and found.headers["cache-control"] == "no-store"
    for path in ("/page/live/key", f"{FILE}.srt"):
        assert site.client.post(path, content=b"{}").status_code == 415, "a form of another site"
