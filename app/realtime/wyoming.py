"""Serves the Wyoming protocol, by which Home Assistant requests transcripts.

It has no authentication: every client that reaches the port may use it.
"""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slimwhisper.app.connections import listen
from slimwhisper.app.realtime.discovery import announce
from slimwhisper.app.realtime.frames import MAX_LINE
from slimwhisper.app.realtime.wyoming_client import WyomingClient
from slimwhisper.app.service.host import ServerHost
from slimwhisper.errors import OptionError

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

logger = logging.getLogger("slimwhisper.serve")

MAX_CONNECTIONS = 256
CLOSING = 5.0  # seconds to send the clients the error of a shutdown


class Wyoming:
    """The server of the protocol: a port, and its connections."""

    def __init__(self, host: ServerHost) -> None:
        self._host, self._settings = host, host.settings
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._announcer: AsyncZeroconf | None = None

    async def start(self) -> None:
        """Listen. Raises OptionError if the port cannot be used, or not be announced."""
        host, port = self._settings.host, self._settings.wyoming
        try:
            self._server = await asyncio.start_server(
                self._connected, host, port, limit=MAX_LINE, backlog=1
            )
        except OSError as error:
            raise OptionError(f"--wyoming {port}: {error.strerror}; choose another port") from error
        listen(self._server)
        if self._settings.discover:
            try:
                self._announcer = await announce(self._server.sockets)
            except OptionError:
                self._server.close()
                raise
        logger.info("Wyoming protocol on tcp://%s:%s, without authentication", host, port)

    async def stop(self) -> None:
        """Stop listening, and end all connections: complete recordings get their transcript, the
        others the text so far; then the clients get an error. Clients that do not read are dropped.
        """
        if self._announcer is not None:
            await self._announcer.async_close()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            timeout = self._settings.patience + CLOSING
            _, running = await asyncio.wait(self._tasks, timeout=timeout)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it disconnects or the server stops."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = WyomingClient(reader, writer, self._host)
        try:
            if len(self._tasks) > MAX_CONNECTIONS:
                await connection.refuse("busy", "too many connections; try again in a minute")
            else:
                await connection.run()
        except asyncio.CancelledError:  # the server stops
            with suppress(ConnectionError, asyncio.CancelledError):  # at the second, at once
                await connection.shutdown()
        except ConnectionError:
            pass
        finally:
            connection.close()
            writer.close()
            try:
                async with asyncio.timeout(1):
                    await writer.wait_closed()
            except (ConnectionError, TimeoutError, asyncio.CancelledError):
                pass
            finally:  # also when the server waits no longer; until then it waits for this
                writer.transport.abort()
                self._tasks.discard(task)
