"""Word times equal to whisper's: in float64 always, in float32 wherever rounding decides nothing.

Where a trained model's softmax saturates, paths through the time warping cost the same but for
rounding, and whisper's own float32 differs from its float64.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whisper
import whisper.timing

from slimwhisper.api import SlimWhisper
from slimwhisper.checkpoint.load import Checkpoint, load_checkpoint
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Align, Alignment, Decoded, Window
from slimwhisper.engine.rules import make_rules
from slimwhisper.longform.words import time_words
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import get_tokenizer, get_vocabulary
from slimwhisper.types import Options
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.parity import (
    differences,
    transcribe_each,
    unrounded_attention,
    whisper_transcribe,
)
from tests.support.reference import whisper_model
from tests.support.sounds import noise_bursts
from tests.support.spoken import sequence
from tests.support.windows import Asker

pytestmark = pytest.mark.usefixtures("numba")

CPU = torch.device("cpu")
Times = list[tuple[str, float, float]]


class Aligners:
    """One checkpoint's alignments: whisper's and ours, in float32 and float64."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        dims = checkpoint.dims
        self.tokenizer = get_tokenizer(dims)
        self.theirs: dict[torch.dtype, Any] = {}
        self.ours: dict[torch.dtype, SlimWhisper] = {}
        for dtype in (torch.float32, torch.float64):
            self.ours[dtype] = SlimWhisper(Model(checkpoint, CPU, dtype))
            self.theirs[dtype] = whisper_model(dims, checkpoint.state, dtype)
            flags = torch.zeros(dims.n_text_layer, dims.n_text_head, dtype=torch.bool)
            for layer, heads in self.ours[dtype].network.alignment_heads.items():
                flags[layer, list(heads)] = True
            self.theirs[dtype].register_buffer("alignment_heads", flags.to_sparse(), False)

    def text(self, audio: np.ndarray) -> list[int]:
        """What the first window says."""
        found = self.ours[torch.float32].transcribe(audio, temperature=0)
        tokens = [t for s in found["segments"] if s["seek"] == 0 for t in s["tokens"]]
        return [t for t in tokens if t < self.tokenizer.eot]

    def by_whisper(self, mel: torch.Tensor, text: list[int], frames: int) -> Times:
        model = self.theirs[mel.dtype]
        if mel.dtype == torch.float32:
            return times(whisper.timing.find_alignment(model, self.tokenizer, text, mel, frames))
        with unrounded_attention():
            return times(whisper.timing.find_alignment(model, self.tokenizer, text, mel, frames))

    def by_us(self, mel: torch.Tensor, text: list[int], frames: int) -> Times:
        model, sot = self.ours[mel.dtype].network, self.tokenizer.sot_sequence
        engine = Engine(model, get_vocabulary(model.dims), 1)
        rules = make_rules(model.dims, Options(sample_len=1))
        align = Align((*sot, self.tokenizer.no_timestamps), tuple(text))
        owner = Asker(then=lambda _, answer: align if isinstance(answer, Decoded) else None)
        engine.submit(owner, Window(mel, sot, 0, rules))
        while not engine.idle:
            engine.step()
        alignment = owner.answers[-1]
        assert isinstance(alignment, Alignment)
        assert alignment.scores.dtype == mel.dtype
        return times(time_words(alignment, self.tokenizer, frames))


def times(timings: Any) -> Times:
    return [(t.word, t.start, t.end) for t in timings]


def unequal(found: Times, expected: Times) -> int:
    return sum(a != b for a, b in zip(found, expected, strict=True))


def count(aligners: Aligners, recordings: list[np.ndarray]) -> dict[str, int]:
    """How many words differ between two ways to time them, and how many there are."""
    counts = dict.fromkeys(("words", "ours64-theirs64", "ours32-theirs32", "theirs32-theirs64"), 0)
    for audio in recordings:
        text = aligners.text(audio)
        mel = whisper.log_mel_spectrogram(audio, aligners.ours[torch.float32].dims.n_mels)
        frames = min(3000, mel.shape[1])
        mel = whisper.pad_or_trim(mel[:, :frames], 3000)
        theirs = aligners.by_whisper(mel, text, frames)
        ours = aligners.by_us(mel, text, frames)
        theirs64 = aligners.by_whisper(mel.double(), text, frames)
        ours64 = aligners.by_us(mel.double(), text, frames)
        counts["words"] += len(theirs)
        counts["ours64-theirs64"] += unequal(ours64, theirs64)
        counts["ours32-theirs32"] += unequal(ours, theirs)
        counts["theirs32-theirs64"] += unequal(theirs, theirs64)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("dims", [tiny_dims(multilingual=False, width=128, heads=2, text_layers=4)])
