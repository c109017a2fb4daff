"""Client secrets: keys that a page in a browser may have, for a while, for realtime sessions only.

A secret says what it stands for, and is signed; nothing is kept of it. The key that signs is made
when a server starts, so secrets end with it.
"""

import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from slimwhisper.app.api.access import SECRET
from slimwhisper.app.api.fields import NULL_IS_DEFAULT, WHOLE, Fields, check, refused
from slimwhisper.app.realtime.session import START, SessionConfig

DEFAULT_SECONDS, LEAST_SECONDS, MOST_SECONDS = 600, 10, 7200
MAX_LENGTH = 6000  # characters: browsers send it in a header's line, of which 8 kB are read


class Content(Fields):
    """What a secret says; anybody can read it."""

    end: float  # seconds of the clock
    session: SessionConfig


class ClientSecrets:
    """Makes secrets, and knows its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock, self._key = clock, secrets.token_bytes(32)

    def issue(
        self, config: SessionConfig = START, seconds: float = DEFAULT_SECONDS
    ) -> tuple[str, int]:
        """A new secret, and when it expires, in seconds since the epoch.

        config: what its sessions start with. Raises APIError if that is too long.
        """
        content = Content(end=self._clock() + seconds, session=config).model_dump_json()
        text = urlsafe_b64encode(content.encode()).decode().rstrip("=")
        value = f"{SECRET}{text}.{self._signature(text)}"
        if len(value) > MAX_LENGTH:
            reason = "the session is too long for a client secret; send its prompt by an update"
            raise refused("session", reason)
        return value, int(time.time() + seconds)

    def session(self, value: str) -> SessionConfig | None:
        """The session that a secret stands for; None if it is not ours or has expired."""
        text, _, signature = value.removeprefix(SECRET).partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return None
        found = Content.model_validate_json(urlsafe_b64decode(f"{text}=="))
        return found.session if found.end > self._clock() else None

    def _signature(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(), "sha256").hex()


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


def read_request(given: dict[str, Any]) -> tuple[SessionConfig, int, list[str]]:
    """The body of the request: session, seconds, names of unknown fields. Raises APIError."""
    body = check(SecretRequest, given)
    return body.session, body.expires_after.seconds, body.unknown(given, "")
