"""What the engines of `peers.py` have in common."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from slimwhisper.checkpoint.load import Checkpoint

Audio = np.ndarray[tuple[int], np.dtype[np.float32]]
# files, of a job their paths -> of each its text, number of tokens
Run = Callable[[list[Any]], Iterator[tuple[str, int]]]

# dtypes of weights -> the group in which engines are compared
GROUPS = {
    **dict.fromkeys(("float32", "float16", "bfloat16"), "float32"),
    **dict.fromkeys(("int8", "q8_0", "q5_0"), "int8"),
    **dict.fromkeys(("int8_float16", "float16-fp8"), "int8"),  # of GPUs
}


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured."""

    model: str  # an official shape with random weights, or a trained checkpoint
    engine: str  # of `PEERS`
    dtype: str
    batch: int
    files: int
    tokens: int | None  # forced; None: the model decides
    threads: int
    audio: str | None  # a folder of recordings; None: noise
    device: str = "cpu"
    seconds: int = 29  # of noise in each file, or of a job's longest
    job: str | None = None  # from files to texts, `batch` windows at a time: `peer_jobs.py`
    beams: int = 1

    @property
    def group(self) -> str:
        return GROUPS[self.dtype]


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to measure, or one of its variants."""

    packages: tuple[str, ...]  # to import; all must be installed
    distributions: tuple[str, ...]  # whose versions are reported
    files: str  # the converted weights' name, by {dtype} and {tokens} if these change them
    convert: Callable[[Checkpoint, Path, Case], None]  # writes them
    load: Callable[..., Run]  # (the case, the path of the converted weights, **options)
    dtypes: Mapping[str, tuple[str, ...]]  # by device
    batches: bool = True  # whether it decodes several windows together
    beams: bool = False  # whether it decodes with several
    in_workers: bool = False  # whether copies of it decode several: `in_workers`
    # whether torch allocates its memory, so that its use of a GPU's can be measured
    by_torch: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)  # of this variant
    environment: Mapping[str, str] = field(default_factory=dict)  # of its process
    least_batch: int = 1
    jobs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # that it does: with batches


def file_of(peer: Peer, case: Case) -> str:
    """The name of the converted weights."""
    return peer.files.format(dtype=case.dtype, tokens=case.tokens)


def plain(case: Case) -> dict[str, Any]:
    """Whisper's options for one pass; for a job, its defaults."""
    options = {"language": "en", "beam_size": case.beams if case.beams > 1 else None}
    if case.job:
        return options
    return {
        **options,
        "without_timestamps": True,
        "temperature": 0.0,
        "condition_on_previous_text": False,
        "suppress_tokens": "",
        "no_speech_threshold": None,
        "logprob_threshold": None,
        "compression_ratio_threshold": None,
    }


def tokens_decoder(path: Path) -> Callable[[list[int]], tuple[str, int]]:
    """A tokenizer.json -> a function of token ids: the text and the number of text tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    end = tokenizer.token_to_id("<|endoftext|>")
    assert end is not None

    def decode(ids: list[int]) -> tuple[str, int]:
        text = [i for i in ids if i < end]
        return tokenizer.decode(text), len(text)

    return decode


def in_workers(load: Callable[..., Run]) -> Callable[..., Run]:
    """For an engine that decodes one window at a time: with a batch of several, a copy of it for
    each thread, and a file for each copy.
    """

    def load_copies(case: Case, path: str, **options: Any) -> Run:
        if case.batch == 1:
            return load(case, path, **options)
        one = replace(case, threads=1, batch=1)
        idle = SimpleQueue[Run]()
        copies = min(case.threads, case.batch)
        for _ in range(copies):
            idle.put(load(one, path, **options))

        def decode(recording: Audio) -> tuple[str, int]:
            run = idle.get()
            try:
                (pair,) = run([recording])
            finally:
                idle.put(run)
            return pair

        def run(audio: list[Audio]) -> Iterator[tuple[str, int]]:
            with ThreadPoolExecutor(copies) as pool:
                yield from pool.map(decode, audio)

        return run

    return load_copies
