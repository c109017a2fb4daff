"""The log of requests: without what opens something for whoever reads it."""

import logging
import re

# what follows the first two parts of the page's paths: the addresses of results and of uploads
PATH = re.compile(r"(/+(?:page|gradio_api)/+[^/?=%]*)[/=%][^?]*")
# Uvicorn's own word on a websocket that was refused with a status of ours, as it should be
# (github.com/Kludex/uvicorn/pull/3138)
REFUSED = "ASGI callable returned without completing handshake."
QUERY = re.compile(r"\?.*")  # may have a key, or the name of a session


def hide_secrets() -> None:
    """Shorten the paths that Uvicorn logs, and leave out an error that is none."""
    for name in ("uvicorn.access", "uvicorn.error"):  # requests, and websockets
        logging.getLogger(name).addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_shortened, record.args))
    return record.msg != REFUSED


def _shortened(value: object) -> object:
    if not (isinstance(value, str) and value.startswith("/")):
        return value
    return QUERY.sub("?...", PATH.sub(r"\1/...", value))
