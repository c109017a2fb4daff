"""All that a build says of some recordings, to the last bit, for the build that comes after it.

    python bench/oracle.py FOLDER --model CHECKPOINT --out before.json
    python bench/oracle.py FOLDER --model CHECKPOINT --against before.json

FOLDER's recordings (the first `--files` of up to `--seconds`) are transcribed 1, 8 and 64 windows
at a time: greedily, with beams, with fallback, on two channels, and in parallel pieces; with the
smallest text cache, where long texts lose their pages ("preemptions" counts them); and live, in
pieces of five lengths. Written down are segments and words, numbers as they are, and the order of
each recording's events: its length, its segments, its end. The other build, on the same processor,
must say the same; what differs is listed, and the exit status is 1.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import slimwhisper
from slimwhisper import SlimWhisperError
from slimwhisper.audio.load import load_audio
from slimwhisper.cache.decoder_cache import Pages
from slimwhisper.engine.requests import Search
from slimwhisper.types import SAMPLE_RATE

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "beams": {"temperature": 0, "beam_size": 3},
    # a threshold that many windows fail
    "fallback": {"temperature": (0.0, 0.4, 0.8), "logprob_threshold": -0.3, "best_of": 2},
    "channels": {"temperature": 0, "channels": "split"},
    "parallel": {"temperature": 0, "parallel": True, "word_timestamps": True},
}
BATCHES = (1, 8, 64)
PIECES = (160, 1_600, 8_000, 16_000, 48_001)  # samples, of live audio

Audio = NDArray[np.float32]
Said = dict[str, Any]


def transcripts(model: Any, audio: dict[str, Audio], batch: int, options: Said) -> Said:
    """By recording: its transcript or error, and its events in order."""
    names = {id(samples): name for name, samples in audio.items()}
    events: dict[str, list[Any]] = {name: [] for name in audio}
    many = model.transcribe_many(
        list(audio.values()),
        batch_size=batch,
        on_segments=lambda s, new, done: events[names[id(s)]].append([len(new), done]),
        on_duration=lambda s, seconds: events[names[id(s)]].append(seconds),
        **options,
    )
    said: Said = {}
    for source, result in many:
        name = names[id(source)]
        text = str(result) if isinstance(result, SlimWhisperError) else result
        if "channels" in options:  # which channel is ahead depends on the threads that read
            events[name] = [events[name][0], sum(new for new, _ in events[name][1:])]
        said[name] = [text, [*events[name], "end"]]
    return said


def streams(model: Any, audio: dict[str, Audio]) -> Iterator[tuple[str, Said]]:
    """By length of the pieces: every recording's live events."""
    for length in PIECES:
        said = {}
        for name, samples in audio.items():
            pieces = (samples[i : i + length] for i in range(0, len(samples), length))
            said[name] = [repr(event) for event in model.live(pieces)]
        yield f"live, {length}", said


def all_of(flags: argparse.Namespace, audio: dict[str, Audio]) -> Iterator[tuple[str, Said]]:
    model = slimwhisper.load_model(flags.model, device="cpu")
    pairs = list(audio.values())
    stereo = {
        name: np.stack([one[: SAMPLE_RATE * 5], np.resize(other, len(one))[: SAMPLE_RATE * 5]])
        for name, one, other in zip(audio, pairs, pairs[1:] + pairs[:1], strict=True)
        if len(one) > SAMPLE_RATE
    }
    cases = [(mode, batch) for mode in MODES for batch in BATCHES]
    for mode, batch in cases if "transcripts" in flags.cases else ():
        given = stereo if mode == "channels" else audio
        yield f"{mode}, {batch}", transcripts(model, given, batch, MODES[mode])
    if "live" in flags.cases:
        yield from streams(model, audio)
    if "small" not in flags.cases:
        return
    least = Search().least_pages(model.dims.n_text_ctx)
    page = Pages(model.network.plan, 0, torch.device("meta")).page_bytes
    model = slimwhisper.load_model(flags.model, device="cpu", cache_memory=page * least)
    copies = (item for item in audio.items() for _ in range(64 // len(audio)))
    many = {f"{name}, {i}": samples[:] for i, (name, samples) in enumerate(copies)}
    said = transcripts(model, many, 64, MODES["greedy"])
    preemptions = model.text_memory().preemptions
    yield "small cache", said | {"preemptions": preemptions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=40)
    cases = ("transcripts", "live", "small")
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    audio: dict[str, Audio] = {}
    for path in sorted(flags.folder.iterdir()):
        try:
            samples = load_audio(path)
        except SlimWhisperError:
            continue
        if len(samples) <= flags.seconds * SAMPLE_RATE and len(audio) < flags.files:
            audio[path.name] = samples
    before = json.loads(flags.against.read_text()) if flags.against else {}
    found, same = {}, True
    for case, said in all_of(flags, audio):
        found[case] = now = json.loads(json.dumps(said))  # tuples become lists
        old = before.get(case, {}) if flags.against else now
        changed = [name for name in {**old, **now} if now.get(name) != old.get(name)]
        same = same and not changed
        print(f"{case}: {len(now)}, {f'CHANGED: {changed}' if changed else 'same'}", flush=True)
    if flags.out:
        flags.out.write_text(json.dumps(found))
    sys.exit(not same)


if __name__ == "__main__":
    main()
