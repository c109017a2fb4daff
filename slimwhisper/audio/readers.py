"""Reads files in other processes, so that a decoder's crash or hang fails one recording only, and
so that decoding does not hold this process's interpreter lock.

A worker reads a file, never a URL, within a memory limit, and sends the samples through a pipe. It
is killed if it takes too long or sends too much, or if nobody wants the file any more. If others
kill it, as a system does that is short of memory, another one tries again.
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
from slimwhisper.audio.sources import open_source, pieces_of, shown_name
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.types import SAMPLE_RATE

MAX_MEMORY = 4 << 30  # bytes of address space of a worker
TIMEOUT = 3600.0  # seconds for one file: days of audio take minutes, so a decoder hangs
TRIES = 2  # of a file whose worker is killed
KILLED = (-9, -15)  # exit status by SIGKILL and SIGTERM; a decoder that crashes has others
SOURCE_RATE = 2 * 192_000  # samples of a file for each second that a recording may last
MESSAGE = 1 << 17  # bytes that a worker collects before it sends them
LONGEST = 1 << 28  # bytes of a message; a worker that sends a longer one is not ours any more
CHECK = 0.1  # seconds between checks while a worker sends nothing
COMMAND = [sys.executable, "-m", "slimwhisper.audio.readers"]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class AnswerError(Exception):
    """A worker's message about a file it cannot read; the worker itself is fine."""


class KilledError(Exception):
    """A worker was killed, but not from here."""


class Worker(subprocess.Popen[bytes]):
    """A process that reads one file at a time, and the connection to it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            super().__init__(
                [*COMMAND, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # libraries may print
                stderr=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
                # Ctrl-C in a terminal is for this process, which lets the files in progress finish
                start_new_session=True,
            )

    def end(self) -> None:
        self.kill()
        self.wait()


class Readers:
    """Worker processes, each started when first needed and restarted after it has died.

    They end with `close`, or when this process does. Any thread may call.
    """

    def __init__(self, count: int, seconds: float = float("inf"), timeout: float = TIMEOUT) -> None:
        """count: of workers; 0: none. seconds: of audio, at most, in a recording. timeout: seconds
        to decode one.
        """
        self.count, self.seconds, self.timeout = count, seconds, timeout
        self._free: queue.SimpleQueue[Worker | None] = queue.SimpleQueue()
        self._workers: set[Worker] = set()
        self._closed = False
        self._lock = threading.Lock()
        for _ in range(count):
            self._free.put(None)

    def can_read(self, path: str | PathLike[str]) -> bool:
        """Whether there are workers, and the path is a regular file and the same in a worker, which
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
        keep: Callable[[int], None] = lambda samples: None,
    ) -> StoredSamples:
        """A file's samples, mono at 16 kHz. Waits for a free worker.

        `name` stands for the file in messages; None: its path. `allow_truncated` accepts a file
        that ends early. `keep` is called with the number of samples, before more are stored and
        while nothing comes; what it raises ends the reading, and is raised here. Raises AudioError
        as `load_samples` does, and if the recording is too long or its decoder crashes or hangs.
        """
        path = os.fspath(path)
        name = shown_name(path) if name is None else name
        request = [path, name, allow_truncated, self.seconds * SOURCE_RATE]
        for _ in range(TRIES):
            with suppress(KilledError):
                return self._try(request, name, keep)
        raise AudioError(
            f"{name}: its decoder was killed {TRIES} times; if memory is short, free some, and try "
            "again"
        )

    def _try(self, request: list[object], name: str, keep: Callable[[int], None]) -> StoredSamples:
        """What `read` returns, if the worker is not killed; else KilledError."""
        worker = self._free.get()
        whole = False
        try:
            if worker is not None and worker.poll() is not None:  # died while it was idle
                self._drop(worker)
                worker = None
            worker = worker or self._start()
            samples = StoredSamples(name, self._pieces(worker, request, name, keep))
            whole = True
            return samples
        except AnswerError as error:
            whole = True
            raise AudioError(str(error)) from None
        finally:
            if worker is not None and not whole:  # the rest would answer the next request
                self._drop(worker)
                worker = None
            self._free.put(worker)

    def close(self) -> None:
        """End all workers. What they are reading fails, and so does what waits for one."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.end()
            self._workers.clear()

    def _start(self) -> Worker:
        with self._lock:
            if self._closed:
                raise AudioError("no recordings are read any more")
            self._workers.add(worker := Worker())
            return worker

    def _drop(self, worker: Worker) -> None:
        worker.end()
        worker.connection.close()
        with self._lock:
            self._workers.discard(worker)

    def _pieces(
        self, worker: Worker, request: list[object], name: str, keep: Callable[[int], None]
    ) -> Iterator[NDArray[np.int16]]:
        """The samples that a worker sends, in pieces of int16 [n] at 16 kHz."""
        samples, started, connection = 0, time.monotonic(), worker.connection
        limit = threading.Timer(self.timeout, worker.kill)
        limit.daemon = True
        limit.start()
        try:
            connection.send_bytes(json.dumps(request).encode())
            while True:
                while not connection.poll(CHECK):
                    keep(samples)
                if not (data := connection.recv_bytes(LONGEST)):
                    break
                piece = np.frombuffer(data, np.int16)
                samples += len(piece)
                if samples > self.seconds * SAMPLE_RATE:
                    minutes = self.seconds / 60
                    raise AudioError(f"{name}: longer than the limit of {minutes:g} min")
                keep(samples)
                yield piece
            answer = json.loads(connection.recv_bytes(LONGEST))
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
        if answer:
            raise AnswerError(answer)


def _send(path: str, name: str, allow_truncated: bool, most: float, to: Connection) -> str:
    """Send a file's samples; returns the error message, or nothing."""
    held = bytearray()
    try:
        _, file = open_source(path)
        with file:
            for piece in pieces_of(name, file, allow_truncated, most):
                held += piece.tobytes()
                if len(held) >= MESSAGE:
                    to.send_bytes(held)
                    held.clear()
    except SlimWhisperError as error:
        return str(error).replace(path, name)
    except MemoryError:
        return f"{name}: too large to decode here"
    if held:
        to.send_bytes(held)
    return ""


def _limit_memory() -> None:
    """Limits of this process, where the system has them: Windows has none, macOS not this one."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def main() -> None:
    """The worker, told its end of the connection by number. In: requests in JSON, [path, name,
    allow_truncated, most samples of the file]. Out, for each: samples, nothing, and an error
    message, which is empty if there is none.
    """
    _limit_memory()
    with suppress(EOFError, OSError), Connection(int(sys.argv[1])) as connection:
        while True:
            path, name, allow_truncated, most = json.loads(connection.recv_bytes())
            answer = _send(path, name, allow_truncated, most, connection)
            connection.send_bytes(b"")
            connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
