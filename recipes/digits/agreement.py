"""Do all caches agree with openai-whisper? python -m recipes.digits.agreement CHECKPOINT FSDD

Sequences of 1 to 12 digits in windows of 30 s, transcribed by openai-whisper in float32, then with
every cache preset, and slim's in float8, in float32, bfloat16 and float16 (or --dtypes int8).
Prints how many texts differ, the word errors of each, and one line of JSON. `slimwhisper report
CHECKPOINT --guard` shows the condition numbers and the guard's decisions.
"""

import argparse
import json
import time
from pathlib import Path

import jiwer
import numpy as np
import whisper

import slimwhisper
from recipes.digits.evaluate import joined, test_words, transcribed
from slimwhisper.cache.forms import PRESETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("fsdd", type=Path, help="folder of the data set's WAV files")
    parser.add_argument("--count", type=int, default=500, help="sequences")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--caches", nargs="+", default=[*PRESETS, "slim fp8"])
    args = parser.parse_args()

    rng = np.random.default_rng(23)
    words = test_words(args.fsdd)
    made = [joined(rng, words, int(rng.integers(1, 13))) for _ in range(args.count)]
    audio, true = [m.audio for m in made], [m.text for m in made]
    theirs = whisper.load_model(args.checkpoint, device="cpu")
    since = time.monotonic()
    expected = [theirs.transcribe(a, fp16=False, temperature=0)["text"] for a in audio]
    errors = {"openai-whisper": jiwer.wer(true, [text.strip() for text in expected])}
    spent = time.monotonic() - since
    print(f"openai-whisper: {errors['openai-whisper']:.2%} word errors; {spent:.0f} s", flush=True)

    different: dict[str, int] = {}
    for dtype in args.dtypes:
        for cache in args.caches:
            since = time.monotonic()
            preset, _, number = cache.partition(" ")
            model = slimwhisper.load_model(
                args.checkpoint, "cpu", dtype=dtype, cache=preset, cache_dtype=number or None
            )
            texts = [f.text for f in transcribed(model, audio, temperature=0)]
            differing = [(a, b) for a, b in zip(expected, texts, strict=True) if a != b]
            case, spent = f"{cache} {dtype}", time.monotonic() - since
            different[case] = len(differing)
            errors[case] = jiwer.wer(true, [text.strip() for text in texts])
            print(
                f"{case}: {len(differing)} of {len(audio)} differ, {errors[case]:.2%} word errors; "
                f"{spent:.0f} s",
                flush=True,
            )
            for a, b in differing[:5]:
                print(f"  openai-whisper {a}\n  here           {b}")
    print(json.dumps({"sequences": len(audio), "different": different, "errors": errors}))


if __name__ == "__main__":
    main()
