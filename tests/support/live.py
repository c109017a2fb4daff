"""A server that runs in a thread of the tests."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Any

import httpx
import openai
import pytest

from slimwhisper.api import SlimWhisper
from slimwhisper.app.server import Server, make_app
from slimwhisper.app.service.host import Models, ServerSettings
from slimwhisper.app.service.jobs import Limits
from slimwhisper.app.service.service import Service
from slimwhisper.audio_formats.readers import Readers
from slimwhisper.engine.engine import Engine
from slimwhisper.service.shared_engine import SharedEngine
from tests.support.waiting import eventually


def free_port() -> int:
    """Below those that the system gives to connections: one of these could take it before use."""
    while True:
        with socket.socket() as free, suppress(OSError):
            port = SystemRandom().randrange(10_000, 32_000)
            free.bind(("127.0.0.1", port))
            return port


def held_readers(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Recordings are read only while this is set."""
    return _held(monkeypatch, Readers, "read", 60)


def held_engines(monkeypatch: pytest.MonkeyPatch, seconds: float = 60) -> threading.Event:
    """Engines work only once this is set; until then a step takes so many seconds at most."""
    return _held(monkeypatch, SharedEngine, "step", seconds)


def _held(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str, seconds: float
) -> threading.Event:
    go, call = threading.Event(), getattr(kind, name)

    def waits(*arguments: Any, **options: Any) -> Any:
        return call(*arguments, **options) if go.wait(seconds) else None

    monkeypatch.setattr(kind, name, waits)
    return go


def full_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step of an engine fails; those after it do not."""
    step = Engine.step

    def fails(_: Any) -> Any:
        monkeypatch.setattr(Engine, "step", step)
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2 B")

    monkeypatch.setattr(Engine, "step", fails)


@dataclass
class Live:
    """A server that runs."""

    url: str
    service: Service
    server: Server
    thread: threading.Thread
    clients: list[openai.OpenAI] = field(default_factory=list)

    def client(self) -> openai.OpenAI:
        made = openai.OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0)
        self.clients.append(made)
        return made

    def post(self, path: str = "/v1/audio/transcriptions", **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, **{"timeout": 60, **options})


Begin = Callable[..., Live]  # of settings


def start(
    model: SlimWhisper, limits: Limits | None = None, strict: bool = True, **settings: Any
) -> Live:
    port = free_port()
    service = Service(lambda _: model, batch_size=4, limits=limits)
    chosen = ServerSettings(port=port, **settings)
    server = Server(make_app(service, Models("digits", strict=strict), chosen))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server could not start"
        time.sleep(0.01)
    return Live(f"http://127.0.0.1:{port}", service, server, thread)


@contextmanager
def serving(
    log: Path, *flags: str, files: int | None = None
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A server of its own process, once it is ready; it ends well. files: it may open."""
    port = free_port()
    limit = f"ulimit -n {files};" if files else ""
    command = f"{sys.executable} -m slimwhisper serve --model digits --port {port}"
    with log.open("wb") as output:
        shell = ["sh", "-c", f"{limit} exec {command} {' '.join(flags)}"]
        process = subprocess.Popen(shell, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    try:
        assert eventually(lambda: status_of(url) == 200, 120)
        yield url, process
    finally:
        process.terminate()
        assert process.wait(60) == 0


def status_of(url: str) -> int:
    """Of a server's /health; 0: nobody answers."""
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code
    except httpx.TransportError:
        return 0


def stop(live: Live) -> None:
    for client in live.clients:
        client.close()
    live.server.should_exit = True
    live.thread.join(30)
    assert not live.thread.is_alive()


def served(*arguments: Any, **settings: Any) -> Iterator[Live]:
    """For fixtures: a server, as `start` begins it, which stops in the end."""
    yield (running := start(*arguments, **settings))
    stop(running)


def connected(to: Live | int, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    """A connection to a server, or to a port, on which `data` was sent."""
    port = to if isinstance(to, int) else int(to.url.rpartition(":")[2])
    address = ("127.0.0.1", port)
    found = socket.create_connection(address, timeout=60, source_address=(source, 0))
    found.sendall(data)
    return found


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    found = b""
    with suppress(ConnectionError):
        while more := connection.recv(1 << 16):
            found += more
    return found


def freed(live: Live) -> bool:
    """Whether, soon, no session, no stream and no slot is in use."""
    service, realtime = live.service, live.server.config.app.state.realtime
    return eventually(lambda: not (service.streams.open or realtime.open or service.in_flight))
