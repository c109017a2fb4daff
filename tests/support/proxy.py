"""A proxy that hands on what lies under a path, without that path; websockets, too."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

MOST = 1 << 16  # bytes at a time


@contextmanager
def proxy(port: int, prefix: str) -> Iterator[str]:
    """Hands on `{url}{prefix}/...` to a port of this machine; yields its url."""
    started, ports = threading.Event(), list[int]()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError), closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).replace(f" {prefix}/".encode(), b" /", 1)
            if b"\r\nupgrade:" not in head.lower():  # one request a connection
                head = head.replace(b"keep-alive", b"close", 1)
            from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
            to_server.write(head)
            await asyncio.gather(_copy(reader, to_server), _copy(from_server, writer))

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()
        await stop.wait()
        server.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(10)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError), closing(writer):
        while data := await reader.read(MOST):
            writer.write(data)
            await writer.drain()
