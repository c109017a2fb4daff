"""Client secrets: keys that a page in a browser may have, for a while, for realtime sessions only.

They are kept in this server's memory, as digests, and end with it.
"""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import NULL_IS_DEFAULT, WHOLE, Fields, check
from slimwhisper.app.realtime.session import START, SessionConfig, session_object

PREFIX = "ek_"
DEFAULT_SECONDS, LEAST_SECONDS, MOST_SECONDS = 600, 10, 7200
MAX_SECRETS = 10_000
FOR_PAGE = 1_000  # of them, for the server's own page
MAX_BYTES = 32 << 20  # of the sessions of all
SHARE = 0.5  # of all, for one address


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is known of a secret."""

    end: float  # seconds of the clock
    config: SessionConfig
    size: int  # bytes that it takes at most, roughly
    address: str | None  # of the client that asked for it; None: the page


class ClientSecrets:
    """The secrets that were given out and have not expired. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock = clock
        self._found: dict[bytes, _Kept] = {}  # by digest
        self._lock = threading.Lock()

    def issue(
        self,
        config: SessionConfig = START,
        seconds: float = DEFAULT_SECONDS,
        address: str | None = None,
    ) -> tuple[str, int]:
        """A new secret, and when it expires, in seconds since the epoch.

        config: what its sessions start with. address: of the client; None: it is for the page.
        Raises APIError if too many are in use.
        """
        value = PREFIX + secrets.token_urlsafe(32)
        now = self._clock()
        new = _Kept(now + seconds, config, 1000 + 4 * len(repr(config)), address)
        with self._lock:
            self._found = {d: kept for d, kept in self._found.items() if kept.end > now}
            if not self._has_room(new):
                message = "too many client secrets are in use; try again in a minute"
                raise APIError(429, message, "too_many_secrets", headers={"Retry-After": "60"})
            self._found[_digest(value)] = new
        return value, int(time.time() + seconds)

    def session(self, value: str) -> SessionConfig | None:
        """The session that a secret stands for; None if it is unknown or has expired."""
        with self._lock:
            kept = self._found.get(_digest(value))
        return kept.config if kept is not None and kept.end > self._clock() else None

    def _has_room(self, new: _Kept) -> bool:
        if new.address is None:
            return len(self._found) < MAX_SECRETS
        others = [kept for kept in self._found.values() if kept.address is not None]
        own = [kept for kept in others if kept.address == new.address]
        for kept, share in ((others, 1.0), (own, SHARE)):
            size = sum(each.size for each in kept) + new.size
            if len(kept) >= share * (MAX_SECRETS - FOR_PAGE) or size > share * MAX_BYTES:
                return False
        return True


class ExpiresAfter(Fields):
    """When a secret expires."""

    anchor: Annotated[Literal["created_at"], NULL_IS_DEFAULT] = "created_at"
    seconds: Annotated[int, WHOLE, NULL_IS_DEFAULT] = Field(
        default=DEFAULT_SECONDS, ge=LEAST_SECONDS, le=MOST_SECONDS
    )


class SecretRequest(Fields):
    """The body of `POST /v1/realtime/client_secrets`."""

    expires_after: Annotated[ExpiresAfter, NULL_IS_DEFAULT] = ExpiresAfter()
    session: SessionConfig = START


def read_request(given: object) -> tuple[SessionConfig, int, list[str]]:
    """The body of the request: session, seconds, names of unknown fields. Raises APIError."""
    body = check(SecretRequest, given)
    assert isinstance(given, dict)
    return START.changed(body.session), body.expires_after.seconds, body.unknown(given, "")


def secret_response(
    value: str, expires_at: int, config: SessionConfig, unknown: list[str]
) -> dict[str, Any]:
    """The response's JSON."""
    session = session_object(config, "sess_" + secrets.token_hex(12), unknown=unknown)
    return {"value": value, "expires_at": expires_at, "session": session}


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()
