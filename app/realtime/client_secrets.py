"""Client secrets: keys that a page in a browser may have, for a while, for realtime sessions only.

They are kept in this server's memory, as digests, and end with it.
"""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.realtime.fields import Fields
from slimwhisper.app.realtime.session import SessionConfig, session_object, update_session

PREFIX = "ek_"
DEFAULT_SECONDS, LEAST_SECONDS, MOST_SECONDS = 600, 10, 7200
MAX_SECRETS = 10_000


class ClientSecrets:
    """The secrets that were given out and have not expired. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since the epoch."""
        self._clock = clock
        self._found: dict[bytes, tuple[float, SessionConfig]] = {}  # by digest: end, session
        self._lock = threading.Lock()

    def issue(
        self, config: SessionConfig | None = None, seconds: float = DEFAULT_SECONDS
    ) -> tuple[str, int]:
        """A new secret, and when it expires, in seconds since the epoch.

        config: what its sessions start with. Raises APIError if too many are in use.
        """
        value = PREFIX + secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            self._found = {d: kept for d, kept in self._found.items() if kept[0] > now}
            if len(self._found) >= MAX_SECRETS:
                message = f"{MAX_SECRETS} client secrets are in use; try again in a minute"
                raise APIError(429, message, "too_many_secrets", headers={"Retry-After": "60"})
            self._found[_digest(value)] = (now + seconds, config or SessionConfig())
        return value, int(now + seconds)

    def session(self, value: str) -> SessionConfig | None:
        """The session that a secret stands for; None if it is unknown or has expired."""
        with self._lock:
            end, config = self._found.get(_digest(value), (0.0, SessionConfig()))
        return config if end > self._clock() else None


def read_request(given: object) -> tuple[SessionConfig, int, list[str]]:
    """The body of `POST /v1/realtime/client_secrets`: session, seconds, names of unknown fields.

    Raises APIError.
    """
    body = Fields(given, "")
    seconds = DEFAULT_SECONDS
    if (after := body.inside("expires_after")) is not None:
        after.choice("anchor", ("created_at",))
        seconds = after.whole("seconds", LEAST_SECONDS, MOST_SECONDS) or DEFAULT_SECONDS
    config, unknown = SessionConfig(), list[str]()
    if body.has("session"):
        config, unknown = update_session(config, body.value("session"))
    return config, seconds, [*body.unknown(), *unknown]


def secret_response(
    value: str, expires_at: int, config: SessionConfig, unknown: list[str]
) -> dict[str, Any]:
    """The response's JSON."""
    session = session_object(config, "sess_" + secrets.token_hex(12), unknown=unknown)
    return {"value": value, "expires_at": expires_at, "session": session}


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()
