"""The words that the model learns to write, each a token of its own, and windows of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from recipes.digits.evaluate import Recording, joined
from recipes.digits.sequences import segments
from recipes.digits.voices import RATE, TEST_INDICES, Samples, fsdd_recordings, read, trimmed

# By digit. Whisper's words begin with their space.
WORDS = (
    " null",
    " eins",
    " zwei",
    " drei",
    " vier",
    " fünf",
    " sechs",
    " sieben",
    " acht",
    " neun",
)
LONGEST = 12  # words in a window
TIMES_SHARE = 0.5  # of the texts that have timestamps
IGNORED = -100  # a label without loss


@dataclass(frozen=True)
class Example:
    """A window and its text."""

    audio: Samples  # [n] float32, 16 kHz, up to 30 s
    text: str  # with timestamps, where `times`: "<|0.40|> eins zwei<|1.20|>"
    times: bool


def text_of(recording: Recording, times: bool) -> str:
    """The words of a recording as new words, with Whisper's timestamps around each segment."""
    if not times:
        return "".join(WORDS[word.digit] for word in recording.words)
    return "".join(
        f"<|{round(s[0].start, 1):.2f}|>{''.join(WORDS[word.digit] for word in s)}"
        f"<|{round(s[-1].end, 1):.2f}|>"
        for s in segments(recording.words)
    )


def recordings(fsdd: Path, test: bool) -> list[tuple[int, Samples]]:
    """(digit, samples [n]) of FSDD's recordings for tests, or of the others.

    Raises SystemExit if the folder has none.
    """
    return [
        (digit, trimmed(read(path)))
        for path, digit, _, index in fsdd_recordings(fsdd)
        if (index in TEST_INDICES) == test
    ]


class Windows(torch.utils.data.Dataset[Example]):
    """Random windows of 1 to LONGEST words; window i is the same whenever it is drawn."""

    def __init__(
        self, words: list[tuple[int, Samples]], count: int, seed: int, times: float = TIMES_SHARE
    ) -> None:
        self._words, self._count, self._seed, self._times = words, count, seed, times

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> Example:
        rng: Generator = np.random.default_rng((self._seed, i))
        times = bool(rng.random() < self._times)
        made = joined(rng, self._words, int(rng.integers(1, LONGEST + 1)))
        return Example(made.audio, text_of(made, times), times)


class Collator:
    """Examples -> what `WhisperForConditionalGeneration` learns from.

    input_features [B, mels, 3000] float32; labels [B, T] int64: the tokens that follow
    <|startoftranscript|>, padded with IGNORED.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, examples: list[Example]) -> dict[str, Tensor]:
        features = self._processor.feature_extractor(
            [example.audio for example in examples], sampling_rate=RATE, return_tensors="pt"
        )
        labels_of_each = [torch.tensor(self._tokens(example)) for example in examples]
        labels = torch.nn.utils.rnn.pad_sequence(labels_of_each, True, IGNORED)
        return {"input_features": features.input_features, "labels": labels}

    def _tokens(self, example: Example) -> list[int]:
        tokenizer = self._processor.tokenizer
        tokenizer.set_prefix_tokens(predict_timestamps=example.times)
        return tokenizer(example.text).input_ids[1:]
