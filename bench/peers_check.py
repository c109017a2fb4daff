"""What `peers.py` asks before it measures: what is missing, and how long it will take."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from converted import convert
from engines import PEERS, Case
from timing import copy_rate, seconds_of

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.engine.draft_model import decoder_weights
from slimwhisper.types import Dims

PACKAGES = {"whisper": "openai-whisper", "faster_whisper": "faster-whisper"}  # pip's names
CONVERSION = {"hugging_face": ("transformers",), "ctranslate2": ("transformers", "ctranslate2")}
COPIES = 3  # of the weights on disk while they are converted
SMALL = Dims(80, 1500, 64, 1, 1, 51_865, 448, 64, 1, 1)  # converted to see whether that works
PLAIN_TOKENS = 100  # of a window of speech, where the model decides
STARTING = 5.0  # seconds until a process has imported its packages and loaded a model
BOUND = 2.0  # what decoding takes, to what the machine's rates allow, until it has been measured


@cache
def lacking(engine: str) -> str | None:
    """What an engine lacks to be measured, in a line; None: nothing. Its packages are imported, and
    a small model is converted.
    """
    peer = PEERS[engine]
    for package in (peer.package, *CONVERSION.get(peer.format, ())):
        if find_spec(package) is None:
            name = PACKAGES.get(package, package)
            return f"{engine}: {name} is not installed; pip install {name}"
    return _not_converted(peer.format, engine)


def _not_converted(kind: str, engine: str) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            import_module(PEERS[engine].package)
            convert(random_checkpoint(SMALL), Path(folder), [kind])
        except Exception as error:  # of another project
            said = str(error).strip().partition("\n")[0]
            return f"{engine}: {type(error).__name__}: {said}; install it again"
    return None


def missing(
    engines: Iterable[str], plot: Path | None, audio: Path | None, weights: int
) -> Iterator[str]:
    """A line for each thing that is missing. weights: bytes of the largest model."""
    yield from filter(None, map(lacking, dict.fromkeys(engines)))
    if plot is not None and find_spec("matplotlib") is None:
        yield "--plot: matplotlib is not installed; pip install matplotlib"
    if plot is not None and not os.access(plot.absolute().parent, os.W_OK):
        yield f"--plot {plot}: no file can be written there; choose another folder"
    if audio is not None and not (audio.is_dir() and recordings_in(audio)):
        yield f"--folder {audio}: no recordings there; name a folder of audio files"
    where = tempfile.gettempdir()
    free, needed = shutil.disk_usage(where).free, COPIES * weights
    if free < needed:
        yield (
            f"{where}: {free / 1e9:.1f} GB free, and the converted models take "
            f"{needed / 1e9:.1f} GB; free some, or set TMPDIR"
        )


def weight_bytes(dims: Dims) -> int:
    """Of a model's matrices in float32."""
    encoder = 12 * dims.n_audio_layer * dims.n_audio_state**2
    return 4 * (encoder + decoder_weights(dims))


def recordings_in(folder: Path) -> list[Path]:
    """The audio files of a folder, sorted."""
    return sorted(p for p in folder.iterdir() if p.suffix in AUDIO_SUFFIXES)


def product_rate() -> float:
    """Operations a second of a product of matrices in float32, on a CPU."""
    a = torch.ones(1024, 1024)
    return 2 * 1024**3 / seconds_of([lambda: a @ a], torch.device("cpu"), 5)


class Estimate:
    """How long measurements take: what the machine's rates of copies and products allow, times a
    factor, which follows from those that are done.
    """

    def __init__(self) -> None:
        self._copy, self._products = copy_rate(torch.device("cpu")), product_rate()
        self._expected = self._took = 0.0

    def least(self, case: Case, dims: Dims, files: int) -> float:
        """Seconds of `files` windows, if nothing but their weights and products took time."""
        d, frames = dims.n_audio_state, dims.n_audio_ctx
        layer = 24 * d * d * frames + 4 * d * frames * frames
        encoder = dims.n_audio_layer * layer / self._products
        weights = decoder_weights(dims)
        together = min(case.batch, files)
        attended = 4 * dims.n_text_layer * frames * dims.n_text_state
        products = together * (2 * weights + attended) / self._products
        step = max(4 * weights / self._copy, products)
        return files * (encoder + (case.tokens or PLAIN_TOKENS) * step / together)

    def learn(self, case: Case, dims: Dims, took: float) -> None:
        """A round of a case took so many seconds."""
        self._expected += self.least(case, dims, case.files)
        self._took += took

    def seconds(self, rounds: Sequence[tuple[Case, int]], shapes: dict[str, Dims]) -> float:
        """Of the rounds that are to do, by case; also of starting."""
        factor = self._took / self._expected if self._expected else BOUND
        total = 0.0
        for case, count in rounds:
            if count:
                dims = shapes[case.model]
                total += STARTING + factor * self.least(case, dims, 2)  # the first texts
                total += factor * count * self.least(case, dims, case.files)
        return total


def in_words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"
