"""The `serve` command: it begins, answers, and ends as it should."""

import asyncio
import json
import logging
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from websockets.asyncio.client import connect

from slimwhisper.app import command
from slimwhisper.app.command import job_defaults, load_choice
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.cli import build_parser, main
from tests.support.live import Begin, connected, eventually, free_port, held_readers, serving
from tests.support.paths import PHONE, SAMPLES


@pytest.mark.slow
def test_it_serves_until_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs when the signal comes is finished first; then nothing is left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    log, key = tmp_path / "log", {"Authorization": "Bearer key"}
    with serving(log, "--api-key", "key") as (url, process):
        target = f"{url}/v1/audio/transcriptions"
        files = {"file": PHONE.read_bytes()}
        found = httpx.post(target, files=files, headers=key, timeout=60)
        assert found.json()["text"].startswith("five five five")
        assert httpx.get(f"{url}/v1/models", headers=key).json()["data"][0]["id"] == "digits"
        assert "key as the password" in httpx.get(url).text, "the page asks who is there"
        assert len(list(tmp_path.glob("slimwhisper-page-*"))) == 1
        long = {"file": (SAMPLES / "three-minutes.ogg").read_bytes()}
        data = {"stream": "true"}
        with httpx.stream("POST", target, files=long, data=data, headers=key, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and "transcript.text.done" in rest[-2]
        assert process.wait(60) == 0
        assert list(tmp_path.iterdir()) == [log]


def test_a_second_sigint_waits_no_longer(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are refused as at a first one, those whose body still comes among them: until then,
    they hold nobody up, and take no place in the queue.
    """
    live, go, deadlines = begin(), held_readers(monkeypatch), list[float | None]()
    assert sys.getswitchinterval() <= 0.001, "the engine needs Python's lock often in a step"
    head = b"POST /inference HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    form = b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x"
    with ThreadPoolExecutor() as pool, connected(live, head + form) as half:
        files = {"file": PHONE.read_bytes()}
        whole = pool.submit(live.post, files=files)
        assert eventually(lambda: live.service.in_flight == 1)
        for _ in range(2):  # the second SIGTERM does not change the patience
            live.server.handle_exit(signal.SIGTERM, None)
            deadlines.append(live.service._deadline)
        live.server.handle_exit(signal.SIGINT, None)
        assert whole.result().json()["error"]["code"] == "stopping"
        assert whole.result().status_code == 503 and deadlines[0] == deadlines[1]
        half.settimeout(30)  # half of the time for which the readers are held
        assert half.recv(12) == b"HTTP/1.1 503"
        go.set()
    live.thread.join(20)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_ports_and_files_are_checked_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "Service", None)
    with socket.create_server(("127.0.0.1", 0)) as used:
        port, free = used.getsockname()[1], free_port()
        for flags in (
            ("--port", port),
            ("--port", free, "--wyoming", port),
            ("--port", free, "--wyoming", free),
            ("--port", port, "--host", "0.0.0.0"),
            ("--port", 65_536),
            ("--host", "no.such.invalid"),
        ):
            assert main(["serve", "--model", "digits", "--no-page", *map(str, flags)]) == 2
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and "choose another" in error, error
    monkeypatch.setattr("tempfile.gettempdir", Mock(side_effect=OSError(2, "None is usable")))
    assert main(["serve", "--model", "digits", "--port", str(free)]) == 1
    assert capsys.readouterr().err.endswith("folder (None is usable); choose another TMPDIR\n")


def test_a_signal_while_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own end would abort, in the thread that loads."""
    leave = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr(command, "Service", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    main(["serve", "--model", "digits", "--no-page", "--port", str(free_port())])
    leave.assert_called_once_with(0)


def test_strangers_are_warned_of_and_a_model_that_does_not_load_ends_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ports = ["--port", str(free_port()), "--wyoming", str(free_port())]
    assert main(["serve", "--model", "/no/such.pt", "--host", "0.0.0.0", "--no-page", *ports]) == 1
    assert "slimwhisper: /no/such.pt: " in capsys.readouterr().err
    assert "0.0.0.0: anyone who can reach this address can use the server" in caplog.text
    assert "--wyoming: anyone who can reach 0.0.0.0" in caplog.text


def test_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMWHISPER_API_KEY", "secret")
    a = build_parser().parse_args(["serve", "--auth", "ann:a:b", "--unload-after", "60"])
    assert (a.api_key, a.auth, a.unload_after) == ("secret", ("ann", "a:b"), 60)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_https_and_wss(begin: Begin, tmp_path: Path) -> None:
    """Also once asyncio has forgotten a connection, as it was closed twice: the check of all
    connections must not end the server.
    """
    cert, key = (str(tmp_path / name) for name in ("cert.pem", "key.pem"))
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    made += ["-nodes", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.create_default_context(cafile=cert)
    live = begin(tls=(cert, key))
    address = live.url.removeprefix("http://")
    connections: Any = live.server.server_state
    checked = threading.Event()

    def close_and_sweep(connection: Any) -> None:
        for _ in range(2):
            connection.transport.close()
        connections.sweep()
        checked.set()

    with connected(live) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.sendall(b"GET")
            assert eventually(lambda: len(connections.connections) == 1)
            (one,) = connections.connections
            one.loop.call_soon_threadsafe(close_and_sweep, one)
            assert checked.wait(20)
    models = httpx.get(f"https://{address}/v1/models", verify=context).json()
    assert models["data"][0]["id"] == "digits"
    url = f"wss://{address}/v1/realtime?model=gpt-realtime"

    async def first_event() -> Any:
        # the client with threads reads and writes TLS at a time, which Python < 3.13 does not allow
        async with connect(url, ssl=context, open_timeout=60) as session:
            return json.loads(await session.recv())

    assert asyncio.run(first_event())["type"] == "session.created"


def test_a_job_is_of_speech_alone_and_drops_what_was_invented() -> None:
    expected = {"speech_only": True, "drop": ("invented", "repeats"), "known_speakers": ()}
    assert job_defaults(build_parser().parse_args(["serve"])) == expected


def test_models_that_are_chosen_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache replaces the flags'; an adapter belongs to the server's own model."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("slimwhisper.loading.load_model", lambda **given: asked.append(given))
    flags = ["--model", "tiny", "--adapter", "me/other", "--cross-cache", "kv"]
    a = build_parser().parse_args(["serve", *flags])
    for choice in (ModelChoice("tiny"), ModelChoice("tiny", "baseline"), ModelChoice("digits")):
        load_choice(a, choice)
    names = ("adapter", "cache", "cross_cache")
    assert [[given[name] for name in names] for given in asked] == [
        ["me/other", "slim", "kv"],
        ["me/other", "baseline", None],
        [None, "slim", "kv"],
    ]
