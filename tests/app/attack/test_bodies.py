"""Bodies: nothing is read for those who may not send it, and no more than the path takes."""

import gc
import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from unittest.mock import Mock, patch

import httpx
import pytest
from gradio.route_utils import GradioUploadFile
from starlette.datastructures import UploadFile

from slimwhisper.app.api import errors
from slimwhisper.audio_formats.readers import Readers
from slimwhisper.errors import StorageError
from tests.support.harm import unnamed_bytes
from tests.support.live import Live, connected, eventually, held_engines
from tests.support.page_calls import JSON, clear_page
from tests.support.paths import PHONE

FORM = "multipart/form-data; boundary=x"
KIND, LONG = ("Content-Type", FORM), ("Content-Length", "5000000000")
CHUNKED = ("Transfer-Encoding", "chunked")
PART = '--x\r\nContent-Disposition: form-data; name="%s"'
SPEECH = "/v1/audio/transcriptions"
FORMS = (SPEECH, "/v1/audio/translations", "/inference", "/asr", "/login", "/gradio_api/upload")
OF_THE_PAGE = (
    *("/gradio_api/upload", "/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset"),
    *("/page/live/key", "/page/live/transcript.srt", "/page/edit/x"),
)
# Gradio's, which its page does not need
CLOSED = (
    *("/gradio_api/component_server", "/gradio_api/stream/x", "/gradio_api/run/transcribe"),
    *("/gradio_api/api/transcribe", "/gradio_api/process_recording", "/gradio_api/vibe-edit"),
)
CLOSED_PAGES = ("/pwa_icon/16", "/monitoring", "/gradio_api/openapi.json")
# Gradio keeps a session for each
READS = ("heartbeat/x", "app_id", "startup-events", "queue/data?session_hash=x", "info")


