"""Reads files in other processes, so that a decoder's crash or hang fails one recording only, and
so that decoding does not hold this process's interpreter lock.

A worker reads a file, never a URL, within a memory limit, and sends the samples through a pipe. It
is killed if it takes too long or sends too much, or if the file is no longer needed. If something
else kills it, such as a system that is short of memory, another worker tries again.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import StoredSamples
from slimwhisper.audio.sources import name_for_messages, open_source, pieces_of
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.types import SAMPLE_RATE

MAX_MEMORY = 4 << 30  # bytes of address space of a worker
TIMEOUT = 3600.0  # seconds for one file: days of audio take minutes, unless a decoder hangs
ATTEMPTS = 2  # at a file whose worker is killed
KILLED = (-9, -15)  # exit status by SIGKILL and SIGTERM; a decoder that crashes has others
SOURCE_RATE = 2 * 192_000  # samples of a file for each second that a recording may last
MESSAGE = 1 << 17  # bytes that a worker collects before it sends them
MAX_MESSAGE = 1 << 28  # bytes; a longer message shows that a decoder has taken over the worker
CHECK = 0.1  # seconds between checks while a worker sends nothing
COMMAND = [sys.executable, "-m", "slimwhisper.audio.readers"]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class UnreadableError(Exception):
    """A worker's message that it cannot read a file; the worker is still usable."""


class KilledError(Exception):
    """Something else killed a worker."""


