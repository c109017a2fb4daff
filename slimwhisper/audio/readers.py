"""Reads files in other processes, so that a decoder's crash or hang fails one recording only, and
so that decoding does not hold this process's interpreter lock.

A worker reads a file, never a URL, within a memory limit, and writes the samples to an unnamed file
that it is handed with the request, over a socket. It is killed if it takes too long or writes too
much, or if nobody wants the file any more. If others kill it, as a system does that is short of
memory, another one tries again.
"""

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from typing import BinaryIO

from slimwhisper.audio.samples import SAMPLE_BYTES, StoredSamples, no_room
from slimwhisper.audio.sources import open_source, pieces_of, shown_name
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.types import SAMPLE_RATE

MAX_MEMORY = 4 << 30  # bytes of address space of a worker
TIMEOUT = 3600.0  # seconds for one file: days of audio take minutes, so a decoder hangs
TRIES = 2  # of a file whose worker is killed
KILLED = (-9, -15)  # exit status by SIGKILL and SIGTERM; a decoder that crashes has others
SOURCE_RATE = 2 * 192_000  # samples of a file for each second that a recording may last
CHECK = 0.1  # seconds between checks while a worker decodes
LONGEST_LINE = 1 << 16  # bytes of a request or an answer
COMMAND = [sys.executable, "-m", "slimwhisper.audio.readers"]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class KilledError(Exception):
    """A worker was killed, but not from here."""


class Worker(subprocess.Popen[bytes]):
    """A process that runs `main`, and our end of its socket."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(CHECK)
        with theirs:
            super().__init__(
                COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
                # Ctrl-C in a terminal is for this process, which lets the files in progress finish
                start_new_session=True,
            )

    def end(self) -> None:
        """Kill it, and wait."""
        self.kill()
        self.wait()
        self.socket.close()


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
        that ends early. `keep` is called with the number of samples, again and again while more
        are stored; what it raises ends the reading, and is raised here. Raises AudioError
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
                self._end(worker)
                worker = None
            worker = worker or self._start()
            found = self._ask(worker, request, name, keep)
            whole = True
        finally:
            # what it would still say would answer the next request
            if worker is not None and (not whole or worker.poll() is not None):
                self._end(worker)
                worker = None
            self._free.put(worker)
        if isinstance(found, str):
            raise AudioError(found)
        return found

    def close(self) -> None:
        """End all workers. What they are reading fails."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()
        for _ in range(self.count):
            with suppress(queue.Empty):
                idle = self._free.get_nowait()
                if idle is not None:
                    self._end(idle)
                self._free.put(None)  # for threads that still wait; they get an error

    def _start(self) -> Worker:
        with self._lock:
            if self._closed:
                raise AudioError("no recordings are read any more")
            worker = Worker()
            self._workers.add(worker)
            return worker

    def _end(self, worker: Worker) -> None:
        worker.end()
        with self._lock:
            self._workers.discard(worker)

    def _ask(
        self, worker: Worker, request: list[object], name: str, keep: Callable[[int], None]
    ) -> StoredSamples | str:
        """The samples that a worker decodes, or its message about a file that it cannot read."""
        ends = time.monotonic() + self.timeout

        def check() -> None:
            samples = os.fstat(file.fileno()).st_size // SAMPLE_BYTES
            keep(samples)
            if samples > self.seconds * SAMPLE_RATE:
                raise AudioError(f"{name}: longer than the limit of {self.seconds / 60:g} min")
            if time.monotonic() > ends:
                raise AudioError(
                    f"{name}: its decoder took longer than {self.timeout:g} s; convert it to WAV "
                    "or FLAC"
                )

        with tempfile.TemporaryFile() as file:
            line, answer = json.dumps(request).encode() + b"\n", b""
            try:
                socket.send_fds(worker.socket, [line], [file.fileno()])
                while not answer.endswith(b"\n"):
                    check()
                    with suppress(TimeoutError):
                        answer += (more := worker.socket.recv(LONGEST_LINE))
                        if not more or len(answer) > LONGEST_LINE:
                            raise EOFError
                message: str | None = json.loads(answer)
            except (OSError, EOFError, ValueError) as error:
                with suppress(subprocess.TimeoutExpired):
                    if worker.wait(1) in KILLED:
                        raise KilledError from error
                raise AudioError(
                    f"{name}: its decoder failed; convert it to WAV or FLAC"
                ) from error
            if message is not None:
                return message
            check()
            return StoredSamples.of_file(file)


def _send(path: str, name: str, allow_truncated: bool, most: float, out: BinaryIO) -> str | None:
    """Write a file's samples; the error message, or None."""
    try:
        _, file = open_source(path)
        with file, out:
            for piece in pieces_of(name, file, allow_truncated, most):
                out.write(piece.tobytes())
    except SlimWhisperError as error:
        return str(error).replace(path, name)
    except OSError as error:
        return str(no_room(name, error))
    except MemoryError:
        return f"{name}: too large to decode here"
    return None


def _limit_memory() -> None:
    """Limits of this process, where the system has them: Windows has none, macOS not this one."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def main() -> None:
    """The worker. In, over the socket that is its standard input: lines of JSON, [path, name,
    allow_truncated, most samples of the file], each with a file for the samples. Out, for each:
    null or an error message, in JSON.
    """
    _limit_memory()
    with socket.socket(fileno=os.dup(0)) as link:
        while True:
            line, files, _, _ = socket.recv_fds(link, LONGEST_LINE, 1)
            if not line:
                return
            path, name, allow_truncated, most = json.loads(line)
            answer = _send(path, name, allow_truncated, most, os.fdopen(files[0], "wb"))
            link.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
