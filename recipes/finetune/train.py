"""Fine-tunes with LoRA: python -m recipes.finetune.train START FSDD OUT

START is what recipes.finetune.extend wrote, FSDD the folder of the Free Spoken Digit Dataset's WAV
files. OUT/adapter gets the adapter, OUT/merged the model with the adapter in its weights.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jiwer
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

from recipes.finetune.extend import save
from recipes.finetune.words import IGNORED, WORDS, Collator, Windows, recordings

DECODER = r".*decoder\.layers.*\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)"


def adapted(model: Any, new: list[int], rank: int) -> Any:
    """The model with LoRA on its decoder's matrices; of the embeddings only rows `new` learn."""
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=DECODER,
        trainable_token_indices={"embed_tokens": new},
    )
    return get_peft_model(model, config)


def word_errors(tokenizer: Any) -> Callable[[Any], dict[str, float]]:
    """The metric of `Seq2SeqTrainer`: word error rate of the texts, in percent."""

    def texts(rows: Any) -> list[str]:
        labels = [row[row != IGNORED].tolist() for row in rows]
        return [t.strip() for t in tokenizer.batch_decode(labels, skip_special_tokens=True)]

    def measure(prediction: Any) -> dict[str, float]:
        wrong = jiwer.wer(texts(prediction.label_ids), texts(prediction.predictions))
        return {"word_error_percent": round(100 * wrong, 2)}

    return measure


def train(args: argparse.Namespace) -> dict[str, float]:
    """Writes the adapter and the merged model; word errors in percent, before and after."""
    processor = WhisperProcessor.from_pretrained(args.start)
    model = WhisperForConditionalGeneration.from_pretrained(args.start)
    new = processor.tokenizer.convert_tokens_to_ids(list(WORDS))
    torch.manual_seed(args.seed)
    model = adapted(model, new, args.rank)
    model.print_trainable_parameters()
    trainer = Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(
            str(args.out / "state"),
            max_steps=args.steps,
            per_device_train_batch_size=args.batch,
            per_device_eval_batch_size=args.batch,
            learning_rate=args.rate,
            lr_scheduler_type="cosine",
            warmup_steps=min(30, args.steps // 10),
            logging_steps=20,
            save_strategy="no",
            bf16=True,
            use_cpu=not torch.cuda.is_available(),
            predict_with_generate=True,
            remove_unused_columns=False,  # PEFT hides what the model takes
            label_names=["labels"],
            report_to="none",
            disable_tqdm=True,
            seed=args.seed,
        ),
        data_collator=Collator(processor),
        train_dataset=Windows(recordings(args.fsdd, test=False), args.steps * args.batch, 0),
        eval_dataset=Windows(recordings(args.fsdd, test=True), args.tests, 1, times=0),
        compute_metrics=word_errors(processor.tokenizer),
    )
    before = trainer.evaluate()["eval_word_error_percent"]
    trainer.train()
    after = trainer.evaluate()["eval_word_error_percent"]
    save(model, processor, args.out / "adapter")
    save(model.merge_and_unload(), processor, args.out / "merged")
    return {"before": before, "after": after}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("start", type=Path, help="folder of the extended model")
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("out", type=Path, help="where the results are written")
    parser.add_argument("--steps", type=int, default=240, help="[240]")
    parser.add_argument("--batch", type=int, default=8, help="windows per step [8]")
    parser.add_argument("--rate", type=float, default=5e-3, help="the learning rate [0.005]")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter's matrices [16]")
    parser.add_argument("--tests", type=int, default=48, help="windows to measure [48]")
    parser.add_argument("--seed", type=int, default=0)
    print(json.dumps({"word_error_percent": train(parser.parse_args())}))


if __name__ == "__main__":
    main()
