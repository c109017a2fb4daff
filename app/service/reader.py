"""Reads uploads in other processes, so that a decoder's crash or hang fails one request only.

A worker reads a file, never a URL, within a memory limit, and sends the samples through a pipe. It
is killed if it takes too long or sends too much.
"""

import json
import os
import queue
import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import StoredSamples
from slimwhisper.audio.sources import open_source, pieces_of
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.types import SAMPLE_RATE

MAX_MEMORY = 4 << 30  # bytes of address space of a worker
SIZE = struct.Struct("<I")  # before each piece: its bytes; 0: the answer follows, one line of JSON


class AnswerError(Exception):
    """A worker's message about a file it cannot read; the worker itself is fine."""


class Readers:
    """Worker processes, each started when first needed and restarted after it has died."""

    def __init__(self, count: int, seconds: float, timeout: float) -> None:
        """seconds: of audio, at most, in a recording. timeout: seconds to decode one."""
        self.seconds, self.timeout = seconds, timeout
        self._free: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._count = count
        for _ in range(count):
            self._free.put(None)

    def read(self, path: Path, name: str) -> StoredSamples:
        """A file's samples, mono at 16 kHz. Waits for a free worker.

        `name` stands for the file in messages. Raises AudioError, also if the recording is too
        long or its decoder crashes or hangs.
        """
        worker = self._free.get()
        if worker is not None and worker.poll() is not None:  # died while it was idle
            _end(worker)
            worker = None
        worker = worker or _start()
        killer = threading.Timer(self.timeout, worker.kill)
        killer.start()
        whole = False
        try:
            samples = StoredSamples(name, self._pieces(worker, path, name))
            whole = True
            return samples
        except AnswerError as error:
            whole = True
            raise AudioError(str(error)) from None
        finally:
            killer.cancel()
            killer.join()
            if not whole or worker.poll() is not None:
                _end(worker)  # else the rest of its output would answer the next request
            self._free.put(worker if worker.returncode is None else None)

    def close(self) -> None:
        """End the idle workers. Busy ones end with the files they are reading."""
        for _ in range(self._count):
            with suppress(queue.Empty):
                worker = self._free.get_nowait()
                if worker is not None:
                    _end(worker)

    def _pieces(
        self, worker: "subprocess.Popen[bytes]", path: Path, name: str
    ) -> Iterator[NDArray[np.int16]]:
        """The samples that a worker sends, in pieces of int16 [n] at 16 kHz."""
        assert worker.stdin is not None and worker.stdout is not None
        left = self.seconds * SAMPLE_RATE
        try:
            worker.stdin.write(json.dumps([str(path), name]).encode() + b"\n")
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
    command = [sys.executable, "-m", "slimwhisper.app.service.reader"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def _end(worker: "subprocess.Popen[bytes]") -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()


def _send(path: str, name: str, out: BinaryIO) -> str | None:
    """Send a file's samples; the error message, or None."""
    try:
        _, file = open_source(path)
        with file:
            for piece in pieces_of(name, file, False):
                out.write(SIZE.pack(piece.nbytes))
                out.write(piece.tobytes())
    except SlimWhisperError as error:
        return str(error).replace(path, name)
    except MemoryError:
        return f"{name}: too large to decode here"
    return None


def main() -> None:
    """The worker. In: a line of JSON, [path, name]. Out: pieces, then null or an error message."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print out of the pipe
    for line in sys.stdin.buffer:
        path, name = json.loads(line)
        message = _send(path, name, out)
        out.write(SIZE.pack(0) + json.dumps(message).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
