"""Word times equal to whisper's: in float64 always, in float32 wherever rounding decides nothing.

Where a trained model's softmax saturates, paths through the time warping cost the same but for
rounding, and whisper's own float32 differs from its float64.
"""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whisper
import whisper.timing

from slimwhisper.api import SlimWhisper
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Align, Alignment, Window
from slimwhisper.engine.rules import make_rules
from slimwhisper.longform.words import time_words
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import get_tokenizer, get_vocabulary
from slimwhisper.types import Options
from tests.support.checkpoints import tiny_dims
from tests.support.parity import unrounded_attention
from tests.support.reference import whisper_model
from tests.support.spoken import sequence

pytestmark = pytest.mark.usefixtures("numba")

CPU = torch.device("cpu")
Times = list[tuple[str, float, float]]
ONE_TOKEN = Options(sample_len=1)
TOKENIZER = get_tokenizer(tiny_dims(multilingual=False))


def by_us(model: Model, mel: torch.Tensor, text: list[int], frames: int) -> Times:
    engine = Engine(model, get_vocabulary(model.dims), 1)
    engine.submit(None, Window(mel, TOKENIZER.sot_sequence, 0, make_rules(model.dims, ONE_TOKEN)))
    ((ticket, _),) = engine.step()
    engine.reply(ticket, Align((*TOKENIZER.sot_sequence, TOKENIZER.no_timestamps), tuple(text)))
    ((_, alignment),) = engine.step()
    assert isinstance(alignment, Alignment) and alignment.scores.dtype == mel.dtype
    return [(t.word, t.start, t.end) for t in time_words(alignment, TOKENIZER, frames)]


def by_whisper(model: Any, mel: torch.Tensor, text: list[int], frames: int) -> Times:
    with unrounded_attention() if mel.dtype == torch.float64 else nullcontext():
        found = whisper.timing.find_alignment(model, TOKENIZER, text, mel, frames)
    return [(t.word, t.start, t.end) for t in found]


def unequal(found: Times, expected: Times) -> int:
    return sum(a != b for a, b in zip(found, expected, strict=True))


@pytest.mark.slow
def test_digits_aligns_as_whisper_does_but_for_rounding(digits_path: Path) -> None:
    """In float64 every word; in float32 at most twice as many differ as whisper's own do."""
    checkpoint, rng = load_checkpoint(digits_path), np.random.default_rng(5)
    recordings = [sequence(9, rng)[1] for _ in range(8)]
    ours = {dtype: Model(checkpoint, CPU, dtype) for dtype in (torch.float32, torch.float64)}
    heads = ours[torch.float32].alignment_heads
    flags = torch.zeros(checkpoint.dims.n_text_layer, checkpoint.dims.n_text_head).bool()
    for layer, chosen in heads.items():
        flags[layer, list(chosen)] = True
    words, different, rounded = 0, 0, 0
    theirs = {dtype: whisper_model(checkpoint.dims, checkpoint.state, dtype) for dtype in ours}
    for model in theirs.values():
        model.register_buffer("alignment_heads", flags.to_sparse(), False)
    for audio in recordings:
        found = SlimWhisper(ours[torch.float32]).transcribe(audio, temperature=0)["segments"]
        text = [t for s in found for t in s["tokens"] if s["seek"] == 0 and t < TOKENIZER.eot]
        mel = whisper.log_mel_spectrogram(audio, 80)
        frames = min(3000, mel.shape[1])
        mel = whisper.pad_or_trim(mel[:, :frames], 3000)
        mine, its = (
            {d: call(models[d], mel.to(d), text, frames) for d in models}
            for call, models in ((by_us, ours), (by_whisper, theirs))
        )
        assert mine[torch.float64] == its[torch.float64]
        words += len(text)
        different += unequal(mine[torch.float32], its[torch.float32])
        rounded += unequal(its[torch.float32], its[torch.float64])
    assert words > 60 and different <= 2 * rounded


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
