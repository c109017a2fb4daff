"""What no client would send: the server answers with the right status, and nothing stays behind."""

import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import slimwhisper
from slimwhisper.app.service.jobs import Limits
from tests.support.harm import open_files
from tests.support.live import Live, connected, eventually, start, stop
from tests.support.spoken import SAMPLES

SHORT = [SAMPLES / n for n in ("door-code.mp3", "flight.m4a", "parcel.ogg", "phone-number.wav")]
ROUTE = "/v1/audio/transcriptions"
FIELDS = ("model", "language", "prompt", "response_format", "temperature", "stream", "file", "x")
VALUES = (
    *("", "0", "-1", "1e999", "nan", "en", "xx", "whisper-1", "digits", "srt", "json", "true"),
    *("\x00", "\ud7ff" * 50, "%s%n", "../../etc/passwd", "'; --", "[]", "{}", "a" * 70_000),
)
NAMES = ("a.mp3", "", "\x00.wav", "a" * 500, "../x.mp3", "ü.mp3", "a\r\nb")
FORM = "multipart/form-data"
KINDS = ("", FORM, f"{FORM}; boundary=", "text/plain", "a/b;c")

# Starlette leaves the file of a part that never ended to the garbage collector, which closes it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    running = start(slimwhisper.load_model("digits"), Limits(seconds=600, reading=20))
    yield running
    stop(running)


@pytest.fixture(autouse=True)
def nothing_stays_behind(live: Live) -> Iterator[None]:
    """The service is idle and well afterwards, without more open files than before."""
    before, opened = answered(live), open_files()
    yield
    assert eventually(lambda: live.service.in_flight == 0)
    assert answered(live) == before
    assert eventually(lambda: live.service.in_flight == 0 and open_files() <= opened + 2)


def answered(live: Live) -> str:
    found = live.post(files={"file": SHORT[0].read_bytes()})
    assert found.status_code == 200
    return str(found.json()["text"])


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut out, doubled or cut off."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 3, 30, 300])):
        at = rng.randrange(len(found))
        match rng.randrange(5):
            case 0 | 1:
                found[at] = rng.randrange(256)
            case 2:
                del found[at : at + rng.randrange(1, 200)]
            case 3:
                found[at:at] = found[at : at + rng.randrange(1, 200)]
            case _:
                found[at : at + 4] = rng.choice(
                    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)]
                )
        if len(found) < 8:
            break
    if rng.random() < 0.2:
        del found[rng.randrange(len(found)) :]
    return bytes(found)


@pytest.mark.parametrize(
    "path",
    [SHORT[0], *(pytest.param(path, marks=pytest.mark.slow) for path in SHORT[1:])],
    ids=lambda path: path.suffix,
)
def test_mutated_audio(live: Live, path: Path) -> None:
    rng = random.Random(path.name)
    data = path.read_bytes()
    statuses = set()
    with httpx.Client(base_url=live.url, timeout=120) as client:
        for _ in range(16):
            files = {"file": (f"a{path.suffix}", mutated(data, rng))}
            found = client.post(ROUTE, files=files)
            assert found.status_code in (200, 400), found.text
            body = found.json()
            if found.status_code == 400:
                assert body["error"]["message"].startswith(f"a{path.suffix}: ")
                assert body["error"]["type"] == "invalid_request_error"
                assert "/proc" not in found.text and "/tmp" not in found.text
            else:
                assert isinstance(body["text"], str)
            statuses.add(found.status_code)
    assert statuses == {200, 400}  # some can still be read, some cannot


def test_mutated_fields(live: Live) -> None:
    rng = random.Random(1)
    data = SHORT[0].read_bytes()
    statuses: dict[int, int] = {}
    with httpx.Client(base_url=live.url, timeout=120) as client:
        for _ in range(60):
            parts: list[tuple[str, tuple[str | None, bytes]]] = [
                (rng.choice(FIELDS), (None, rng.choice(VALUES).encode("utf-8", "ignore")))
                for _ in range(rng.randrange(6))
            ]
            if rng.random() < 0.7:
                name = rng.choice(NAMES)
                content = data if rng.random() < 0.6 else rng.randbytes(rng.randrange(2000))
                parts.append(("file", (name, content)))
            found = client.post(ROUTE, files=parts or {"x": b""})
            assert found.status_code in (200, 400, 404, 413, 415), (found.text, parts)
            if found.status_code != 200:
                assert set(found.json()["error"]) == {"message", "type", "param", "code"}
            statuses[found.status_code] = statuses.get(found.status_code, 0) + 1
    assert statuses[200] and statuses[400] and statuses[404]


def test_mutated_forms(live: Live) -> None:
    """The multipart body itself, and its header."""
    rng = random.Random(2)
    request = httpx.Request(
        "POST", live.url, files={"file": SHORT[0].read_bytes()}, data={"a": "b"}
    )
    whole = request.read()
    kind = request.headers["content-type"]
    with httpx.Client(base_url=live.url, timeout=120) as client:
        for _ in range(40):
            body = whole[:200] + mutated(whole[200:], rng) if rng.random() < 0.3 else whole
            head = mutated(body[:200], rng) + body[200:] if rng.random() < 0.8 else body
            given = kind if rng.random() < 0.8 else rng.choice(KINDS)
            found = client.post(ROUTE, content=head, headers={"content-type": given})
            assert found.status_code in (200, 400, 404, 415), found.text
            if found.status_code != 200:
                assert found.json()["error"]["message"]


def request_head(live: Live, length: int) -> bytes:
    lines = (
        f"POST {ROUTE} HTTP/1.1",
        f"Host: {live.url.removeprefix('http://')}",
        "Content-Type: multipart/form-data; boundary=B",
        f"Content-Length: {length}",
        "",
        '--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n',
    )
    return "\r\n".join(lines).encode()


def test_uploads_that_end_early(live: Live) -> None:
    """`nothing_stays_behind` looks at the server afterwards."""
    for _ in range(30):
        with connected(live, request_head(live, 1 << 20) + bytes(3000)):
            pass


def test_uploads_that_trickle_hold_nobody_up(live: Live) -> None:
    """A hundred clients that send a byte now and then, while others are served."""
    slow = [connected(live) for _ in range(100)]
    try:
        for client in slow:
            client.sendall(request_head(live, 1 << 20))
        for _ in range(3):
            for client in slow:
                client.sendall(b"x")
            assert answered(live)
        assert live.service.in_flight == 0  # what is not there yet takes no place in the queue
    finally:
        for client in slow:
            client.close()


def test_more_than_was_announced(live: Live) -> None:
    with connected(live) as client:
        client.sendall(request_head(live, 120) + bytes(100_000))
        assert client.recv(1000).startswith(b"HTTP/1.1 400")
