"""Reads files in other processes, so that a decoder's crash or hang fails one recording only, and
so that decoding does not hold this process's interpreter lock.

A worker reads a file, never a URL, within a memory limit, and sends the samples through a pipe,
then its warnings. It is killed if it takes too long, by the file's bytes and the audio it has sent,
or sends too much, or if the file is no longer needed. If something else kills it, such as a system
that is short of memory, another worker tries again.
"""

import json
import logging
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from logging.handlers import BufferingHandler
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import (
    ReadOptions,
    RemoteFile,
    Source,
    StoredSamples,
    is_silence,
    name_for_messages,
    open_source,
    pieces_of,
    read_file,
    silence,
)
from slimwhisper.errors import AudioError, ReaderKilledError, SlimWhisperError, warnings_to
from slimwhisper.types import SAMPLE_RATE

MAX_MEMORY = 4 << 30  # bytes of address space of a worker
TIMEOUT = 3600.0  # seconds for one file: days of audio take minutes, unless a decoder hangs
# seconds for any file, each megabyte of it, and each hour of its audio; ten times the usual ones
PATIENCE, PER_MEGABYTE, PER_HOUR = 30.0, 1.0, 120.0
KILLED = (-9, -15)  # exit status by SIGKILL and SIGTERM; a decoder that crashes has others
MESSAGE = 1 << 17  # bytes that a worker collects before it sends them
MAX_MESSAGE = 1 << 28  # bytes; a longer message shows that a decoder has taken over the worker
CHECK = 0.1  # seconds between checks while a worker sends nothing
COMMAND = [sys.executable, "-m", "slimwhisper.audio_formats.readers"]
MAX_WARNINGS = 100  # of a file
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

logger = logging.getLogger("slimwhisper")


