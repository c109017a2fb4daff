"""Error responses in OpenAI's format, including those of a full disk."""

import errno
import logging
import shutil
import tempfile
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from slimwhisper.app.service.jobs import BusyError, ModelError, StoppingError
from slimwhisper.errors import (
    AudioError,
    CacheError,
    CheckpointError,
    DependencyError,
    OptionError,
    ReaderKilledError,
    SlimWhisperError,
    StorageError,
)

STOPPING = "stopping"  # the code of an error: the server shuts down
INTERNAL = "internal_error"  # the code of an unexpected error
RETRY_AFTER = 10  # seconds, when the queue is full
FULL = (errno.ENOSPC, errno.EDQUOT)
MIN_FREE = 16 << 20  # bytes; with less, the disk counts as full

logger = logging.getLogger("slimwhisper.serve")


class APIError(HTTPException):
    """An error response in OpenAI's format, or in that of the API whose route it is."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code, self.param = code, param

    def __str__(self) -> str:
        return self.detail

    def body(self) -> dict[str, Any]:
        """The response's JSON."""
        kind = "invalid_request_error" if self.status_code < 500 else "server_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status_code, kind)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self, path: str = "") -> JSONResponse:
        """The whole response, in the format of the API that has this path."""
        body = self.body()
        if path.endswith("/v1/listen"):
            body = {"err_code": self.code, "err_msg": str(self)}
        elif path.endswith(("/asr", "/detect-language")):
            body = {"detail": str(self)}
        return JSONResponse(body, self.status_code, self.headers)


# the status, OpenAI's code, the form's field, and the seconds after which to try again
RESPONSES: dict[type[SlimWhisperError], tuple[int, str, str | None, int | None]] = {
    BusyError: (429, "queue_full", None, RETRY_AFTER),
    StoppingError: (503, STOPPING, None, 60),
    ReaderKilledError: (503, "out_of_memory", None, RETRY_AFTER),
    AudioError: (400, "invalid_audio", "file", None),
    OptionError: (400, "invalid_option", None, None),
    CacheError: (400, "invalid_option", None, None),
    ModelError: (503, "model_not_loaded", "model", None),
    CheckpointError: (404, "model_not_found", "model", None),
    DependencyError: (501, "not_installed", None, None),
}


def as_api_error(error: Exception) -> APIError:
    """The response to an error of this package or a full disk; any other is an internal one,
    whose details are only in the log.
    """
    if isinstance(error, APIError):
        return error
    if isinstance(error, StorageError) or (isinstance(error, OSError) and error.errno in FULL):
        return no_room()
    for kind, (status, code, param, retry) in RESPONSES.items():
        if isinstance(error, kind):
            headers = {"Retry-After": str(retry)} if retry else None
            return APIError(status, str(error), code, param, headers)
    return APIError(500, "internal server error; see the server's log", INTERNAL)


def too_large(limit: int) -> APIError:
    """The response to a body of more than `limit` bytes."""
    return APIError(413, f"the body is larger than the limit of {limit / 1e6:g} MB", "too_large")


def disk_is_full() -> bool:
    """Whether the disk has no room for the files of another request."""
    return shutil.disk_usage(tempfile.gettempdir()).free < MIN_FREE


async def error_response(request: Request, error: Exception) -> JSONResponse:
    """The response to any error; unexpected ones are logged."""
    if isinstance(error, HTTPException) and not isinstance(error, APIError):
        message = f"{request.method} {request.url.path}: {error.detail}"
        error = APIError(error.status_code, message, headers=dict(error.headers or {}))
    api_error = as_api_error(error)
    if api_error.code == INTERNAL:
        logger.error("a request failed", exc_info=error)
    return api_error.response(request.url.path)


def no_room() -> APIError:
    """The response when the disk is full; the log names the folder."""
    folder = tempfile.gettempdir()
    logger.error("%s: the disk is full; free some space, or set TMPDIR to another folder", folder)
    message = "the server's disk is full; try again later"
    return APIError(507, message, "disk_full", headers={"Retry-After": "60"})
