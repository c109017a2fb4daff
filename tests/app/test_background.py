"""Jobs for which no client waits: `Prefer: respond-async`."""

import base64
import hmac
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from slimwhisper.app.api import background
from slimwhisper.app.command import claim_results
from slimwhisper.errors import OptionError
from tests.support.live import Begin, Live, eventually, held_engines, stop
from tests.support.paths import BROKEN, SAMPLES

PHONE = SAMPLES / "phone-number.wav"
ASYNC = {"Prefer": "respond-async", "Authorization": "Bearer k"}


@pytest.fixture
def calls() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """The address of a server that is told of jobs, and what it was told: headers and body."""
    told: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.append((dict(self.headers), body))
            self.send_response(302)  # is not followed
            self.send_header("location", "/other")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/done", told
    server.shutdown()
    server.server_close()


def submit(
    live: Live, path: Path = PHONE, prefer: str = "respond-async", **fields: str
) -> httpx.Response:
    file = (path.name, path.read_bytes())
    return live.post(files={"file": file}, data=fields, headers={**ASYNC, "Prefer": prefer})


def state(live: Live, job: str, method: str = "GET") -> httpx.Response:
    url = f"{live.url}/v1/audio/transcriptions/{job}"
    return httpx.request(method, url, headers=ASYNC, timeout=60)


def ended(live: Live, job: str) -> dict[str, Any]:
    assert eventually(lambda: state(live, job).json()["status"] not in ("queued", "in_progress"))
    return dict(state(live, job).json())


def test_a_job_is_as_a_request_that_waits(begin: Begin, tmp_path: Path, calls: Any) -> None:
    address, told = calls
    live = begin(results=tmp_path, api_key="k", allow_webhooks=("127.0.0.1",))
    for format in ("verbose_json", "srt"):
        given = {"response_format": format}
        answer = submit(live, webhook=address, unknown="1", **given)
        job = answer.json()["id"]
        assert (answer.status_code, answer.json()["status"]) == (202, "queued")
        assert answer.headers["location"] == f"/v1/audio/transcriptions/{job}"
        waited = submit(live, prefer="", **given)
        done = ended(live, job)
        expected = waited.json() if format == "verbose_json" else waited.text
        assert done["result"] == expected and done["progress"] == 1.0
        assert 'unknown field "unknown"' in done["headers"]["x-slimwhisper-warning"]
        assert not list(tmp_path.rglob(background.UPLOAD)), "recordings are not kept"
        assert eventually(lambda: bool(told))
        headers, body = told.pop()
        assert json.loads(body)["result"] == expected
        names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        identity, when, signature = (headers[name] for name in names)
        digest = hmac.digest(b"k", f"{identity}.{when}.".encode() + body, "sha256")
        assert (identity, signature) == (job, f"v1,{base64.b64encode(digest).decode()}")
        assert state(live, job, "DELETE").status_code == 204 and not list(tmp_path.iterdir())
    assert not told, "told once each, and no other address"


def test_jobs_survive_a_restart(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        held_engines(patched, seconds=1)
        live = begin(results=tmp_path, patience=0.0)
        jobs = [submit(live).json()["id"] for _ in range(2)]
        assert eventually(lambda: state(live, jobs[0]).json()["status"] == "in_progress")
        live.server.handle_exit(2, None)
        stop(live)
    live = begin(results=tmp_path)
    assert [ended(live, job)["status"] for job in jobs] == ["completed"] * 2


def test_what_ends_a_job(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = begin(results=tmp_path, keep_results=3600.0)
    broken = ended(live, submit(live, BROKEN).json()["id"])
    assert broken["status"] == "failed" and "broken.m4a" in broken["error"]["message"]
    with monkeypatch.context() as patched:
        go = held_engines(patched)
        job = submit(live).json()["id"]
        assert eventually(lambda: live.service.in_flight == 1)
        assert state(live, job, "DELETE").status_code == 204
        go.set()
        assert eventually(lambda: not live.service.in_flight)
    assert state(live, job).status_code == 404
    stop(live)
    live = begin(results=tmp_path, keep_results=1e-3)
    assert eventually(lambda: not list(tmp_path.iterdir())), "old results are removed"


def test_refused(begin: Begin, tmp_path: Path) -> None:
    live = begin(results=tmp_path, api_key="k", allow_webhooks=("127.0.0.1",))
    wrong = [({"stream": "true"}, "leave stream out"), ({"temperature": "7"}, "temperature")]
    for url in (
        *("http://other.example/", "ftp://127.0.0.1/", "http://127.0.0.1@other.example/"),
        *("http://127.0.0.1.other.example", "http://[::1", "x"),
    ):
        wrong.append(({"webhook": url}, "--allow_webhook"))
    for fields, message in wrong:
        answer = submit(live, **fields)
        assert answer.status_code == 400 and message in answer.json()["error"]["message"]
    assert not list(tmp_path.iterdir())
    late = ended(live, submit(live, language="klingon").json()["id"])  # once the file is read
    assert "klingon" in late["error"]["message"]


def test_one_server_a_folder(tmp_path: Path) -> None:
    claim_results(tmp_path)
    with pytest.raises(OptionError, match="another server uses it"):
        claim_results(tmp_path)


def test_unknown_jobs_and_servers_without(begin: Begin, live: Live, tmp_path: Path) -> None:
    assert submit(live).json()["text"], "a preference may be ignored"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / background.FORM).touch()
    having = begin(results=tmp_path / "results")
    for job in ("0" * 32, "other", "..%2fother", "%2e%2e"):
        assert state(having, job).status_code == state(having, job, "DELETE").status_code == 404
    assert (tmp_path / "other").exists()
