"""The page's one call, as Gradio's clients make it."""

import json
import re
from pathlib import Path
from typing import Any

import httpx

from tests.support.paths import SAMPLES

PHONE = SAMPLES / "phone-number.wav"


def upload(client: httpx.Client, path: Path) -> dict[str, Any]:
    """A file as Gradio's clients send it: uploaded, then named."""
    answer = client.post("/gradio_api/upload", files={"files": (path.name, path.read_bytes())})
    answer.raise_for_status()
    meta = {"_type": "gradio.FileData"}
    return {"path": answer.json()[0], "orig_name": path.name, "meta": meta}


def call_begins(client: httpx.Client, *files: dict[str, Any], **options: Any) -> str:
    """The page's one call; the name under which its events are told."""
    given = {
        **dict(files=list(files), recording=None, language="", task="transcribe", words=False),
        **dict(prompt="", model="digits", cache="", beams=1, temperature="", vad=False),
        **dict(diarize="", speakers=None, sentences=False, check=False),
    }
    data = list((given | options).values())
    answer = client.post("/gradio_api/call/transcribe", json={"data": data})
    return str(answer.json()["event_id"])


def call(client: httpx.Client, *files: dict[str, Any], **options: Any) -> tuple[str, Any]:
    """The last event of a call, and what it says."""
    event = call_begins(client, *files, **options)
    answer = client.get(f"/gradio_api/call/transcribe/{event}", timeout=60)
    *_, last = re.findall(r"event: (\w+)\ndata: (.*)\n", answer.text)
    return last[0], json.loads(last[1])
