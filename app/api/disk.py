"""What the server says when the disk of its temporary files is full."""

import errno
import logging
import shutil
import tempfile

from fastapi import Request
from fastapi.responses import Response

from slimwhisper.app.api.errors import APIError

FULL = (errno.ENOSPC, errno.EDQUOT)
LEAST_FREE = 16 << 20  # bytes; with less, the disk is called full

logger = logging.getLogger("slimwhisper.serve")


def disk_is_full() -> bool:
    """Whether there is no room for the files of another request."""
    return shutil.disk_usage(tempfile.gettempdir()).free < LEAST_FREE


async def disk_full(_: Request, error: Exception) -> Response:
    """The response to an OSError. Raises it again if it is about anything else."""
    if not (isinstance(error, OSError) and error.errno in FULL):
        raise error
    return no_room().response()


def no_room() -> APIError:
    """The response to what does not fit on the disk; the log says which."""
    folder = tempfile.gettempdir()
    logger.error("%s: the disk is full; free some space, or set TMPDIR to another folder", folder)
    message = "the server's disk is full; try again later"
    return APIError(507, message, "disk_full", headers={"Retry-After": "60"})
