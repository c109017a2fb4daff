"""Client secrets: short-lived keys for browsers, which permit realtime sessions only.

A secret contains its session's configuration and a signature, so the server stores none. The
signing key is generated when a server starts, so secrets do not outlive the server.
"""

import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from slimwhisper.app.api.access import SECRET
from slimwhisper.app.api.fields import NULL_IS_DEFAULT, WHOLE, LenientModel, check, refused
from slimwhisper.app.realtime.session import START, SessionConfig

DEFAULT_SECONDS, MIN_SECONDS, MAX_SECONDS = 600, 10, 7200
MAX_LENGTH = 6000  # characters: browsers send it in a header's line, of which 8 kB are read


class Content(LenientModel):
    """The content of a secret, which is signed, not encrypted."""

    end: float  # when it expires, in seconds of the clock
    session: SessionConfig


class ClientSecrets:
    """Issues secrets, and verifies them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock, self._key = clock, secrets.token_bytes(32)

    def issue(
        self, config: SessionConfig = START, seconds: float = DEFAULT_SECONDS
    ) -> tuple[str, int]:
        """A new secret, and when it expires, in seconds since the epoch.

        config: of its sessions at their start. Raises APIError if that is too long.
        """
        content = Content(end=self._clock() + seconds, session=config).model_dump_json()
        text = urlsafe_b64encode(content.encode()).decode().rstrip("=")
        value = f"{SECRET}{text}.{self._signature(text)}"
        if len(value) > MAX_LENGTH:
            reason = "the session is too long for a client secret; send its prompt in an update"
            raise refused("session", reason)
        return value, int(time.time() + seconds)

    def session(self, value: str) -> SessionConfig | None:
        """The session's configuration; None if the secret is invalid or has expired."""
        text, _, signature = value.removeprefix(SECRET).partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return None
        content = Content.model_validate_json(urlsafe_b64decode(f"{text}=="))
        return content.session if content.end > self._clock() else None

    def _signature(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(), "sha256").hex()


class ExpiresAfter(LenientModel):
    """The lifetime of a secret."""

    anchor: Annotated[Literal["created_at"], NULL_IS_DEFAULT] = "created_at"
    seconds: Annotated[int, WHOLE, NULL_IS_DEFAULT] = Field(
        default=DEFAULT_SECONDS, ge=MIN_SECONDS, le=MAX_SECONDS
    )


class SecretRequest(LenientModel):
    """The body of `POST /v1/realtime/client_secrets`."""

    expires_after: Annotated[ExpiresAfter, NULL_IS_DEFAULT] = ExpiresAfter()
    session: SessionConfig = START


def read_request(data: dict[str, Any]) -> tuple[SessionConfig, int, list[str]]:
    """The request's session, seconds, and names of unknown fields. Raises APIError."""
    body = check(SecretRequest, data)
    return body.session, body.expires_after.seconds, body.unknown(data, "")
