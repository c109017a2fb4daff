"""The `serve` command: it begins, answers, and ends as it should."""

import asyncio
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from slimwhisper.app.command import load_choice
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.cli import build_parser, main
from tests.support.live import Begin, Live, eventually, free_port
from tests.support.spoken import SAMPLES


def is_ready(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    return False


@pytest.mark.slow
def test_it_serves_until_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs when the signal comes is finished first; then nothing is left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    port = free_port()
    url, key = f"http://127.0.0.1:{port}", {"Authorization": "Bearer key"}
    flags = ["--model", "digits", "--port", str(port), "--api-key", "key"]
    command = [sys.executable, "-m", "slimwhisper", "serve", *flags]
    with subprocess.Popen(command) as process, ExitStack() as stack:
        stack.callback(process.kill)
        assert eventually(lambda: is_ready(url), 120)
        target = f"{url}/v1/audio/transcriptions"
        files = {"file": (SAMPLES / "phone-number.wav").read_bytes()}
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
        assert list(tmp_path.iterdir()) == []


def test_strangers_are_warned_of_and_a_model_that_does_not_load_ends_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ports = ["--port", str(free_port()), "--wyoming", str(free_port())]
    assert main(["serve", "--model", "/no/such.pt", "--host", "0.0.0.0", "--no-page", *ports]) == 1
    assert "slimwhisper: /no/such.pt: " in capsys.readouterr().err
    assert "0.0.0.0: anyone who can reach this address can use the server" in caplog.text
    assert "--wyoming: anyone who can reach 0.0.0.0" in caplog.text


def test_threads_hand_over_pythons_lock_soon(live: Live) -> None:
    """The engine needs it hundreds of times in a step."""
    assert live.url and sys.getswitchinterval() <= 0.001


def test_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMWHISPER_API_KEY", "secret")
    a = build_parser().parse_args(["serve", "--auth", "ann:a:b", "--unload-after", "60"])
    assert (a.api_key, a.auth, a.unload_after) == ("secret", ("ann", "a:b"), 60)
    for wrong in (["--auth", "ann"], ["--queue", "0"], ["--timeout", "-1"], ["--max-upload", "x"]):
        with pytest.raises(SystemExit):
            build_parser().parse_args(["serve", *wrong])


def test_discovery_needs_a_port_and_a_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["serve", "--model", "digits", "--discover"]) == 2
    assert "add --wyoming PORT" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    assert main(["serve", "--model", "digits", "--discover", "--wyoming", "10300"]) == 1
    assert "--discover needs zeroconf; pip install 'zeroconf" in capsys.readouterr().err


@pytest.fixture
def tls(tmp_path: Path) -> tuple[str, str]:
    """A certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    cert, key = (str(tmp_path / name) for name in ("cert.pem", "key.pem"))
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    made += ["-nodes", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_https_and_wss(begin: Begin, tls: tuple[str, str]) -> None:
    context = ssl.create_default_context(cafile=tls[0])
    address = begin(tls=tls).url.removeprefix("http://")
    models = httpx.get(f"https://{address}/v1/models", verify=context).json()
    assert models["data"][0]["id"] == "digits"
    url = f"wss://{address}/v1/realtime?model=gpt-realtime"

    async def first_event() -> Any:
        # the client with threads reads and writes TLS at a time, which Python < 3.13 does not allow
        async with connect(url, ssl=context, open_timeout=60) as session:
            return json.loads(await session.recv())

    assert asyncio.run(first_event())["type"] == "session.created"


def test_a_tls_connection_that_was_closed_twice(begin: Begin, tls: tuple[str, str]) -> None:
    """asyncio forgets its connection; the check of all connections must not end the server."""
    context = ssl.create_default_context(cafile=tls[0])
    live = begin(tls=tls)
    address = live.url.removeprefix("http://")
    host, port = address.split(":")
    connections: Any = live.server.server_state
    checked = threading.Event()

    def close_and_sweep() -> None:
        (open_one,) = connections.connections
        for _ in range(2):
            open_one.transport.close()
        connections.sweep()
        checked.set()

    with socket.create_connection((host, int(port))) as plain:
        with context.wrap_socket(plain, server_hostname=host) as client:
            client.sendall(b"GET")
            assert eventually(lambda: len(connections.connections) == 1)
            (one,) = connections.connections
            one.loop.call_soon_threadsafe(close_and_sweep)
            assert checked.wait(20)
    assert httpx.get(f"https://{address}/health", verify=context).status_code == 200


def test_certificates_that_are_of_no_use(
    capsys: pytest.CaptureFixture[str], tls: tuple[str, str], tmp_path: Path
) -> None:
    cert, key = tls
    for flags, message in (
        (["--tls-cert", cert], "give --tls_cert and --tls_key"),
        (["--tls-cert", cert, "--tls-key", "gone.pem"], "No such file"),
        (["--tls-cert", key, "--tls-key", cert], "give two PEM files"),
    ):
        assert main(["serve", "--model", "digits", *flags]) == 2
        assert message in capsys.readouterr().err


def test_a_cache_chosen_on_the_page() -> None:
    flags = ["--model", "digits", "--cross-cache", "kv", "--device", "cpu"]
    a = build_parser().parse_args(["serve", *flags])
    for cache, forms in ((None, ("kv", "x")), ("slim", ("e", "x")), ("baseline", ("kv", "kv"))):
        assert load_choice(a, ModelChoice("digits", cache)).forms == forms


def test_adapter_and_draft_belong_to_the_servers_own_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("slimwhisper.loading.load_model", lambda **given: asked.append(given))
    flags = ["--model", "tiny", "--adapter", "me/other", "--draft", "less"]
    a = build_parser().parse_args(["serve", *flags])
    for choice in (ModelChoice("tiny"), ModelChoice("tiny", "slim"), ModelChoice("digits")):
        load_choice(a, choice)
    assert [given["adapter"] for given in asked] == ["me/other"] * 2 + [None]
    assert [given["draft"] for given in asked] == ["less", "less", None]
