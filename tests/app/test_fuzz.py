"""What no client would send: the server answers with the right status, and nothing stays behind."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import slimwhisper
from slimwhisper.app.service.jobs import Limits
from tests.support.harm import open_files
from tests.support.live import Live, connected, eventually, start, stop
from tests.support.spoken import SAMPLES

SHORT = [SAMPLES / n for n in ("door-code.mp3", "flight.m4a", "parcel.ogg", "phone-number.wav")]
SPEECH = SHORT[0].read_bytes()
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


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    """The service is idle and well afterwards, without more open files than before."""
    before, opened = answered(live), open_files()
    with httpx.Client(base_url=live.url, timeout=120) as found:
        yield found
    assert eventually(lambda: live.service.in_flight == 0)
    assert answered(live) == before
    assert eventually(lambda: live.service.in_flight == 0 and open_files() <= opened + 2)


def answered(live: Live) -> str:
    found = live.post(files={"file": SPEECH})
    assert found.status_code == 200
    return str(found.json()["text"])


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut out, doubled or cut off."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 3, 30, 300])):
        if len(found) < 8:
            break
        at = rng.randrange(len(found))
        match rng.randrange(5):
            case 0 | 1:
                found[at] = rng.randrange(256)
            case 2:
                del found[at : at + rng.randrange(1, 200)]
            case 3:
                found[at:at] = found[at : at + rng.randrange(1, 200)]
            case _:
                found[at : at + 4] = rng.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4)])
    if found and rng.random() < 0.2:
        del found[rng.randrange(len(found)) :]
    return bytes(found)


@pytest.mark.parametrize(
    "path",
    [SHORT[0], *(pytest.param(path, marks=pytest.mark.slow) for path in SHORT[1:])],
    ids=lambda path: path.suffix,
)
def test_mutated_audio(client: httpx.Client, path: Path) -> None:
    rng, name, data = random.Random(path.name), f"a{path.suffix}", path.read_bytes()
    statuses = set()
    for _ in range(12):
        found = client.post(ROUTE, files={"file": (name, mutated(data, rng))})
        statuses.add(found.status_code)
        if found.status_code == 400:
            error = found.json()["error"]
            assert error["message"].startswith(f"{name}: ")
            assert error["type"] == "invalid_request_error"
            assert "/proc" not in found.text and "/tmp" not in found.text
    assert statuses == {200, 400}  # some can still be read, some cannot


def test_mutated_fields(client: httpx.Client) -> None:
    rng, statuses = random.Random(1), Counter[int]()
    for _ in range(40):
        parts: list[tuple[str, tuple[str | None, bytes]]] = [
            (rng.choice(FIELDS), (None, rng.choice(VALUES).encode("utf-8", "ignore")))
            for _ in range(rng.randrange(6))
        ]
        if rng.random() < 0.7:
            content = SPEECH if rng.random() < 0.6 else rng.randbytes(rng.randrange(2000))
            parts.append(("file", (rng.choice(NAMES), content)))
        found = client.post(ROUTE, files=parts or {"x": b""})
        statuses[found.status_code] += 1
        if found.status_code != 200:
            assert set(found.json()["error"]) == {"message", "type", "param", "code"}
    assert {200, 400, 404} <= statuses.keys() <= {200, 400, 404, 413, 415}, statuses


def test_mutated_forms(client: httpx.Client) -> None:
    """The multipart body itself, and its header."""
    rng = random.Random(2)
    request = client.build_request("POST", ROUTE, files={"file": SPEECH}, data={"a": "b"})
    whole, kind = request.read(), request.headers["content-type"]
    for _ in range(30):
        body = whole[:200] + mutated(whole[200:], rng) if rng.random() < 0.3 else whole
        sent = mutated(body[:200], rng) + body[200:] if rng.random() < 0.8 else body
        given = kind if rng.random() < 0.8 else rng.choice(KINDS)
        found = client.post(ROUTE, content=sent, headers={"content-type": given})
        assert found.status_code in (200, 400, 404, 415), found.text
        assert found.status_code == 200 or found.json()["error"]["message"]


def head_of(length: int) -> bytes:
    """An upload's head, and the begin of its part."""
    lines = (
        f"POST {ROUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}; boundary=B",
        f"Content-Length: {length}\r\n",
        '--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n',
    )
    return "\r\n".join(lines).encode()


@pytest.mark.usefixtures("client")
def test_uploads_that_trickle_hold_nobody_up(live: Live) -> None:
    """A hundred clients that send a byte now and then, while others are served."""
    with ExitStack() as stack:
        head = head_of(1 << 20)
        slow = [stack.enter_context(connected(live, head)) for _ in range(100)]
        for _ in range(3):
            for each in slow:
                each.sendall(b"x")
            assert answered(live)
        assert live.service.in_flight == 0  # what is not there yet takes no place in the queue