def test_random_weights_align_as_whisper_s(dims: Any) -> None:
    aligners = Aligners(Checkpoint("random", dims, random_state(dims, seed=3)))
    counts = count(aligners, [noise_bursts(4 + 7 * i, i) for i in range(4)])
    assert counts["words"] > 60
    assert counts["ours64-theirs64"] == counts["ours32-theirs32"] == 0


@pytest.mark.slow
def test_digits_aligns_as_whisper_does_but_for_rounding(digits_path: Path) -> None:
    """In float64 every word; in float32 at most twice as many differ as whisper's own do."""
    aligners = Aligners(load_checkpoint(digits_path))
    rng = np.random.default_rng(5)
    counts = count(aligners, [sequence(9, rng)[1] for _ in range(8)])
    assert counts["words"] > 60
    assert counts["ours64-theirs64"] == 0
    assert counts["ours32-theirs32"] <= 2 * counts["theirs32-theirs64"]


WORDS: list[dict[str, Any]] = [
    {},
    {"beam_size": 2, "condition_on_previous_text": False},
    {"hallucination_silence_threshold": 1.0, "initial_prompt": "Numbers, said aloud."},
    {"prepend_punctuations": "(", "append_punctuations": ".,", "suppress_tokens": None},
    {"clip_timestamps": [1.0, 12.0, 20.5], "suppress_blank": False},
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "several"), [("multilingual", WORDS), ("english", WORDS[2:4])])
def test_whole_transcripts_with_words(
    random_paths: dict[str, Path], name: str, several: list[dict[str, Any]]
) -> None:
    theirs = whisper.load_model(str(random_paths[name]), device="cpu")
    ours = SlimWhisper(Model(load_checkpoint(random_paths[name]), CPU, torch.float32))
    recordings = [noise_bursts(seconds, 20 + i) for i, seconds in enumerate((31.5, 22.0))]
    words = 0
    for options in several:
        chosen = {"word_timestamps": True, "sample_len": 30, **options}
        found = transcribe_each(ours, recordings, **chosen, batch_size=2)
        for audio, result in zip(recordings, found, strict=True):
            assert not differences(result, whisper_transcribe(theirs, audio, **chosen)), options
            words += sum(len(s["words"]) for s in result["segments"])
    assert words > 8 * len(several)


# In a fresh process: numba starts its threads once.
THREADS = """
import torch
from slimwhisper.engine.requests import Alignment
from slimwhisper.types import Dims
from slimwhisper.tokens.vocabulary import get_tokenizer
from slimwhisper.longform.words import time_words

torch.set_num_threads(1)
alignment = Alignment((500, 501, 502), 2, torch.randn(1, 6, 1500), (0.5, 0.5, 0.5))
dims = Dims(80, 1500, 8, 1, 1, 51_864, 448, 8, 1, 1)
assert time_words(alignment, get_tokenizer(dims), 3000)
print(torch.get_num_threads())
"""


def test_timing_words_leaves_torch_s_threads_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "1", done.stderr


def test_the_keys_are_whisper_s(random_paths: dict[str, Path]) -> None:
    theirs = whisper.load_model(str(random_paths["english"]), device="cpu")
    ours = SlimWhisper(Model(load_checkpoint(random_paths["english"]), CPU, torch.float32))
    audio = noise_bursts(3, 1)
    for words in (False, True):
        options = {"word_timestamps": words, "sample_len": 10, "without_timestamps": True}
        expected = whisper_transcribe(theirs, audio, **options)
        found = ours.transcribe(audio, temperature=0, **options)
        assert list(found) == list(expected)
        for ours_, theirs_ in zip(found["segments"], expected["segments"], strict=True):
            if theirs_["tokens"]:  # whisper gives cleared segments words even if not asked to
                assert set(ours_) - {"flags"} == set(theirs_)
            for mine, other in zip(ours_.get("words", ()), theirs_.get("words", ()), strict=True):
                assert list(mine) == list(other)
