"""Jobs for which no client waits: `Prefer: respond-async`."""

import asyncio
import base64
import errno
import hmac
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from starlette.datastructures import UploadFile

from slimwhisper.app.api import background
from slimwhisper.app.api.request import TranscriptionRequest
from slimwhisper.app.api.respond import Client, PendingTranscription
from slimwhisper.app.command import claim_results
from slimwhisper.app.service.jobs import JobStarted, Limits
from slimwhisper.errors import OptionError
from tests.support.live import Begin, Live, eventually, held_engines, stop
from tests.support.paths import BROKEN, PHONE
from tests.support.refusals import TABLES
from tests.support.service_jobs import DIGITS

ASYNC = {"Prefer": "respond-async", "Authorization": "Bearer k"}


@pytest.fixture
def calls() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]], Event]]:
    """The address of a server that is told of jobs, what it was told: headers and body, and whether
    its answer was ended by the client.
    """
    told: list[tuple[dict[str, str], bytes]] = []
    ended = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.append((dict(self.headers), body))
            self.send_response(302)  # is not followed
            self.send_header("location", "/other")
            self.end_headers()
            with suppress(ConnectionError):  # the answer has no end
                while self.wfile.write(bytes(1 << 16)):
                    pass
            ended.set()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/done?key=secret", told, ended
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


def test_a_job_is_as_a_request_that_waits(
    begin: Begin, tmp_path: Path, calls: Any, caplog: pytest.LogCaptureFixture
) -> None:
    address, told, gone = calls
    live = begin(results=tmp_path, api_key="k", allow_webhooks=("127.0.0.1",))
    for format in ("verbose_json", "srt"):
        given = {"response_format": format}
        answer = submit(live, webhook=address, unknown="1", **given)
        job = answer.json()["id"]
        assert (answer.status_code, answer.json()["status"]) == (202, "queued")
        assert answer.headers["location"] == f"/v1/audio/transcriptions/{job}"
        done = ended(live, job)
        waited = submit(live, prefer="", **given)  # not in one batch, which rounds otherwise
        expected = waited.json() if format == "verbose_json" else waited.text
        assert done["result"] == expected and done["progress"] == 1.0
        assert (head := state(live, job, "HEAD")).status_code == 200 and not head.content
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
    assert gone.wait(5) and eventually(lambda: "webhook of job" in caplog.text)
    assert "status 302" in caplog.text and "secret" not in caplog.text


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


def test_a_cancellation_beside_an_event_is_not_lost() -> None:
    """Else what deletes a job waits until it has been transcribed."""

    async def cancelled(after: int) -> bool:
        with PHONE.open("rb") as file:
            asked = TranscriptionRequest(UploadFile(file), "json", DIGITS, "digits", [], [])
            pending = PendingTranscription(Mock(), Client("ann"), asked)
        waits = asyncio.create_task(pending.next())
        await asyncio.sleep(0.01)
        pending.job.emit(JobStarted(1.0))
        for _ in range(after):
            await asyncio.sleep(0)
        asks = waits.cancel()
        await asyncio.wait([waits])
        return waits.cancelled() == asks

    assert all(asyncio.run(cancelled(after)) for after in range(8))


def test_refused(begin: Begin, tmp_path: Path) -> None:
    live = begin(results=tmp_path, api_key="k", allow_webhooks=("127.0.0.1",))
    for fields, message in TABLES["background"]:
        answer = submit(live, **fields)
        assert answer.status_code == 400 and message in answer.json()["error"]["message"]
    assert not list(tmp_path.iterdir())
    late = ended(live, submit(live, language="klingon").json()["id"])  # once the file is read
    assert "klingon" in late["error"]["message"]


