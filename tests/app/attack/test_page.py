"""Calls of the page's functions: no argument names a file or an address that was not sent to it."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import safehttpx

from slimwhisper.app.page import gradio_guard
from slimwhisper.app.page.gradio_guard import MAX_TEXT, check_body
from tests.support.live import Live, eventually
from tests.support.page_calls import DEFAULTS, META, arguments, call, post, upload
from tests.support.paths import PHONE
from tests.support.refusals import TABLES
from tests.support.servers import serving

pytestmark = pytest.mark.usefixtures("keyless")  # the client's server: it stays unharmed
Client = httpx.Client


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that nobody is to ask, and what it was asked.

    It stands for a public one: Gradio's check of addresses lets it pass.
    """
    monkeypatch.setattr(safehttpx, "is_public_ip", lambda _: True)
    with serving() as server:
        yield f"{server.url}/a.wav", server.requests


def functions(client: Client) -> dict[str, int]:
    """The page's functions, "transcribe" among them."""
    rows = client.get("/config").json()["dependencies"]
    return {row["api_name"] or str(row["id"]): row["id"] for row in rows if not row["js"]}


def outcome(client: Client, body: dict[str, Any], session: str = "s") -> str:
    """What a call that was not refused at once says in the end: its error, if any."""
    begun = post(client, {**body, "session_hash": session})
    if begun.status_code != 200:
        return str(begun.json()["detail"])
    told = client.get("/gradio_api/queue/data", params={"session_hash": session}).text
    events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
    last = next(event for event in reversed(events) if event["msg"] == "process_completed")
    if not last["success"]:
        return str(last["output"]["error"])
    return "nothing is wrong"


def test_nothing_that_is_posted_is_fetched(client: Client, listener: tuple[str, list[str]]) -> None:
    url, asked = listener
    index = functions(client)["transcribe"]
    file = {"path": url, "meta": META}
    values = (file, [file], [[{"x": file}]], {"path": PHONE.name, "url": url})
    bodies = [given(index, **{name: value}) for name, value in product(DEFAULTS, values)]
    datas, extras = ([file], [file] * 4, [[file]]), ({}, {"event_data": file}, {"batched": True})
    for other, data, extra in product(functions(client).values(), datas, extras):
        bodies.append({"data": data, "fn_index": other, **extra})
    bodies.append({"data": [], "event_data": file})
    for body, path in product(bodies, ("queue/join", "call/transcribe")):
        answer = post(client, {**body, "session_hash": "a"}, path)
        assert answer.status_code == 400 and "no longer on" in answer.text
    assert asked == []


