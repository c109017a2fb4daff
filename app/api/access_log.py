"""Keeps secrets out of the log of requests: its readers must not gain access by it."""

import logging
import re
from asyncio import CancelledError

# the page's paths after their first two parts have the secret addresses of results and uploads
PATH = re.compile(r"(/+(?:page|gradio_api)/+[^/?=%]*)[/=%][^?]*")
# Uvicorn logs this error for a websocket that was refused with a status, which is no mistake
# (github.com/Kludex/uvicorn/pull/3138)
REFUSED = "ASGI callable returned without completing handshake."
NOT_UTF8 = "Invalid UTF-8 sequence received from client."  # with a traceback
QUERY = re.compile(r"\?.*")  # may contain a key, or the name of a session


def hide_secrets() -> None:
    """Shorten the paths that Uvicorn logs, and drop what is no error of the server."""
    for name in ("uvicorn.access", "uvicorn.error"):  # requests, and websockets
        logging.getLogger(name).addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_shortened, record.args))
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    return not isinstance(error, CancelledError) and record.msg not in (REFUSED, NOT_UTF8)


def _shortened(value: object) -> object:
    if not (isinstance(value, str) and value.startswith("/")):
        return value
    return QUERY.sub("?...", PATH.sub(r"\1/...", value))