def test_a_full_disk(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays of a request that is refused; a result is stored later. A job that ends by an
    error that nobody foresaw leaves the queue.
    """
    live, write, full = begin(results=tmp_path), background.atomic_write, [background.FORM]

    def writes(path: Path, **how: Any) -> Any:
        if path.name in full:
            raise OSError(errno.ENOSPC, full.pop())
        return write(path, **how)

    monkeypatch.setattr(background, "atomic_write", writes)
    monkeypatch.setattr(background, "FULL", 0.2)
    assert submit(live).status_code == 507 and not list(tmp_path.iterdir())
    full.append(background.RESULT)
    assert ended(live, submit(live).json()["id"])["status"] == "completed" and not full
    monkeypatch.setattr(background.Background, "_finish", None)
    job = submit(live).json()["id"]
    assert eventually(lambda: state(live, job).status_code == 404)


def test_what_else_is_in_the_folder(begin: Begin, tmp_path: Path) -> None:
    """It is left alone, and no link is followed. A job whose files are damaged fails."""
    mine, results = tmp_path / "mine", tmp_path / "results"
    for folder in (mine, results / "mine", results / ("a" * 32)):
        folder.mkdir(parents=True)
        (folder / background.FORM).write_text("{")
    for folder in (mine, results / "mine"):
        (folder / background.RESULT).write_text("{}")
    (results / ("b" * 32)).symlink_to(mine)
    (results / ("c" * 32)).mkdir()
    live = begin(results=results, keep_results=0.5)
    assert eventually(lambda: state(live, "a" * 32).json().get("status") == "failed")
    assert eventually(lambda: not (results / ("c" * 32)).exists()), "it was never whole"
    for name in ("b" * 32, "c" * 32, "0" * 32, "mine", "..%2fmine", "%2e%2e"):
        assert state(live, name).status_code == state(live, name, "DELETE").status_code == 404
    stop(live)
    stop(begin(results=results, keep_results=1e-3))
    assert [len(list(folder.iterdir())) for folder in (mine, results / "mine")] == [2, 2]


def test_who_waits_first(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the queue is for who waits, and all slots when the server stops. The next server goes
    on with the jobs.
    """
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(background, "STORING", 0.1)
        live = begin(limits=Limits(queue=2), results=tmp_path, patience=60.0)
        go = held_engines(patched, seconds=0.05)
        jobs = [submit(live, prefer="wait=1, Respond-Async").json()["id"] for _ in range(2)]
        assert submit(live).status_code == 429
        assert eventually(lambda: state(live, jobs[0]).json()["status"] == "in_progress")
        waits = pool.submit(submit, live, prefer="")
        assert eventually(lambda: live.service.in_flight == 2)
        live.server.handle_exit(2, None)
        assert eventually(lambda: live.service.in_flight == 1)
        states = [state(live, job).json()["status"] for job in jobs]
        assert states == ["in_progress", "queued"], "they are not lost"
        go.set()
        assert waits.result().status_code == 200
        stop(live)
    live = begin(results=tmp_path)
    assert [ended(live, job)["status"] for job in jobs] == ["completed"] * 2


def test_no_patience(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Any
) -> None:
    """Jobs of a server that stops at once have not failed: the next one goes on with them. So it is
    with webhooks.
    """
    hooked = partial(begin, results=tmp_path, allow_webhooks=("127.0.0.1",))
    live, go = hooked(patience=0.0), held_engines(monkeypatch, seconds=0.05)
    job = submit(live, webhook=calls[0]).json()["id"]
    assert eventually(lambda: state(live, job).json()["status"] == "in_progress")
    live.server.handle_exit(2, None)
    stop(live)
    go.set()
    with monkeypatch.context() as slow:
        slow.setattr(background.Background, "_call", lambda *_: asyncio.sleep(60))
        slow.setattr(background, "STORING", 0.1)
        live = hooked()
        assert ended(live, job)["status"] == "completed"
        stop(live)
    assert ended(hooked(), job)["status"] == "completed" and eventually(lambda: bool(calls[1]))


def test_one_server_a_folder(tmp_path: Path) -> None:
    claim_results(results := tmp_path / "results")
    assert results.stat().st_mode & 0o777 == 0o700, "the names of jobs are secrets"
    with pytest.raises(OptionError, match="another server uses it"):
        claim_results(results)


def test_a_server_without_results(live: Live) -> None:
    assert (waited := submit(live)).json()["text"], "a preference may be ignored"
    assert "server with --results DIR" in waited.headers["X-Slimwhisper-Warning"]
