"""Programs that people connect: their requests, as they send them, and what they read of answers.

`clients.toml` has them, with the sources where they were read; docs/connect/programs.md has a row
for each.
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
from tests.support.live import start, stop
from tests.support.paths import ROOT
from tests.support.spoken import EXPECTED, SAMPLES

DOOR = SAMPLES / "door-code.mp3"
REQUESTS = tomllib.loads(Path(__file__).with_name("clients.toml").read_text())["request"]
KEY = "KEY"  # in the requests, and of the server


@pytest.fixture(scope="module")
def servers(model: SlimWhisper) -> Iterator[list[str]]:
    """The addresses of one without a key and of one with it, as docs/connect/programs.md starts
    them: for any model's name, and for apps.
    """
    allowed = ("app://obsidian.md", "tauri://localhost")
    access: tuple[dict[str, Any], ...] = ({}, {"api_key": KEY, "login": ("u", "p")})
    running = [start(model, strict=False, allow_origins=allowed, **more) for more in access]
    yield [live.url for live in running]
    for live in running:
        stop(live)


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
            last = answer.text.partition("event: transcript.text.done\ndata: ")[2]
            return str(json.loads(last.partition("\n")[0])["text"])
        case "text":
            return " ".join(answer.text.split())
    raise AssertionError(expects)


def sent(url: str, row: dict[str, Any]) -> httpx.Response:
    """The answer to a request with its fields in their order."""
    data, body = DOOR.read_bytes(), row.get("body", "form")
    if body == "pcm":
        data = (load_audio(str(DOOR)) * 32767).astype("<i2").tobytes()
    kind = [row["content_type"]] if row.get("content_type") else []
    part = (row.get("filename", "audio.wav"), data, *kind)
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
def test_a_program_is_served_unchanged(servers: list[str], row: dict[str, Any]) -> None:
    """Those that upload without key and password, by a server without."""
    names = {name for name, _ in row.get("headers", ())}
    keyed = "method" in row or bool({"Authorization", "api-key"} & names)
    answer = sent(servers[keyed], row)
    if row["expects"] in ("not 404", "any"):
        assert row["expects"] == "any" or answer.status_code not in (401, 404)
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
            assert said(answer, expects).strip() == EXPECTED[DOOR.name]["text"]


def test_each_program_has_its_row() -> None:
    page = (ROOT / "docs/connect/programs.md").read_text()
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    assert not {row["client"] for row in REQUESTS if row["client"] not in table}
