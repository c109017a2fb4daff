"""An S3 server on loopback (moto), which can be told to answer badly."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Faults:
    """The server's application, which sometimes does not answer well."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._random = random.Random(0)
        self.errors = self.slow = 0.0  # shares of requests
        self.failed = 0

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if self._random.random() < self.slow:
            time.sleep(0.5)
        if self._random.random() < self.errors:
            self.failed += 1
            start_response("503 Service Unavailable", [("Content-Type", "text/xml")])
            return [b"<Error><Code>ServiceUnavailable</Code><Message>later</Message></Error>"]
        return self._application(environ, start_response)


@contextmanager
def s3_server() -> Iterator[tuple[dict[str, str], Faults]]:
    """A server in a thread: the environment variables that clients need, and its faults."""
    from moto.server import ThreadedMotoServer

    running: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    faults = running._server.app = Faults(running._server.app)
    environment = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "s3cret-of-the-test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    try:
        yield environment, faults
    finally:
        running.stop()