class ReaderProcess(subprocess.Popen[bytes]):
    """A process that reads one file at a time, and the connection to it."""

    busy = False  # with a file, of which something is still to be received

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
        """count: of workers; 0: none. seconds: longest recording. timeout: most seconds to decode
        a recording.
        """
        self.count, self.seconds, self.timeout = count, seconds, timeout
        self._free: queue.SimpleQueue[ReaderProcess | None] = queue.SimpleQueue()
        self._workers: set[ReaderProcess] = set()
        self._closed = False
        self._lock = threading.Lock()
        for _ in range(count):
            self._free.put(None)

    def read_source(
        self, source: Source | RemoteFile, how: ReadOptions
    ) -> tuple[str, StoredSamples]:
        """As `read_file`, by a worker, if there are any, for remote files and for paths of regular
        files that are the same ones in a worker; /dev/stdin is not.
        """
        path = os.fspath(source) if isinstance(source, str | PathLike) else ""
        special = path.startswith(("/dev/", "/proc/"))
        if self.count and not special and os.path.isfile(path):  # noqa: PTH113  (never raises)
            name = name_for_messages(path)
            return name, self.read(path, name, how)
        if not (self.count and isinstance(source, RemoteFile)):
            return read_file(source, how)
        name, file = open_source(source)
        with file:
            return name, self.read(file.name, name, how)

    def read(
        self,
        path: str | PathLike[str],
        name: str,
        how: ReadOptions,
        *,
        on_samples: Callable[[int], None] = lambda samples: None,
    ) -> StoredSamples:
        """A file's samples at 16 kHz; channels that are not mixed count together. Waits for a free
        worker.

        `name` is the file's name in messages. `on_samples` is called with the
        number of samples, before more are stored and while waiting; an exception from it ends the
        reading, and is raised here. What is odd about the file goes to `warnings_to`, or the log.
        Raises AudioError as `load_samples` does, and if the recording is too long or its decoder
        crashes or hangs; ReaderKilledError if the system does not let a worker live.
        """
        path = os.fspath(path)
        how = replace(how, seconds=min(how.seconds, self.seconds))
        request = [path, name, asdict(how)]
        with suppress(ReaderKilledError):
            return self._read_once(request, on_samples)
        return self._read_once(request, on_samples)

    def _read_once(self, request: list[Any], on_samples: Callable[[int], None]) -> StoredSamples:
        """The result of `read`, by one worker. request: [path, name, fields of `ReadOptions`]."""
        worker = self._free.get()
        try:
            if worker is not None and worker.poll() is not None:  # died while it was idle
                self._drop(worker)
                worker = None
            worker = worker or self._start()
            return StoredSamples(request[1], self._pieces(worker, request, on_samples))
        finally:
            if worker is not None and worker.busy:  # the rest would answer the next request
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
        self, worker: ReaderProcess, request: list[Any], on_samples: Callable[[int], None]
    ) -> Iterator[NDArray[np.int16]]:
        """The samples that a worker sends, in pieces of int16 [n] at 16 kHz, or [n, channels]."""
        path, name, _ = request
        samples, started, connection = 0, time.monotonic(), worker.connection
        limit = threading.Timer(self.timeout, worker.kill)
        limit.daemon = True
        limit.start()
        patience = min(self.timeout, PATIENCE + PER_MEGABYTE * _size(path) / 1e6)
        worker.busy = True
        try:
            connection.send_bytes(json.dumps(request).encode())
            while True:
                ready = connection.poll(CHECK)
                if time.monotonic() - started > patience:
                    raise TimeoutError
                if not ready:
                    on_samples(samples)
                    continue
                if not (data := connection.recv_bytes(MAX_MESSAGE)):
                    break
                message = np.frombuffer(data, np.int16)
                channels, piece = int(message[0]), message[1:]
                if channels < 0:  # silence: how long it is
                    channels, piece = -channels, silence(*struct.unpack("=q", data[2:]))
                if channels > 1:
                    piece = piece.reshape(-1, channels)
                samples += piece.size
                patience = min(self.timeout, patience + PER_HOUR / 3600 * piece.size / SAMPLE_RATE)
                if samples > self.seconds * SAMPLE_RATE:
                    minutes = self.seconds / 60
                    together = ", all channels together" if channels > 1 else ""
                    raise AudioError(f"{name}: longer than the limit of {minutes:g} min{together}")
                on_samples(samples)
                yield piece
            error_message, warnings = json.loads(connection.recv_bytes(MAX_MESSAGE))
            worker.busy = False
        except (OSError, EOFError) as error:
            reason = "failed"
            with suppress(subprocess.TimeoutExpired):
                if time.monotonic() - started > patience:
                    reason = f"took longer than {patience:.0f} s"
                elif worker.wait(1) in KILLED:
                    what = "its decoder was killed twice; free memory, if it is short, and"
                    raise ReaderKilledError(f"{name}: {what} try again") from error
            raise AudioError(f"{name}: its decoder {reason}; convert it to WAV or FLAC") from error
        finally:
            limit.cancel()
        for text in warnings:
            warnings_to.get(logger.warning)(text)
        if error_message:
            raise AudioError(error_message)


def _size(path: str) -> int:
    """A file's bytes; 0 if it cannot be asked."""
    with suppress(OSError, ValueError):
        return Path(path).stat().st_size
    return 0


def _send(path: str, name: str, how: ReadOptions, to: Connection) -> str:
    """Send a file's samples; returns the error message, or nothing."""
    buffer = bytearray()
    try:
        _, file = open_source(path)
        with file:
            for piece in pieces_of(name, file, how):
                channels = piece.shape[1] if piece.ndim == 2 else 1
                silent = is_silence(piece)
                if buffer and (silent or len(buffer) >= MESSAGE):
                    to.send_bytes(buffer)
                    buffer.clear()
                if silent:
                    to.send_bytes(struct.pack("=hq", -channels, piece.size))
                else:
                    buffer += b"" if buffer else np.int16(channels).tobytes()
                    buffer += piece.tobytes()
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
    JSON, [path, name, fields of `ReadOptions`]. Out, for each: messages of the number of channels
    and samples, or of its negative and how many samples of silence; an empty message; and in JSON
    [error message, warnings]. The error is empty if there is none.
    """
    _limit_memory()
    warnings = BufferingHandler(MAX_WARNINGS)
    logger.addHandler(warnings)
    with suppress(EOFError, OSError), Connection(int(sys.argv[1])) as connection:
        while True:
            path, name, how = json.loads(connection.recv_bytes())
            warnings.flush()
            message = _send(path, name, ReadOptions(**how), connection)
            texts = [record.getMessage() for record in warnings.buffer]
            connection.send_bytes(b"")
            connection.send_bytes(json.dumps([message, texts]).encode())


if __name__ == "__main__":
    main()
