"""A loopback server that stands for the places that models are fetched from."""

import hashlib
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """A loopback HTTP server: `pages` maps a path to its body; the rest is 404."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}  # of every answer
        self.cut = False  # announce the whole body, send half
        self.endless = False  # announce no length
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                body = server.pages.get(self.path)
                self.send_response(404 if body is None else 200)
                for key, value in server.headers.items():
                    self.send_header(key, value)
                self.send_header("ETag", f'"{hashlib.sha1(body or b"").hexdigest()}"')
                if not server.endless:
                    self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write((body or b"")[: len(body or b"") // (1 + server.cut)])

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def serving() -> closing[Server]:
    return closing(Server())
