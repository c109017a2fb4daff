"""The processes in which `peers.py` measures: one for each engine, and one for each conversion."""

import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from operator import truediv
from pathlib import Path
from typing import Any

import torch
from peer_engines import PEERS
from peer_engines.case import Case, Run, file_of
from peer_jobs import files_of, seconds_of, sources_of
from rows import Row

from slimwhisper.audio.load import load_audio
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.commands.random_weights import random_checkpoint, recordings
from slimwhisper.formats.load import load_checkpoint

PAUSE = 0.5  # seconds between turns: threads of the one before stop to wait for work
SECONDS = 30  # the longest file; a longer one would need a second window
KEPT_SHARE = 0.4  # of the memory must be free, for a process to be kept for its next round
ERROR_LETTERS = 300


class Worker:
    """A process that answers questions about one case, until it is closed."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        """target: gets the other end of the pipe, then the arguments."""
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=target, args=(theirs, *arguments))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self) -> Row | str:
        """The answer, or why there is none."""
        try:
            self._pipe.send("next")
            answer: Row | str = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return f"its process ended with status {self._process.exitcode}"
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def take_turns(
    cases: list[Case], folder: Path, rounds: int
) -> Iterator[tuple[Case, int, Row | str]]:
    """Measure cases that are compared with one another, round by round.

    folder: for the converted weights. Yields each case, its round and the result, or why it failed;
    one that failed has no further rounds.
    """
    workers, failed = dict[Case, Worker](), set[Case]()
    try:
        for number in range(rounds):
            for case in [c for c in cases if c not in failed]:
                result: Row | str = "" if case in workers else convert(case, folder)
                if not result:
                    if case not in workers:
                        workers[case] = Worker(measure, case, folder)
                    time.sleep(PAUSE)
                    result = workers[case].ask()
                if isinstance(result, str):
                    failed.add(case)
                yield case, number, result
                if case in workers and (case in failed or is_full(case.device)):
                    workers.pop(case).close()
    finally:
        for worker in workers.values():
            worker.close()


def is_full(device: str) -> bool:
    """Whether a GPU's memory has less than `KEPT_SHARE` left."""
    return device != "cpu" and truediv(*torch.cuda.mem_get_info()) < KEPT_SHARE


def convert(case: Case, folder: Path) -> str:
    """Convert the weights for a case, unless they are there. Returns why it failed, or ""."""
    if (folder / file_of(PEERS[case.engine], case)).exists():
        return ""
    worker = Worker(convert_weights, case, folder)
    try:
        answer = worker.ask()
    finally:
        worker.close()
    return answer if isinstance(answer, str) else ""


@contextmanager
def answering(pipe: "Connection[Any, Any]") -> Iterator[None]:
    """What a process does within, until the pipe is closed; an error of another project is its last
    answer.
    """
    os.dup2(2, 1)  # what libraries print is not among the results
    warnings.simplefilter("ignore")
    try:
        yield
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except BaseException as error:
        pipe.send(reason(error))


def convert_weights(pipe: "Connection[Any, Any]", case: Case, folder: Path) -> None:
    """A process: convert, and answer once."""
    with answering(pipe):
        pipe.recv()
        peer = PEERS[case.engine]
        if case.audio:
            checkpoint = load_checkpoint(case.model)
        else:
            checkpoint = random_checkpoint(OFFICIAL_DIMS[case.model])
        path = folder / file_of(peer, case)
        unfinished = path.with_name(f"unfinished-{path.name}")
        peer.convert(checkpoint, unfinished, case)
        unfinished.rename(path)
        pipe.send({})


def reset_peak(device: torch.device) -> None:
    """Forget the memory that loading took."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """The most memory of this process since then, or of its GPU; 0 if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")  # ru_maxrss would begin with the parent's peak
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def measure(pipe: "Connection[Any, Any]", case: Case, folder: Path) -> None:
    """A process: load an engine, then answer until the pipe is closed, also by the parent's end."""
    peer = PEERS[case.engine]
    os.environ.update(peer.environment)  # before its package is imported
    with answering(pipe):
        torch.set_num_threads(case.threads)
        audio, start = inputs(case, folder)
        run = peer.load(case, str(folder / file_of(peer, case)), **peer.options)
        reset_peak(torch.device(case.device))
        first = 0.0
        for _ in range(2):  # the last counts
            since = time.perf_counter()
            list(run(start))
            first = time.perf_counter() - since
        if case.device == "cuda":  # all that is compiled, planned and recorded for this batch
            list(run(audio))
        while True:
            pipe.recv()
            pipe.send({"first_text_seconds": first, **measured(case, run, audio)})


def reason(error: BaseException) -> str:
    """In one line; the whole goes to the standard error."""
    traceback.print_exception(error, file=sys.stderr)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:ERROR_LETTERS]


def measured(case: Case, run: Run, audio: list[Any]) -> Row:
    """A round: all files. `peak_mb`: since the model was loaded."""
    since = time.perf_counter()
    pairs = list(run(audio))
    seconds = time.perf_counter() - since
    counts = [n for _, n in pairs]
    known = case.device == "cpu" or PEERS[case.engine].by_torch
    return {
        "seconds_spent": seconds,
        "hours_an_hour": sum(map(seconds_of, audio)) / seconds,
        "sampled": sum(counts),
        "fewest_tokens": min(counts),  # of a file
        "most_tokens": max(counts),
        "peak_mb": peak_bytes(torch.device(case.device)) / 1e6 if known else None,
        "texts": [text.strip() for text, _ in pairs] if case.audio else None,
    }


def inputs(case: Case, folder: Path) -> tuple[list[Any], list[Any]]:
    """The recordings of a case, and those that it begins with before it is timed."""
    if case.job:
        return files_of(case, folder)
    if case.audio is None:
        audio = [recording[: case.seconds * 16_000] for recording in recordings(case.files)]
    else:
        loaded = map(load_audio, sources_of(case.audio))
        short = [audio for audio in loaded if len(audio) <= SECONDS * 16_000]
        audio = (short * (1 + case.files // len(short)))[: case.files]
    return audio, audio[:1]
