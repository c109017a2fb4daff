"""Gives a checkpoint new tokens: python -m recipes.finetune.extend FOLDER START

FOLDER is a Whisper model in Hugging Face's format. START gets the same model with the tokens of
words.WORDS after its last one. It is what training starts from, and what its adapter belongs to.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AddedToken, WhisperForConditionalGeneration, WhisperProcessor

from recipes.finetune.words import WORDS


def extended(folder: Path, words: Sequence[str]) -> tuple[Any, Any]:
    """The model and the processor in `folder`, with a token for each of `words`.

    Weights are float32, as training needs them. A new token's embedding begins as the mean of those
    that its word was written with before.
    """
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    processor = WhisperProcessor.from_pretrained(folder)
    tokenizer = processor.tokenizer
    spelled = [tokenizer.encode(word, add_special_tokens=False) for word in words]
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    rows = model.get_input_embeddings().weight
    with torch.no_grad():
        for word, pieces in zip(words, spelled, strict=True):
            rows[tokenizer.convert_tokens_to_ids(word)] = rows[pieces].mean(0)
    return model, processor


def save(model: Any, processor: Any, folder: Path) -> None:
    """What `from_pretrained` reads: the weights or the adapter, tokenizer and settings."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="a Whisper model in Hugging Face's format")
    parser.add_argument("start", type=Path, help="where the extended one is written")
    args = parser.parse_args()
    save(*extended(args.folder, WORDS), args.start)


if __name__ == "__main__":
    main()
