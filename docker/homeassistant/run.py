"""Starts the server with the options of a Home Assistant app, and tells Home Assistant of it."""

import json
import os
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

OPTIONS = Path("/data/options.json")  # written by the Supervisor
SUPERVISOR = "http://supervisor"
WYOMING, API = 10_300, 7860


def command(options: dict[str, str]) -> list[str]:
    """The server's command."""
    serve = [sys.executable, "-m", "slimwhisper", "serve", "--host", "0.0.0.0"]
    chosen = ["--port", str(API), "--wyoming", str(WYOMING), "--model", options["model"]]
    return [*serve, *chosen]


def announce(supervisor: str, token: str) -> None:
    """Tell Home Assistant where the Wyoming protocol is served, once it is."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", WYOMING), 5).close()
            break
        except OSError:
            time.sleep(1)
    config = {"uri": f"tcp://{socket.gethostname()}:{WYOMING}"}
    body = json.dumps({"service": "wyoming", "config": config}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{supervisor}/discovery", body, headers)
    urllib.request.urlopen(request, timeout=10).close()


def main() -> int:
    """Serve until the app is stopped."""
    import signal
    import subprocess

    options = json.loads(OPTIONS.read_text("utf-8"))
    environment = dict(os.environ)
    if options.get("api_key"):
        environment["SLIMWHISPER_API_KEY"] = options["api_key"]
    server = subprocess.Popen(command(options), env=environment)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    if token := environment.get("SUPERVISOR_TOKEN"):
        threading.Thread(target=announce, args=(SUPERVISOR, token), daemon=True).start()
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
