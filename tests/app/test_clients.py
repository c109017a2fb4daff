"""Programs that people connect: their requests, as they send them, and what they read of answers.

`clients.toml` has them, with the sources where they were read; docs/connect.md has a row for each.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import load_audio
from tests.support.live import Live, start, stop
from tests.support.paths import ROOT, SAMPLES
from tests.support.realtime import WORDS

PHONE = SAMPLES / "phone-number.wav"
REQUESTS = tomllib.loads(Path(__file__).with_name("clients.toml").read_text())["request"]
KEY = "KEY"  # in the requests, and of the server


@pytest.fixture(scope="module")
def household(model: SlimWhisper) -> Iterator[Live]:
    """A server as docs/connect.md starts it: with a key, for all models' names, and an app."""
    allowed = ("app://obsidian.md",)
    login = ("u", "p")
    running = start(model, strict=False, api_key=KEY, login=login, allow_origins=allowed)
    yield running
    stop(running)


def said(answer: httpx.Response, expects: str) -> str:
    """The words of an answer, read as the program reads it."""
    match expects:
        case "json.text":
            return str(answer.json()["text"])
        case "json.segments":
            segments = answer.json()["segments"]
            assert all(0 <= s["start"] <= s["end"] for s in segments)
            return " ".join(s["text"].strip() for s in segments)
        case "json.results":
            return str(answer.json()["results"]["channels"][0]["alternatives"][0]["transcript"])
        case "srt":
            assert answer.text.startswith("1\n00:00:0")
            return " ".join(re.findall(r"^[a-z ]+$", answer.text, re.M))
        case "events":
            done = [line for line in answer.text.splitlines() if "transcript.text.done" in line]
            return str(json.loads(done[0].removeprefix("data: "))["text"])
        case "text":
            return " ".join(answer.text.split())
    raise AssertionError(expects)


def sent(url: str, row: dict[str, Any]) -> httpx.Response:
    """The answer to a request with its fields in their order."""
    data, body = PHONE.read_bytes(), row.get("body", "form")
    if body == "pcm":
        data = (load_audio(str(PHONE)) * 32767).astype("<i2").tobytes()
    part = (row.get("filename", "audio.wav"), data, row.get("content_type", "audio/wav"))
    fields = [
        (name, part if value == "@file" else (None, value)) for name, value in row.get("fields", ())
    ]
    content = {"content": data} if body == "raw" else {"files": fields} if fields else {}
    return httpx.request(
        row.get("method", "POST"),
        url + row["path"],
        params=[*map(tuple, row.get("query", ()))],
        headers=[*map(tuple, row.get("headers", ()))],
        timeout=60,
        **content,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "row", REQUESTS, ids=lambda row: f"{row['client']} {row.get('method', '')}{row['path']}"
)
def test_a_program_is_served_unchanged(household: Live, live: Live, row: dict[str, Any]) -> None:
    """Those that send neither key nor password, by a server without."""
    names = [name for name, _ in row.get("headers", ())]
    answer = sent((household if names else live).url, row)
    if row["expects"] == "not 404":
        assert answer.status_code == 400
        return
    assert answer.status_code == 200, answer.text
    match row["expects"]:
        case "status":
            pass
        case "preflight":
            assert answer.headers["access-control-allow-origin"] == "app://obsidian.md"
        case "json.data":
            assert {"id": "digits"}.items() <= answer.json()["data"][0].items()
        case "json.detected":
            assert answer.json()["language_code"] == "en" and answer.json()["detected_language"]
        case expects:
            assert said(answer, expects).strip() == WORDS


def test_each_program_has_its_row() -> None:
    page = (ROOT / "docs/connect.md").read_text()
    named = re.findall(r"^\| ([^|]+?) \|", page, re.M)[1:]
    assert not {row["client"] for row in REQUESTS} - set(named)
