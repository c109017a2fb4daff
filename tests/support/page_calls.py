"""The page's one call, as Gradio's clients make it."""

import json
import re
from pathlib import Path
from typing import Any

import httpx

from tests.support.live import Live

JSON = {"Content-Type": "application/json"}
META = {"_type": "gradio.FileData"}


def upload(client: httpx.Client, path: Path) -> dict[str, Any]:
    """A file as Gradio's clients send it: uploaded, then named."""
    answer = client.post("/gradio_api/upload", files={"files": (path.name, path.read_bytes())})
    answer.raise_for_status()
    return {"path": answer.json()[0], "orig_name": path.name, "meta": META}


def post(client: httpx.Client, body: object, path: str = "queue/join") -> httpx.Response:
    """`json.dumps` writes what httpx refuses: NaN, and texts that are not Unicode."""
    return client.post(f"/gradio_api/{path}", content=json.dumps(body), headers=JSON)


DEFAULTS: dict[str, Any] = {  # the arguments of the page's one call, in their order
    **dict(files=None, recording=None, language="", task="transcribe", words=False, prompt=""),
    **dict(model="digits", cache="", beams=1, temperature="", vad=False),
    **dict(diarize="", speakers=None, sentences=False, script="", channels="", hot_words=""),
}


def arguments(**options: Any) -> list[Any]:
    """The arguments of a call, of which some are given."""
    return list({**DEFAULTS, **options}.values())


def post_call(client: httpx.Client, *files: dict[str, Any], **options: Any) -> httpx.Response:
    """The page's one call."""
    data = arguments(**{"files": list(files), **options})
    return post(client, {"data": data}, "call/transcribe")


def call(client: httpx.Client, *files: dict[str, Any], **options: Any) -> tuple[str, Any]:
    """The last event of a call, and what it says."""
    begun = post_call(client, *files, **options)
    if begun.status_code == 400:
        return "error", begun.json()["detail"]
    event = begun.json()["event_id"]
    answer = client.get(f"/gradio_api/call/transcribe/{event}", timeout=60)
    *_, last = re.findall(r"event: (\w+)\ndata: (.*)\n", answer.text)
    return last[0], json.loads(last[1])


def clear_page(live: Live) -> None:
    """Remove all that a page keeps."""
    page = live.server._page
    assert page is not None
    for upload in list(page.uploads.entries.values()):
        page.uploads.drop(upload)
    for result in list(page.results.entries.values()):
        page.results.drop(result)
