"""One engine in a process of its own, for `peers.py`."""

import os
import time
import traceback
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from engines import PEERS, Audio, Case
from peers_check import recordings_in

from slimwhisper.audio.load import load_audio
from slimwhisper.commands.measurement import Memory, recordings

SECONDS = 30  # the longest file; a longer one would need a second window
END = 2000  # characters of what a failure says


@dataclass(frozen=True, slots=True)
class Measured:
    """A round."""

    seconds: float  # all files
    hours_an_hour: float  # of audio
    tokens_per_second: float
    first_text_seconds: float  # one file alone, from the call to its text; before the rounds
    sampled: int  # tokens of all files
    memory_mb: float | None  # the peak, less what was in use with the model loaded
    peak_mb: float | None  # of the process, or of its tensors on a GPU; None: not known
    texts: list[str] | None  # None: of noise


class Worker:
    """A process that has loaded an engine, and waits to be asked for a round."""

    def __init__(self, case: Case, converted: str) -> None:
        """converted: the folder of the weights in all formats."""
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=answer, args=(theirs, case, converted), daemon=True)
        self._process.start()
        theirs.close()

    def measure(self) -> dict[str, Any] | str:
        """The columns of `Measured`; a text, the end of its errors, if it fails."""
        try:
            self._pipe.send("a round")
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return f"its process ended with status {self._process.exitcode}"

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def answer(pipe: "Connection[Any, Any]", case: Case, converted: str) -> None:
    """The process: load, then answer until the pipe is closed, also by the end of its parent."""
    os.dup2(2, 1)  # what libraries print is not among the results
    warnings.simplefilter("ignore")
    try:
        rounds = loaded(case, converted)
        while True:
            pipe.recv()
            pipe.send(asdict(rounds()))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except BaseException:  # of another project
        pipe.send(traceback.format_exc()[-END:])


def loaded(case: Case, converted: str) -> "partial[Measured]":
    """What measures a round, with the engine loaded and warm."""
    torch.set_num_threads(case.threads)
    audio = inputs(case)
    run = PEERS[case.engine].load(case, converted)
    memory = Memory(torch.device(case.device))
    first = 0.0
    for _ in range(2):  # the first is a warm-up
        since = time.perf_counter()
        next(iter(run(audio[:1])))
        first = time.perf_counter() - since
    return partial(measure, case, run, audio, memory, first)


def measure(case: Case, run: Any, audio: list[Audio], memory: Memory, first: float) -> Measured:
    """A round: all files."""
    since = time.perf_counter()
    pairs = list(run(audio))
    seconds = time.perf_counter() - since
    if case.tokens and any(abs(n - case.tokens) > 1 for _, n in pairs):
        counts = [n for _, n in pairs][:9]
        raise SystemExit(f"{case.name}: {counts} tokens, not {case.tokens} each")
    sampled = sum(n for _, n in pairs)
    known = case.device == "cpu" or PEERS[case.engine].by_torch
    return Measured(
        seconds=seconds,
        hours_an_hour=sum(map(len, audio)) / 16_000 / seconds,
        tokens_per_second=sampled / seconds,
        first_text_seconds=first,
        sampled=sampled,
        memory_mb=memory.grown() / 1e6 if known else None,
        peak_mb=memory.peak() / 1e6 if known else None,
        texts=[text.strip() for text, _ in pairs] if case.audio else None,
    )


def inputs(case: Case) -> list[Audio]:
    """The recordings of a case."""
    if case.audio is None:
        return recordings(case.files)
    paths = [path for path in recordings_in(Path(case.audio)) if "broken" not in path.name]
    found = [a for a in map(load_audio, map(str, paths)) if len(a) <= SECONDS * 16_000]
    return (found * (1 + case.files // len(found)))[: case.files]
