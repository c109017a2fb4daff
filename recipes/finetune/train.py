"""Fine-tunes with LoRA and new tokens: python -m recipes.finetune.train START FSDD OUT

START is a Whisper model in Hugging Face's format, FSDD the folder of the Free Spoken Digit
Dataset's WAV files. OUT gets the model with the tokens of WORDS after its last one, and with
the adapter in its weights.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from peft import LoraConfig, get_peft_model
from transformers import AddedToken, WhisperForConditionalGeneration, WhisperProcessor

from recipes.digits.evaluate import joined
from recipes.digits.sequences import IGNORED, SpokenDigit, segments
from recipes.digits.voices import RATE, Word, fsdd_words
from recipes.training import Batch, fit, make_parser

# By digit. Whisper's words begin with their space.
WORDS = [f" {word}" for word in "null eins zwei drei vier fünf sechs sieben acht neun".split()]
LONGEST = 12  # words in a window
TIMES_SHARE = 0.5  # of the texts that have timestamps
DECODER = r".*decoder\.layers.*\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)"


def text_of(words: Sequence[SpokenDigit], times: bool) -> str:
    """As new words, with Whisper's timestamps around each segment: "<|0.40|> eins zwei<|1.20|>"."""
    if not times:
        return "".join(WORDS[word.digit] for word in words)
    return "".join(
        f"<|{s[0].start:.1f}0|>{text_of(s, times=False)}<|{s[-1].end:.1f}0|>"
        for s in segments(words)
    )


def batch(processor: Any, words: list[Word], count: int, rng: Generator) -> Batch:
    """Random windows of 1 to LONGEST words, as `WhisperForConditionalGeneration` learns from them.

    input_features [B, mels, 3000] float32, and labels [B, T] int64, the tokens after
    <|startoftranscript|>, padded with IGNORED.
    """
    recordings, labels = [], []
    for _ in range(count):
        times = bool(rng.random() < TIMES_SHARE)
        audio, said = joined(rng, words, int(rng.integers(1, LONGEST + 1)))
        processor.tokenizer.set_prefix_tokens(predict_timestamps=times)
        recordings.append(audio)
        labels.append(torch.tensor(processor.tokenizer(text_of(said, times)).input_ids[1:]))
    inputs = processor.feature_extractor(recordings, sampling_rate=RATE, return_tensors="pt")
    padded = torch.nn.utils.rnn.pad_sequence(labels, True, IGNORED)
    return {"input_features": inputs.input_features, "labels": padded}


def extended(folder: Path) -> tuple[Any, Any]:
    """The model and the processor in `folder`, with a token for each of WORDS.

    Weights are float32, as training needs them. A new token's embedding begins as the mean of those
    that its word was written with before.
    """
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    processor = WhisperProcessor.from_pretrained(folder)
    tokenizer = processor.tokenizer
    spelled = [tokenizer.encode(word, add_special_tokens=False) for word in WORDS]
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    rows = model.get_input_embeddings().weight
    with torch.no_grad():
        for word, pieces in zip(WORDS, spelled, strict=True):
            rows[tokenizer.convert_tokens_to_ids(word)] = rows[pieces].mean(0)
    return model, processor


def train(model: Any, processor: Any, args: argparse.Namespace) -> None:
    """Write the model with an adapter on its decoder's matrices; of the embeddings only the rows of
    WORDS learn.
    """
    words = fsdd_words(args.fsdd, test=False)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    new = {"embed_tokens": processor.tokenizer.convert_tokens_to_ids(WORDS)}
    lora = LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, target_modules=DECODER, trainable_token_indices=new
    )
    adapted = get_peft_model(model, lora).to(args.device)
    adapted.print_trainable_parameters()
    learned = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, args.rate, weight_decay=0.0)

    def batch_of(step: int) -> Batch:
        return batch(processor, words, args.batch, np.random.default_rng((args.seed, step)))

    def losses_of(windows: Batch) -> Batch:
        return {"text": adapted(**windows).loss}

    state = args.out / "state.pt"
    fit(adapted, [optimizer], losses_of, batch_of, args.steps, state, warm_up=30, share=1.0)
    adapted.merge_and_unload().save_pretrained(args.out)
    processor.save_pretrained(args.out)


def main() -> None:
    parser = make_parser(__doc__, steps=240, rate=5e-3)
    parser.add_argument("start", type=Path, help="a Whisper model in Hugging Face's format")
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("out", type=Path, help="where the result is written")
    parser.add_argument("--batch", type=int, default=8, help="windows per step [8]")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter's matrices [16]")
    args = parser.parse_args()
    train(*extended(args.start), args)


if __name__ == "__main__":
    main()
