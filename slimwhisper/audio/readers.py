"""Reads files in other processes, so that a decoder's crash or hang fails one recording only, and
so that decoding does not hold this process's interpreter lock.

A worker reads a file, never a URL, within a memory limit, and sends the samples through a pipe. It
is killed if it takes too long or sends too much.
"""

import json
import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from os import PathLike
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import StoredSamples
from slimwhisper.audio.sources import open_source, pieces_of, shown_name
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.types import SAMPLE_RATE

MAX_MEMORY = 4 << 30  # bytes of address space of a worker
TIMEOUT = 3600.0  # seconds for one file: days of audio take minutes, so a decoder hangs
SIZE = struct.Struct("<I")  # before each piece: its bytes; 0: the answer follows, one line of JSON
COMMAND = [sys.executable, "-m", "slimwhisper.audio.readers"]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class AnswerError(Exception):
    """A worker's message about a file it cannot read; the worker itself is fine."""


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
    ) -> StoredSamples:
        """A file's samples, mono at 16 kHz. Waits for a free worker.

        `name` stands for the file in messages; None: its path. `allow_truncated` accepts a file
        that ends early. Raises AudioError as `load_samples` does, and if the recording is too long
        or its decoder crashes or hangs.
        """
        path = os.fspath(path)
        name = shown_name(path) if name is None else name
        worker = self._free.get()
        whole = False
        try:
            if worker is not None and worker.poll() is not None:  # died while it was idle
                self._end(worker)
                worker = None
            worker = worker or self._start()
            killer = threading.Timer(self.timeout, worker.kill)
            killer.start()
            try:
                request = [path, name, allow_truncated]
                samples = StoredSamples(name, self._pieces(worker, request, name))
                whole = True
                return samples
            except AnswerError as error:
                whole = True
                raise AudioError(str(error)) from None
            finally:
                killer.cancel()
                killer.join()
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
        self, worker: "subprocess.Popen[bytes]", request: list[object], name: str
    ) -> Iterator[NDArray[np.int16]]:
        """The samples that a worker sends, in pieces of int16 [n] at 16 kHz."""
        assert worker.stdin is not None and worker.stdout is not None
        left = self.seconds * SAMPLE_RATE
        try:
            worker.stdin.write(json.dumps(request).encode() + b"\n")
            worker.stdin.flush()
            while size := SIZE.unpack(_exactly(worker.stdout, SIZE.size))[0]:
                piece = np.frombuffer(_exactly(worker.stdout, size), np.int16)
                left -= len(piece)
                if left < 0:
                    minutes = self.seconds / 60
                    raise AudioError(f"{name}: longer than the limit of {minutes:g} min")
                yield piece
            answer = json.loads(worker.stdout.readline())
        except (OSError, EOFError) as error:
            raise AudioError(
                f"{name}: its decoder failed, or took longer than {self.timeout:g} s; convert it "
                "to WAV or FLAC"
            ) from error
        if answer is not None:
            raise AnswerError(answer)


def _exactly(file: IO[bytes], count: int) -> bytes:
    """`count` bytes. Raises EOFError if there are fewer."""
    data = file.read(count)
    if len(data) < count:
        raise EOFError
    return data


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


def _send(path: str, name: str, allow_truncated: bool, out: BinaryIO) -> str | None:
    """Send a file's samples; the error message, or None."""
    try:
        _, file = open_source(path)
        with file:
            for piece in pieces_of(name, file, allow_truncated):
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
    """The worker. In: lines of JSON, [path, name, allow_truncated]. Out, for each: pieces, then
    null or an error message.
    """
    _limit_memory()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print out of the pipe
    for line in sys.stdin.buffer:
        path, name, allow_truncated = json.loads(line)
        message = _send(path, name, allow_truncated, out)
        out.write(SIZE.pack(0) + json.dumps(message).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
