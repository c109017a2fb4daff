"""Reads files in other processes, so that a decoder's crash or hang fails one recording only, and
so that decoding does not hold this process's interpreter lock.

A worker reads a file, never a URL, within a memory limit, and sends the samples through a pipe. It
is killed if it takes too long or sends too much, or if nobody wants the file any more. If others
kill it, as a system does that is short of memory, another one tries again.
"""

import json
import os
import queue
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import PathLike
from typing import BinaryIO

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
PIPE = 1 << 16  # bytes that a pipe holds
CHECK = 100  # milliseconds between checks while a worker sends nothing
# before each piece: its bytes; 0: the answer follows, after its bytes
SIZE = struct.Struct("<I")
COMMAND = [sys.executable, "-m", "slimwhisper.audio.readers"]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class AnswerError(Exception):
    """A worker's message about a file it cannot read; the worker itself is fine."""


class KilledError(Exception):
    """A worker was killed, but not from here."""


class Readers:
    """Worker processes, each started when first needed and restarted after it has died.

    They end with `close`, or when this process does. Any thread may call.
    """

    def __init__(self, count: int, seconds: float = float("inf"), timeout: float = TIMEOUT) -> None:
        """count: of workers; 0: none. seconds: of audio, at most, in a recording. timeout: seconds
        to decode one.
        """
        self.count, self.seconds, self.timeout = count, seconds, timeout
        self._free: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._workers: set[subprocess.Popen[bytes]] = set()
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
                self._end(worker)
                worker = None
            worker = worker or self._start()
            samples = StoredSamples(name, self._pieces(worker, request, name, keep))
            whole = True
            return samples
        except AnswerError as error:
            whole = True
            raise AudioError(str(error)) from None
        finally:
            # the rest of its output would answer the next request
            if worker is not None and (not whole or worker.poll() is not None):
                self._end(worker)
                worker = None
            self._free.put(worker)

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

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._closed:
                raise AudioError("no recordings are read any more")
            worker = _start()
            self._workers.add(worker)
            return worker

    def _end(self, worker: "subprocess.Popen[bytes]") -> None:
        worker.kill()
        worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        with self._lock:
            self._workers.discard(worker)

    def _pieces(
        self,
        worker: "subprocess.Popen[bytes]",
        request: list[object],
        name: str,
        keep: Callable[[int], None],
    ) -> Iterator[NDArray[np.int16]]:
        """The samples that a worker sends, in pieces of int16 [n] at 16 kHz."""
        assert worker.stdin is not None and worker.stdout is not None
        samples, ends = 0, time.monotonic() + self.timeout

        def check() -> None:
            keep(samples)
            if time.monotonic() > ends:
                seconds = f"{self.timeout:g} s"
                raise AudioError(
                    f"{name}: its decoder took longer than {seconds}; convert it to WAV or FLAC"
                )

        output = _Output(worker.stdout.fileno(), check)
        try:
            worker.stdin.write(json.dumps(request).encode() + b"\n")
            worker.stdin.flush()
            while size := SIZE.unpack(output.read(SIZE.size))[0]:
                piece = np.frombuffer(output.read(size), np.int16)
                samples += len(piece)
                if samples > self.seconds * SAMPLE_RATE:
                    minutes = self.seconds / 60
                    raise AudioError(f"{name}: longer than the limit of {minutes:g} min")
                check()
                yield piece
            (length,) = SIZE.unpack(output.read(SIZE.size))
            answer = json.loads(output.read(length))
        except (OSError, EOFError) as error:
            with suppress(subprocess.TimeoutExpired):
                if worker.wait(1) in KILLED:
                    raise KilledError from error
            raise AudioError(f"{name}: its decoder failed; convert it to WAV or FLAC") from error
        if answer is not None:
            raise AnswerError(answer)


class _Output:
    """What a worker sends."""

    def __init__(self, file: int, check: Callable[[], None]) -> None:
        """file: its descriptor. check: called while nothing comes; what it raises is passed on."""
        self._file, self._check = file, check
        self._data = bytearray()
        self._poll = select.poll()
        self._poll.register(file, select.POLLIN)

    def read(self, count: int) -> bytearray:
        """The next `count` bytes. Raises EOFError if there are fewer."""
        while len(self._data) < count:
            while not self._poll.poll(CHECK):
                self._check()
            more = os.read(self._file, PIPE)
            if not more:
                raise EOFError
            self._data += more
        found = self._data[:count]
        del self._data[:count]
        return found


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ONE_THREAD},
        # Ctrl-C in a terminal is for this process, which lets the files in progress finish
        start_new_session=True,
    )


def _send(path: str, name: str, allow_truncated: bool, most: float, out: BinaryIO) -> str | None:
    """Send a file's samples; the error message, or None."""
    try:
        _, file = open_source(path)
        with file:
            for piece in pieces_of(name, file, allow_truncated, most):
                out.write(SIZE.pack(piece.nbytes))
                out.write(piece.tobytes())
    except SlimWhisperError as error:
        return str(error).replace(path, name)
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
    """The worker. In: lines of JSON, [path, name, allow_truncated, most samples of the file]. Out,
    for each: pieces, then null or an error message, in JSON.
    """
    _limit_memory()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print out of the pipe
    for line in sys.stdin.buffer:
        path, name, allow_truncated, most = json.loads(line)
        answer = json.dumps(_send(path, name, allow_truncated, most, out)).encode()
        out.write(SIZE.pack(0) + SIZE.pack(len(answer)) + answer)
        out.flush()


if __name__ == "__main__":
    main()
