"""How long the command takes from its start to the first text, and where that time goes.

    python bench/startup.py --rounds 3

A checkpoint of the tiny shape with random weights, and the bundled digits, hear the first five
seconds of a sample, each in a fresh process. Prints one line of JSON for each measurement: seconds
on the clock, and of processor time. `import torch` is measured beside them, in turns.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import soundfile

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "slimwhisper"]
# What the command does in order; what each line prints is the time when it has been done.
STAGES = """
import json, sys, time
def done(stage):
    print(json.dumps({"stage": stage, "clock": time.perf_counter(), "cpu": time.process_time()}))
done("Python")
from slimwhisper._lazy import lasting_imports
with lasting_imports("torch"):
    import torch
    done("torch")
    import slimwhisper.jobs.job, slimwhisper.api
    done("other imports")
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.model.model import Model
checkpoint = load_checkpoint(sys.argv[2])
done("checkpoint")
checkpoint.tokens
done("vocabulary")
model = slimwhisper.api.SlimWhisper(Model(checkpoint, torch.device("cpu"), torch.float32))
done("packing")
first = []
def on_segments(*_):
    if not first:
        first.append(done("recording and first window"))
sources, options = iter([sys.argv[1]]), {"batch_size": 1, "language": "en"}
list(model.transcribe_many(sources, on_segments=on_segments, **options))
"""


def tiny_checkpoint(file: Path) -> None:
    """Write a multilingual model of the tiny shape, seeded."""
    import torch

    from slimwhisper.checkpoint.random_weights import random_state
    from slimwhisper.types import Dims

    dims = Dims(80, 1500, 384, 6, 4, 51_865, 448, 384, 6, 4)
    torch.save({"dims": asdict(dims), "model_state_dict": random_state(dims, 0)}, file)


def measure(what: str, *command: str, until: str | None = None) -> None:
    """Run a command; `until`: what the line has that is waited for, besides the end."""
    began, used = time.perf_counter(), os.times()
    first = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if until is not None and first is None and until.encode() in line:
                first = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: status {process.returncode}")
    ended, now = time.perf_counter() - began, os.times()
    processor = now.children_user + now.children_system - used.children_user - used.children_system
    times = {"first": first and round(first, 3), "end": round(ended, 3)}
    print(json.dumps({"what": what, **times, "processor": round(processor, 3)}), flush=True)


def stages(model: str, wav: Path) -> None:
    """Seconds of processor time in each stage of a transcription."""
    command = [sys.executable, "-c", STAGES, str(wav), model]
    lines = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).splitlines()
    rows, before, split = [json.loads(line) for line in lines], 0.0, {}
    for row in rows:
        split[row["stage"]] = round(row["cpu"] - before, 3)
        before = row["cpu"]
    print(json.dumps({"what": f"stages of {Path(model).stem}", **split}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the command's start.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        samples, rate = soundfile.read(ROOT / "samples" / "phone-number.wav", dtype="int16")
        wav, flac = folder / "five.wav", folder / "five.flac"
        for file in (wav, flac):
            soundfile.write(file, samples[: 5 * rate], rate, subtype="PCM_16")
        tiny = str(folder / "tiny.pt")
        tiny_checkpoint(Path(tiny))
        for _ in range(rounds):
            for what, code in (("import torch", "import torch"), ("import", "import slimwhisper")):
                measure(what, sys.executable, "-c", code)
            for what in ("--help", "doctor"):
                measure(what, *COMMAND, what)
            for model in (tiny, "digits"):
                for file in (wav, flac):
                    what, rest = f"{Path(model).stem}, {file.suffix[1:]}", ("-o", str(folder))
                    asked = (str(file), "--model", model, "--language", "en", *rest)
                    measure(what, *COMMAND, "transcribe", *asked, until="-->")
                stages(model, wav)


if __name__ == "__main__":
    main()
