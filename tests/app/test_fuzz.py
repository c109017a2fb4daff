"""What no client would send: the server answers with the right status, and nothing stays behind."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzz import examples
from tests.support.harm import open_files
from tests.support.live import Live, connected, eventually
from tests.support.spoken import SAMPLES

SPEECH = (SAMPLES / "door-code.mp3").read_bytes()
ROUTES = ("/v1/audio/transcriptions", "/inference")
FORM = "multipart/form-data"
NAMES = ("model", "language", "prompt", "response_format", "temperature", "stream", "file", "x")
VALUES = (
    *("", "0", "-1", "1e999", "nan", "en", "xx", "whisper-1", "digits", "srt", "json", "true"),
    *("\x00", "\ud7ff" * 50, "%s%n", "../../etc/passwd", "'; --", "[]", "{}", "a" * 70_000),
)
FILES = ("a.mp3", "", "\x00.wav", "a" * 500, "../x.mp3", "ü.mp3", "a\r\nb")
KINDS = ("", FORM, f"{FORM}; boundary=", "text/plain", "a/b;c")
# where, how many bytes are cut out there, and what comes in their place
DAMAGE = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 200), st.binary(max_size=8)))
AUDIO = st.sampled_from([path for path in SAMPLES.iterdir() if path.suffix in (".mp3", ".m4a")])

# Starlette leaves the file of a part that never ended to the garbage collector, which closes it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


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


def damaged(data: bytes, damage: list[tuple[float, int, bytes]]) -> bytes:
    for where, length, instead in damage:
        at = round(where * len(data))
        data = data[:at] + instead + data[at + length :]
    return data


def refused_well(found: httpx.Response) -> None:
    if found.status_code != 200:
        assert found.status_code in (400, 404, 413, 415), found.text
        error = found.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        assert error["type"] == "invalid_request_error"
        assert "/proc" not in found.text and "/tmp" not in found.text


@examples(25)
@given(AUDIO, DAMAGE)
def test_damaged_audio(client: httpx.Client, path: Path, damage: list[Any]) -> None:
    name = f"a{path.suffix}"
    found = client.post(ROUTES[0], files={"file": (name, damaged(path.read_bytes(), damage))})
    refused_well(found)
    assert found.status_code == 200 or found.json()["error"]["message"].startswith(f"{name}: ")


@examples(40)
@given(
    st.sampled_from(ROUTES),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=6),
    st.sampled_from(FILES),
    st.sampled_from([SPEECH, b"", b"RIFF"]),
    st.lists(st.tuples(st.floats(0, 0.02), st.integers(0, 9), st.binary(max_size=3)), max_size=2),
    st.sampled_from([*KINDS, None, None, None, None]),
)
def test_any_form(
    client: httpx.Client,
    route: str,
    fields: list[tuple[str, str]],
    file: str,
    content: bytes,
    damage: list[Any],
    kind: str | None,
) -> None:
    """Odd fields and names, and a damaged body under any type of content."""
    parts = [(name, (None, value.encode("utf-8", "ignore"))) for name, value in fields]
    request = client.build_request("POST", route, files=[*parts, ("file", (file, content))])
    headers = {"content-type": request.headers["content-type"] if kind is None else kind}
    refused_well(client.post(route, content=damaged(request.read(), damage), headers=headers))


@pytest.mark.usefixtures("client")
def test_uploads_that_trickle_hold_nobody_up(live: Live) -> None:
    """A hundred clients that send a byte now and then, while others are served."""
    lines = (
        f"POST {ROUTES[0]} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}; boundary=B",
        "Content-Length: 1000000\r\n",
        '--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n',
    )
    with ExitStack() as stack:
        head = "\r\n".join(lines).encode()
        slow = [stack.enter_context(connected(live, head)) for _ in range(100)]
        for _ in range(3):
            for each in slow:
                each.sendall(b"x")
            assert answered(live)
        assert live.service.in_flight == 0  # what is not there yet takes no place in the queue
