"""A server that runs in a thread of the tests."""

import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from slimwhisper.app.models import Models
from slimwhisper.app.requests import Limits
from slimwhisper.app.server import Server, make_app, make_server
from slimwhisper.app.service import Service
from slimwhisper.app.settings import Settings
from slimwhisper.transcribe import SlimWhisper


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

    def post(self, **options: Any) -> httpx.Response:
        options = {"timeout": 60, **options}
        return httpx.post(f"{self.url}/v1/audio/transcriptions", **options)


def start(model: SlimWhisper, limits: Limits | None = None, **settings: Any) -> Live:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = Service(lambda _: model, batch_size=4, limits=limits)
    chosen = Settings(port=port, **settings)
    server = make_server(make_app(service, Models("digits"), chosen), service, chosen)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    return Live(f"http://127.0.0.1:{port}", service, server, thread)


def stop(live: Live) -> None:
    for client in live.clients:
        client.close()
    live.server.should_exit = True
    live.thread.join(30)
    assert not live.thread.is_alive()
