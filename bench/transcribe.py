"""Files an hour on this machine: openai-whisper one by one, and slimwhisper by cache and batch.

Seeded recordings of noise bursts, a random checkpoint of the tiny shape (width 384, 6 heads, 4 + 4
layers) with `--tokens` tokens a window for everybody, float32, in turns; medians.

    python bench/transcribe.py [--files 16] [--tokens 50] [--rounds 3]
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import whisper

import slimwhisper
from slimwhisper.cache.plan import PRESETS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from checkpoints import random_state, save_openai, tiny_dims
from conftest import noise_bursts

BATCHES = (1, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=50, help="sampled in each window")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    dims = tiny_dims(width=384, heads=6, audio_layers=4, text_layers=4, multilingual=False)
    state = random_state(dims, seed=0)
    state["decoder.token_embedding.weight"][50_256] = 0  # <|endoftext|> all but never wins
    audio = [noise_bursts(29, seed=i) for i in range(arguments.files)]
    with tempfile.TemporaryDirectory() as folder:
        path = save_openai(Path(folder) / "tiny.pt", dims, state)
        theirs = whisper.load_model(str(path), device="cpu")
        ours = {
            f"{name} ({'+'.join(PRESETS[name])})": slimwhisper.load_model(path, "cpu", cache=name)
            for name in ("slim", "baseline")
        }

    options: dict[str, Any] = {"without_timestamps": True, "sample_len": arguments.tokens}

    def reference() -> None:
        for recording in audio:
            theirs.transcribe(recording, temperature=0, fp16=False, **options)

    def batched(model: slimwhisper.SlimWhisper, size: int) -> Callable[[], None]:
        def run() -> None:
            for _, result in model.transcribe_many(audio, batch_size=size, **options):
                assert isinstance(result, slimwhisper.Transcript)

        return run

    runs = {"openai-whisper": reference}
    for name, model in ours.items():
        runs |= {f"{name}, batch {size}": batched(model, size) for size in BATCHES}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        ratio = medians["openai-whisper"] / median
        print(f"{name:32} {arguments.files / median * 3600:8.0f} files an hour  {ratio:5.2f}x")
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(json.dumps({"bench": "transcribe", "machine": machine, "seconds": medians}))


if __name__ == "__main__":
    main()