def headers_only(live: Live, path: str, *headers: tuple[str, str]) -> tuple[int, str]:
    """Status and text of the answer to a request whose body never comes."""
    connection = HTTPConnection(live.url.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", path)
    for header in headers:
        connection.putheader(*header)
    connection.endheaders()
    with closing(connection), connection.getresponse() as response:
        return response.status, response.read().decode()


def test_forms_in_other_charsets_are_refused_before_they_come(keyed: Live, keyless: Live) -> None:
    """A codec whose time grows with the square of the length would stop the whole server."""
    for charset in ("punycode", "idna", "undefined", "latin-1", "UTF-16", '"punycode"', "utf-7"):
        kind = ("Content-Type", f"{FORM}; charset={charset}")
        for path in FORMS:
            status, said = headers_only(keyless, path, kind, LONG)
            assert status == 415 and "send utf-8" in said, (path, charset, said)
        assert headers_only(keyless, SPEECH, KIND, kind, LONG)[0] == 415
    for charset in ("utf-8", "UTF-8", "utf8"):
        headers = {"Content-Type": f"{FORM}; charset={charset}"}
        for url in (server.url + path for server in (keyed, keyless) for path in FORMS):
            answer = httpx.post(url, content=f"{PART % 'username'}\r\n\r\na\r\n", headers=headers)
            assert answer.status_code != 415, answer.text
    # that of a part is not used
    head = f"{PART % 'model'}\r\nContent-Type: text/plain; charset=punycode\r\n\r\n"
    content = f"{head}{'a' * 1_000_000}\r\n--x--\r\n"  # as punycode, more than a minute
    answer = httpx.post(keyless.url + SPEECH, content=content, headers=dict([KIND]), timeout=20)
    assert answer.status_code == 400 and "send an audio file" in answer.text


def test_no_body_is_read_without_a_login_or_the_key(keyed: Live, keyless: Live) -> None:
    for path in OF_THE_PAGE:
        for kind in (KIND, ("Content-Type", "application/json")):
            for length in (LONG, CHUNKED):
                assert headers_only(keyed, path, kind, length)[0] == 401, path
    for path in (SPEECH, "/inference", "/v1/x", *CLOSED):
        status, said = headers_only(keyed, path, LONG)
        assert status == 401 and '"invalid_api_key"' in said, path
    for read in READS:
        assert httpx.get(f"{keyed.url}/gradio_api/{read}").status_code == 401, read
    # what the page does not need is closed to all
    assert {headers_only(keyless, path, LONG)[0] for path in CLOSED} == {404}
    assert {httpx.get(keyless.url + path).status_code for path in CLOSED_PAGES} == {404}


def test_limits_of_bodies_without_files(keyless: Live) -> None:
    """Small ones; the texts of the page have room."""

    def pieces() -> Iterator[bytes]:  # no Content-Length
        yield f'{PART % "a"}; filename="b"\r\n\r\n'.encode()
        yield from [b"[" * 100_000] * 20

    for path, size in (
        ("/login", "0.01"),  # which anyone may send
        *(("/gradio_api/queue/join", "1"), ("/gradio_api/cancel", "1")),
        ("/v1/realtime/client_secrets", "1"),
    ):
        kind = dict([KIND]) if path == "/login" else JSON
        for content in (b"[" * 2_000_000, pieces()):
            answer = httpx.post(keyless.url + path, content=content, headers=kind, timeout=20)
            assert answer.status_code == 413
            assert f"larger than the limit of {size} MB" in answer.text
    url = f"{keyless.url}/page/edit/{'x' * 32}"
    for length, status in ((7_000_000, (400, 404, 422)), (9_000_000, (413,))):
        answer = httpx.post(url, content=b" " * length, headers=JSON, timeout=20)
        assert answer.status_code in status, answer.text


def test_a_client_that_leaves_is_no_error(keyless: Live, quiet: None) -> None:
    part = f'{PART % "files"}; filename="a.wav"\r\n\r\n'
    for path in (SPEECH, "/gradio_api/upload", "/login"):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\n"
        sent = f"{head}Content-Length: 900000\r\n\r\n{part}".encode() + b"x" * 200_000
        for _ in range(10):
            connected(keyless, sent).close()
    assert httpx.get(f"{keyless.url}/health").status_code == 200


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_client_that_leaves_after_its_upload(
    keyless: Live, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is closed at once, not when Python happens to look for cycles."""
    before, files = unnamed_bytes(), {"file": PHONE.read_bytes()}
    sent = httpx.Request("POST", keyless.url, data={"stream": stream}, files=files)
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items())
    go = held_engines(monkeypatch, 0.01)
    gc.disable()
    try:
        with ExitStack() as clients:
            data = f"POST {SPEECH} HTTP/1.1\r\n{head}\r\n".encode() + sent.read()
            for client in [clients.enter_context(connected(keyless, data)) for _ in range(4)]:
                if stream == "true":
                    assert client.recv(1)
            assert eventually(lambda: keyless.service.in_flight == 4)
        assert eventually(lambda: unnamed_bytes() <= before)
    finally:
        gc.enable()
        go.set()


FULL = OSError(28, "No space left on device")
UNREAD = StorageError("a.wav: no space for its samples in /secret")


@pytest.mark.parametrize(
    ("path", "field", "method", "error"),
    [
        (SPEECH, "file", (UploadFile, "write"), FULL),
        (SPEECH, "file", (Readers, "read"), UNREAD),
        ("/gradio_api/upload", "files", (GradioUploadFile, "write"), FULL),
    ],
)
def test_a_full_disk_is_reported(
    keyless: Live,
    path: str,
    field: str,
    method: tuple[type, str],
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For what is sent, and for the samples of what was sent."""

    def sent() -> httpx.Response:
        return keyless.post(path, files={field: ("a.wav", PHONE.read_bytes())})

    with patch.object(*method, Mock(side_effect=error)):
        answer = sent()
    assert answer.status_code == 507 and answer.json()["error"]["code"] == "disk_full"
    assert "try again later" in answer.text and answer.headers["Retry-After"]
    (record,) = (r for r in caplog.records if r.levelno >= logging.ERROR)
    assert "the disk is full" in record.getMessage() and record.exc_info is None
    with patch.object(errors, "MIN_FREE", 1 << 60):
        health = httpx.get(f"{keyless.url}/health")
        assert health.status_code == 503 and health.json() == {"status": "disk_full"}
        assert sent().status_code == 507, "nothing is written to it"
    assert sent().status_code == 200
    clear_page(keyless)
