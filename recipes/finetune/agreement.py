"""Is it read as transformers reads it? python -m recipes.finetune.agreement OUT FSDD

OUT as for recipes.finetune.train. Windows of FSDD's test recordings, decoded greedily in float32
with the merged model, by transformers and by slimwhisper. Then with timestamps, where
openai-whisper is the reference, because transformers takes every token after <|notimestamps|> for a
time, new words too. Prints what differs, and one line of JSON; the exit status is 1 if any token or
text differs.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jiwer
import torch
import whisper
from transformers import WhisperForConditionalGeneration, WhisperProcessor
from whisper.tokenizer import get_tokenizer

import slimwhisper
from recipes.digits.voices import RATE, Samples
from recipes.finetune.words import WORDS, Windows, recordings
from slimwhisper.checkpoint.load import load_checkpoint

BATCH = 16  # windows


@dataclass(frozen=True)
class Answer:
    """What a window was decoded to."""

    tokens: list[int]  # between the prompt and <|endoftext|>
    text: str


Decode = Callable[[Sequence[Samples]], list[Answer]]  # windows [n] float32, 16 kHz


def by_transformers(model: Any, processor: Any) -> Decode:
    """Greedy, without timestamps."""

    def decode(windows: Sequence[Samples]) -> list[Answer]:
        inputs = processor.feature_extractor(windows, sampling_rate=RATE, return_tensors="pt")
        rows = model.generate(input_features=inputs.input_features, return_timestamps=False)
        special = set(processor.tokenizer.all_special_ids)
        answers = []
        for row in rows.tolist():
            text = processor.tokenizer.decode(row, skip_special_tokens=True)
            answers.append(Answer([token for token in row if token not in special], text.strip()))
        return answers

    return decode


def by_slimwhisper(model: slimwhisper.SlimWhisper, times: bool) -> Decode:
    """Greedy, as `whisper.decode`."""

    def decode(windows: Sequence[Samples]) -> list[Answer]:
        mels = torch.stack([_mel(window, model.dims.n_mels) for window in windows])
        options = slimwhisper.DecodingOptions(language="en", without_timestamps=not times)
        results: Any = slimwhisper.decode(model, mels, options)
        return [Answer(list(each.tokens), each.text) for each in results]

    return decode


def by_openai(folder: Path) -> Decode:
    """openai-whisper with timestamps, on the model in `folder` with its rows in another order.

    Its vocabulary ends with the timestamps. So each new word's row takes the place of a token that
    has the same meaning to the decoding rules, an unused word, and stands for it there.
    """
    checkpoint = load_checkpoint(folder)
    tokenizer = get_tokenizer(multilingual=False)
    known = tokenizer.encoding.n_vocab
    dims = whisper.ModelDimensions(**asdict(checkpoint.dims) | {"n_vocab": known})
    state = dict(checkpoint.state)
    rows = state["decoder.token_embedding.weight"].float().clone()
    rows, new = rows[:known], rows[known:]
    usable = set(range(tokenizer.eot)) - set(tokenizer.non_speech_tokens) - {220}
    unused = [i for i in sorted(usable) if not rows[i].any()][: len(new)]
    rows[unused] = new
    model = whisper.Whisper(dims)
    model.load_state_dict({**state, "decoder.token_embedding.weight": rows})
    meant = {stand_in: known + i for i, stand_in in enumerate(unused)}

    def decode(windows: Sequence[Samples]) -> list[Answer]:
        mels = torch.stack([_mel(window, dims.n_mels) for window in windows])
        options = whisper.DecodingOptions(language="en", fp16=False)
        answers = []
        for each in model.eval().decode(mels, options):
            tokens = [meant.get(token, token) for token in each.tokens]
            words = [tokenizer.decode([t]) if t < known else WORDS[t - known] for t in tokens]
            answers.append(Answer(tokens, "".join(words).strip()))
        return answers

    return decode


def _mel(window: Samples, mels: int) -> torch.Tensor:
    return slimwhisper.log_mel_spectrogram(slimwhisper.pad_or_trim(window), mels)


def decoded(decode: Decode, windows: Sequence[Samples]) -> list[Answer]:
    """All windows, BATCH at a time."""
    with torch.no_grad():
        return [a for i in range(0, len(windows), BATCH) for a in decode(windows[i : i + BATCH])]


def different(name: str, expected: list[Answer], results: list[Answer]) -> dict[str, int]:
    """How many windows differ, in their tokens and in their texts; prints the first few."""
    pairs = list(zip(expected, results, strict=True))
    for a, b in [(a, b) for a, b in pairs if a != b][:5]:
        print(f"{name}:\n  expected {a.text} {a.tokens}\n  found    {b.text} {b.tokens}")
    return {
        "tokens": sum(a.tokens != b.tokens for a, b in pairs),
        "texts": sum(a.text != b.text for a, b in pairs),
    }


def agreement(args: argparse.Namespace) -> dict[str, Any]:
    """Differences by case, and word errors in percent of slimwhisper on the merged model."""
    examples = Windows(recordings(args.fsdd, test=True), args.count, seed=2, times=0)
    drawn = [examples[i] for i in range(args.count)]
    windows, true = [e.audio for e in drawn], [e.text.strip() for e in drawn]
    merged = args.out / "merged"
    processor = WhisperProcessor.from_pretrained(merged)
    theirs = WhisperForConditionalGeneration.from_pretrained(merged).eval()
    ours = slimwhisper.load_model(merged, device="cpu", dtype="float32")
    results: dict[str, Any] = {"windows": args.count, "different": {}, "word_error_percent": {}}
    expected = decoded(by_transformers(theirs, processor), windows)
    answers = decoded(by_slimwhisper(ours, times=False), windows)
    results["different"]["merged"] = different("merged", expected, answers)
    timed = decoded(by_slimwhisper(ours, times=True), windows)
    expected = decoded(by_openai(merged), windows)
    results["different"]["timestamps"] = different("timestamps", expected, timed)
    for name, answers_of_case in (("merged", answers), ("timestamps", timed)):
        wrong = jiwer.wer(true, [answer.text for answer in answers_of_case])
        results["word_error_percent"][name] = round(100 * wrong, 2)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the adapter and of the merged model")
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("--count", type=int, default=200, help="windows [200]")
    results = agreement(parser.parse_args())
    print(json.dumps(results))
    sys.exit(any(count for case in results["different"].values() for count in case.values()))


if __name__ == "__main__":
    main()