class ReaderProcess(subprocess.Popen[bytes]):
    """A process that reads one file at a time, and the connection to it."""

    def __init__(self) -> None:
        self.connection, worker_end = Pipe()
        with worker_end:
            super().__init__(
                [*COMMAND, str(worker_end.fileno())],
                pass_fds=[worker_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # libraries may print
                stderr=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
                # Ctrl-C in a terminal is for the main process, which finishes the files in progress
                start_new_session=True,
            )

    def end(self) -> None:
        self.kill()
        self.wait()


class Readers:
    """Worker processes, each started when first needed and restarted after its death.

    They end with `close`, or with this process. Any thread may call.
    """

    def __init__(self, count: int, seconds: float = float("inf"), timeout: float = TIMEOUT) -> None:
        """count: of workers; 0: none. seconds: longest recording. timeout: seconds to decode a
        recording.
        """
        self.count, self.seconds, self.timeout = count, seconds, timeout
        self._free: queue.SimpleQueue[ReaderProcess | None] = queue.SimpleQueue()
        self._workers: set[ReaderProcess] = set()
        self._closed = False
        self._lock = threading.Lock()
        for _ in range(count):
            self._free.put(None)

    def can_read(self, path: str | PathLike[str]) -> bool:
        """Whether there are workers, and the path is a regular file, and the same one in a worker;
        /dev/stdin is not.
        """
        special = os.fspath(path).startswith(("/dev/", "/proc/"))
        return self.count > 0 and not special and os.path.isfile(path)  # noqa: PTH113  (never raises)

    def read(
        self,
        path: str | PathLike[str],
        name: str | None = None,
        *,
        allow_truncated: bool = False,
        split: bool = False,
        on_samples: Callable[[int], None] = lambda samples: None,
    ) -> StoredSamples:
        """A file's samples, mono at 16 kHz. Waits for a free worker.

        `name` is the file's name in messages; None: its path. `allow_truncated` accepts a file that
        ends early. `split` keeps the channels, whose samples count together. `on_samples` is
        called with the number of samples, before more are stored and while waiting; an exception
        from it ends the reading, and is raised here. Raises AudioError as `load_samples` does, and
        if the recording is too long or its decoder crashes or hangs.
        """
        path = os.fspath(path)
        name = name_for_messages(path) if name is None else name
        request = [path, name, allow_truncated, self.seconds * SOURCE_RATE, split]
        for _ in range(ATTEMPTS):
            with suppress(KilledError):
                return self._read_once(request, name, on_samples)
        raise AudioError(
            f"{name}: its decoder was killed {ATTEMPTS} times; free memory, if it is short, and "
            "try again"
        )

    def _read_once(
        self, request: list[object], name: str, on_samples: Callable[[int], None]
    ) -> StoredSamples:
        """The result of `read`. Raises KilledError."""
        worker = self._free.get()
        completed = False
        try:
            if worker is not None and worker.poll() is not None:  # died while it was idle
                self._drop(worker)
                worker = None
            worker = worker or self._start()
            samples = StoredSamples(name, self._pieces(worker, request, name, on_samples))
            completed = True
            return samples
        except UnreadableError as error:
            completed = True
            raise AudioError(str(error)) from None
        finally:
            if worker is not None and not completed:  # the rest would answer the next request
                self._drop(worker)
                worker = None
            self._free.put(worker)

    def close(self) -> None:
        """End all workers. Files in progress fail, and so do calls that wait for a worker."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.end()
            self._workers.clear()

    def _start(self) -> ReaderProcess:
        with self._lock:
            if self._closed:
                raise AudioError("the readers are closed; no recordings can be read")
            self._workers.add(worker := ReaderProcess())
            return worker

    def _drop(self, worker: ReaderProcess) -> None:
        worker.end()
        worker.connection.close()
        with self._lock:
            self._workers.discard(worker)

    def _pieces(
        self,
        worker: ReaderProcess,
        request: list[object],
        name: str,
        on_samples: Callable[[int], None],
    ) -> Iterator[NDArray[np.int16]]:
        """The samples that a worker sends, in pieces of int16 [n] at 16 kHz, or [n, channels]."""
        samples, started, connection = 0, time.monotonic(), worker.connection
        limit = threading.Timer(self.timeout, worker.kill)
        limit.daemon = True
        limit.start()
        try:
            connection.send_bytes(json.dumps(request).encode())
            while True:
                while not connection.poll(CHECK):
                    on_samples(samples)
                if not (data := connection.recv_bytes(MAX_MESSAGE)):
                    break
                message = np.frombuffer(data, np.int16)
                channels, piece = int(message[0]), message[1:]
                if channels > 1:
                    piece = piece.reshape(-1, channels)
                samples += piece.size
                if samples > self.seconds * SAMPLE_RATE:
                    minutes = self.seconds / 60
                    together = ", all channels together" if channels > 1 else ""
                    raise AudioError(f"{name}: longer than the limit of {minutes:g} min{together}")
                on_samples(samples)
                yield piece
            error_message = json.loads(connection.recv_bytes(MAX_MESSAGE))
        except (OSError, EOFError) as error:
            reason = "failed"
            with suppress(subprocess.TimeoutExpired):
                if time.monotonic() - started > self.timeout:
                    reason = f"took longer than {self.timeout:g} s"
                elif worker.wait(1) in KILLED:
                    raise KilledError from error
            raise AudioError(f"{name}: its decoder {reason}; convert it to WAV or FLAC") from error
        finally:
            limit.cancel()
        if error_message:
            raise UnreadableError(error_message)


def _send(
    path: str, name: str, allow_truncated: bool, max_samples: float, split: bool, to: Connection
) -> str:
    """Send a file's samples; returns the error message, or nothing."""
    buffer = bytearray()
    try:
        _, file = open_source(path)
        with file:
            for piece in pieces_of(name, file, allow_truncated, max_samples, split):
                if not buffer:
                    channels = piece.shape[1] if piece.ndim == 2 else 1
                    buffer += np.int16(channels).tobytes()
                buffer += piece.tobytes()
                if len(buffer) >= MESSAGE:
                    to.send_bytes(buffer)
                    buffer.clear()
    except SlimWhisperError as error:
        return str(error).replace(path, name)
    except MemoryError:
        return f"{name}: decoding it takes more memory than allowed; convert it to WAV or FLAC"
    if buffer:
        to.send_bytes(buffer)
    return ""


def _limit_memory() -> None:
    """Limit this process, if the system can: Windows cannot, macOS not its memory."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def main() -> None:
    """The worker; its argument is the file descriptor of its end of the connection. In: requests in
    JSON, [path, name, allow_truncated, most samples of the file, split]. Out, for each: messages of
    the number of channels and samples, an empty message, and an error message, empty if there is no
    error.
    """
    _limit_memory()
    with suppress(EOFError, OSError), Connection(int(sys.argv[1])) as connection:
        while True:
            path, name, allow_truncated, max_samples, split = json.loads(connection.recv_bytes())
            message = _send(path, name, allow_truncated, max_samples, split, connection)
            connection.send_bytes(b"")
            connection.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main()