@pytest.mark.slow
def test_no_argument_is_fetched_by_gradio(
    client: Client, listener: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no check comes before it."""
    url, asked = listener
    index = functions(client)["transcribe"]
    file = {"path": url, "meta": META}
    monkeypatch.setattr(gradio_guard, "check_body", lambda *_: None)
    for name in DEFAULTS:
        said = outcome(client, given(index, **{name: [file] if name == "files" else file}), name)
        assert "not an address" in said, name
    for other in functions(client).values():
        for count in (1, 4):
            outcome(client, {"data": [file] * count, "fn_index": other}, f"{other}{count}")
    assert asked == []


def test_no_file_of_the_server_is_named(client: Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret.wav"
    secret.write_bytes(PHONE.read_bytes())
    stored = Path(upload(client, PHONE)["path"])
    files, index = stored.parents[2], functions(client)["transcribe"]
    (result,) = call(client, upload(client, PHONE))[1][1]["files"]
    token = result["audio"].rpartition("/")[2]
    for path in (
        *("/etc/passwd", str(secret), "secret.wav", "", ".", "file:///etc/passwd"),
        *(f"{files}/../results/{token}", f"{files}x/a", str(files.parent), f"{stored}\0"),
    ):
        for file in ({"path": path, "meta": META}, {"path": str(stored), "url": path}):
            answer = post(client, {**given(index, files=[file]), "session_hash": "a"})
            assert answer.status_code == 400, file
    assert outcome(client, given(index, files=[{"path": f"{stored}x", "meta": META}])) == (
        "A file is no longer on the server. Add it again."
    )
    gradio = "/gradio_api"
    for path in (
        *(f"{gradio}/file=http://127.0.0.1:1/", f"{gradio}/file=/etc/passwd", "/monitoring"),
        *(f"{gradio}/file={files.parent}/results", f"{gradio}/proxy=http://127.0.0.1:1/"),
        *(f"{gradio}/deep_link?session_hash=a", f"{gradio}/runs"),
    ):
        assert client.get(path).status_code in (403, 404), path


def given(index: int, **options: object) -> dict[str, Any]:
    return {"data": arguments(**options), "fn_index": index}


def test_what_the_page_sends_is_taken(client: Client) -> None:
    file = upload(client, PHONE)
    url = f"{client.base_url}/gradio_api/file={file['path']}"
    file |= {"url": url, "size": 1, "mime_type": "audio/wav"}
    prompt = f"see {url} and http://example.com/a.wav, /etc/passwd"
    assert call(client, file, prompt=prompt + "x" * 10_000)[0] == "complete"
    assert call(client, recording=file)[0] == "complete"


WRONG: tuple[Any, ...] = (
    *([], {"a": 1}, ["http://127.0.0.1:1/"], {"path": None}, True, -1, 1e300),
    *(float("inf"), float("nan"), "9" * 5000, "\0"),
)


@pytest.mark.slow
def test_arguments_that_do_not_fit(client: Client, quiet: None) -> None:
    """One clear error each, and no traceback in the log."""
    index = functions(client)["transcribe"]
    for name, (number, value) in product(DEFAULTS, enumerate(WRONG)):
        options = {"diarize": "embedding", name: value}
        said = outcome(client, given(index, **options), f"{name}{number}")
        assert 10 < len(said) < 400, (name, value, said)


def test_messages_about_arguments(client: Client) -> None:
    index = functions(client)["transcribe"]
    for name, value, message in (
        *TABLES["page"],
        ("files", None, "Add a file or record something first."),
    ):
        assert outcome(client, given(index, **{name: value}), f"{name}{value}").startswith(message)


@pytest.mark.slow
def test_calls_that_do_not_fit(client: Client, quiet: None) -> None:
    index, good = functions(client)["transcribe"], arguments()
    for wrong in (index - 1, 99, -1, 1.5, "1", [1], {}, 10**30, True):  # the first: a script
        answer = post(client, {"data": good, "fn_index": wrong, "session_hash": "a"})
        assert answer.status_code == 400 and "unknown function" in answer.json()["detail"]
    for data in ([], good[:3], good * 2, [None] * 15, [good] * 15):
        assert outcome(client, {"data": data, "fn_index": index}, session=f"n{len(data)}")
    for other in functions(client).values():
        for data in ([], [1], [None], ["x"], [[]], [{}]):
            outcome(client, {"data": data, "fn_index": other}, session=f"o{other}{data}")
    for extra in ({"batched": True}, {"trigger_id": -5}, {"event_data": [1]}, {"event_id": "x"}):
        assert outcome(client, {"data": good, "fn_index": index, **extra}, session=str(extra))
    deep: list[Any] = []
    for _ in range(50):
        deep = [deep]
    for body in ([], 5, "x", None, {"data": 5}, {}, {"data": deep}, {"data": [[0] * 60_000]}):
        for path in ("queue/join", "call/transcribe", "cancel", "reset"):
            assert post(client, body, path).status_code in (400, 422), body
    for content in (b"", b"{", b"\xff", b"[" * 100_000, b'{"data": [' + b"1" * 5000 + b"]}"):
        answer = client.post("/gradio_api/queue/join", content=content)
        assert answer.status_code == 400 and answer.json()["detail"] == "the body is not JSON"
    for path in ("queue/data?session_hash=nothing", "call/transcribe/nothing"):
        assert "404: Not Found" in client.get(f"/gradio_api/{path}").text
    for path in ("call/nothing", "call/v2/transcribe", "call/v2/nothing"):
        assert post(client, {"data": []}, path).status_code == 404


def test_texts_are_bounded() -> None:
    def refused(value: object) -> str:
        with pytest.raises(ValueError, match=" ") as raised:
            check_body(json.dumps({"data": value}).encode(), {1}, lambda _: True)
        return str(raised.value)

    assert "200001 characters" in refused("x" * (MAX_TEXT + 1))
    assert refused({"x" * (MAX_TEXT + 1): 1}).startswith("a text has 200001")
    assert "not valid Unicode" in refused(["\ud800"])
    assert refused([0] * 60_000) == "the body has too many values"
    files = [{"path": f"{i}", "url": None, "size": 1, "meta": META} for i in range(2000)]
    body = {"data": [files, "x" * MAX_TEXT], "fn_index": 1}
    check_body(json.dumps(body).encode(), {1}, lambda _: True)


def test_pages_that_come_and_go(
    client: Client, keyless: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio keeps the state of each for hours; the newest are enough."""
    page = keyless.server._page
    assert page is not None
    holder = page._gradio.app.state_holder
    assert holder.capacity == gradio_guard.MAX_SESSIONS
    holder.session_data.clear()
    monkeypatch.setattr(holder, "capacity", 3)
    for number in range(8):
        with client.stream("GET", f"/gradio_api/heartbeat/{number}") as answer:
            next(answer.iter_raw())
    assert eventually(lambda: "7" in holder.session_data) and len(holder.session_data) <= 3
    assert call(client, upload(client, PHONE))[0] == "complete"
