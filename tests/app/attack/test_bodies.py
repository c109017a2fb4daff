"""Bodies: nothing is read for those who may not send it, and no more than the path takes."""

import logging
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import httpx
import pytest
from starlette.datastructures import UploadFile

from slimwhisper.app.api import errors
from tests.support.live import Live, connected
from tests.support.spoken import SAMPLES

PHONE = SAMPLES / "phone-number.wav"
FORM = "multipart/form-data; boundary=x"
LONG = ("Content-Length", "5000000000")
FIELD = b'--x\r\nContent-Disposition: form-data; name="username"\r\n\r\n%b\r\n--x--\r\n'
FORMS = ("/login", "/v1/audio/transcriptions", "/v1/audio/translations", "/inference")
OF_THE_PAGE = (
    *("/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset"),
    *("/page/live/key", "/page/live/transcript.srt", "/page/edit/x"),
)
CLOSED = (
    *("/gradio_api/component_server", "/gradio_api/stream/x", "/gradio_api/run/transcribe"),
    *("/gradio_api/api/transcribe", "/gradio_api/process_recording", "/gradio_api/vibe-edit"),
)


def headers_only(live: Live, path: str, *headers: tuple[str, str]) -> tuple[int, str]:
    """Status and text of the answer to a request whose body never comes."""
    connection = HTTPConnection(live.url.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", path)
    for header in headers:
        connection.putheader(*header)
    connection.endheaders()
    with closing(connection), connection.getresponse() as response:
        return response.status, response.read().decode()


@pytest.mark.parametrize("path", [*FORMS, "/gradio_api/upload"])
def test_forms_in_other_charsets_are_refused_before_they_come(
    keyed: Live, keyless: Live, path: str
) -> None:
    """A codec whose time grows with the square of the length would stop the whole server."""
    for charset in ("punycode", "idna", "undefined", "latin-1", "UTF-16", '"punycode"', "utf-7"):
        kind = ("Content-Type", f"{FORM}; charset={charset}")
        status, said = headers_only(keyless, path, kind, LONG)
        assert status == 415 and "send utf-8" in said, (charset, said)
    kinds = (("Content-Type", FORM), ("Content-Type", f"{FORM}; charset=punycode"))
    assert headers_only(keyless, path, *kinds, LONG)[0] == 415
    for server in (keyed, keyless):
        for charset in ("utf-8", "UTF-8", "utf8"):
            headers = {"Content-Type": f"{FORM}; charset={charset}"}
            answer = httpx.post(server.url + path, content=FIELD % b"a", headers=headers)
            assert answer.status_code != 415, answer.text


def test_the_charset_of_a_part_is_not_used(keyless: Live) -> None:
    kind = "Content-Type: text/plain; charset=punycode"
    body = f'--x\r\nContent-Disposition: form-data; name="model"\r\n{kind}\r\n\r\n%b\r\n--x--\r\n'
    url = f"{keyless.url}/v1/audio/transcriptions"
    content = body.encode() % (b"a" * 1_000_000)  # as punycode, more than a minute
    answer = httpx.post(url, content=content, headers={"Content-Type": FORM}, timeout=20)
    assert answer.status_code == 400 and "send an audio file" in answer.text


@pytest.mark.parametrize("path", OF_THE_PAGE)
def test_no_body_is_read_without_a_login(keyed: Live, path: str) -> None:
    for kind in ("application/json", FORM):
        for length in (LONG, ("Transfer-Encoding", "chunked")):
            assert headers_only(keyed, path, ("Content-Type", kind), length)[0] == 401


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/inference", "/v1/x", *CLOSED])
def test_no_body_is_read_without_the_key(keyed: Live, path: str) -> None:
    status, said = headers_only(keyed, path, LONG)
    assert status == 401 and '"invalid_api_key"' in said


@pytest.mark.parametrize("path", CLOSED)
def test_routes_that_the_page_does_not_need_are_closed(keyless: Live, path: str) -> None:
    assert headers_only(keyless, path, LONG)[0] == 404


@pytest.mark.parametrize("path", ["/pwa_icon/16", "/monitoring", "/gradio_api/openapi.json"])
def test_pages_that_nobody_needs_are_closed(keyless: Live, path: str) -> None:
    assert httpx.get(keyless.url + path).status_code == 404


def test_heartbeats_need_a_login(keyed: Live) -> None:
    """Gradio keeps a session for each."""
    for route in ("heartbeat/x", "app_id", "startup-events", "queue/data?session_hash=x", "info"):
        answer = httpx.get(f"{keyed.url}/gradio_api/{route}")
        assert answer.status_code == 401, route


@pytest.mark.parametrize(
    "path",
    ["/login", "/gradio_api/queue/join", "/gradio_api/cancel", "/v1/realtime/client_secrets"],
)
def test_a_small_limit_for_bodies_without_files(keyless: Live, path: str) -> None:
    url, kind = keyless.url + path, {"Content-Type": "application/json"}
    if path == "/login":
        kind = {"Content-Type": FORM}

    def pieces() -> Iterator[bytes]:  # no Content-Length
        yield b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n'
        for _ in range(20):
            yield b"[" * 100_000

    for content in (b"[" * 2_000_000, pieces()):
        answer = httpx.post(url, content=content, headers=kind, timeout=20)
        assert answer.status_code == 413 and "larger than the limit of 1 MB" in answer.text


def test_the_texts_of_the_page_have_room(keyless: Live) -> None:
    headers = {"Content-Type": "application/json"}
    for size, status in ((7_000_000, (400, 404, 422)), (9_000_000, (413,))):
        url = f"{keyless.url}/page/edit/{'x' * 32}"
        answer = httpx.post(url, content=b" " * size, headers=headers, timeout=20)
        assert answer.status_code in status, answer.text


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/gradio_api/upload", "/login"])
def test_a_client_that_leaves_is_no_error(
    keyless: Live, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\n"
    part = '--x\r\nContent-Disposition: form-data; name="files"; filename="a.wav"\r\n\r\n'
    sent = f"{head}Content-Length: 900000\r\n\r\n{part}".encode() + b"x" * 200_000
    for _ in range(20):
        connected(keyless, sent).close()
    assert httpx.get(f"{keyless.url}/health").status_code == 200
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/inference"])
def test_a_full_disk_is_said(
    keyless: Live, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(self: UploadFile, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(UploadFile, "write", full)
        files = {"file": PHONE.read_bytes()}
        answer = httpx.post(keyless.url + path, files=files)
        assert answer.status_code == 507 and answer.json()["error"]["code"] == "disk_full"
        assert "try again later" in answer.text and answer.headers["Retry-After"]
        (record,) = (r for r in caplog.records if r.levelno >= logging.ERROR)
        assert "the disk is full" in record.getMessage() and record.exc_info is None
        patched.setattr(errors, "LEAST_FREE", 1 << 60)
        health = httpx.get(f"{keyless.url}/health")
        assert health.status_code == 503 and health.json() == {"status": "disk_full"}
        answer = httpx.post(keyless.url + path, files=files)
        assert answer.status_code == 507, "nothing is written to a disk that is nearly full"
    assert httpx.post(keyless.url + path, files=files).status_code == 200
