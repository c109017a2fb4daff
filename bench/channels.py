"""The time and the texts of `channels="split"` beside those of the same call mixed to mono.

    python bench/channels.py FOLDER [--model digits] [--turns 60] [--rounds 3]

FOLDER has recordings of the Free Spoken Digit Dataset. Two people take turns, each on a channel of
their own, with faint noise where they are silent. No window is decoded twice (temperature 0). The
ways take turns in rounds, and their processor time counts, which other programs change little. The
last table is the median of the ratios to the mixed recording in the same round, and the word error
rates of the whole text, and of each speaker's by itself.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import jiwer
import numpy as np
from conversations import NOISE, Conversation, Digits, converse, words_of
from numpy.typing import NDArray
from timing import machine

import slimwhisper
from slimwhisper.types import SAMPLE_RATE

WAYS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "mixed, word_timestamps": {"word_timestamps": True},
    "split": {"channels": "split"},
    "split, no words": {"channels": "split", "word_timestamps": False},
    "mixed, parallel": {"parallel": True, "batch_size": 8},
    "split, parallel": {"channels": "split", "parallel": True, "batch_size": 8},
}


def on_channels(call: Conversation) -> tuple[list[str], NDArray[np.float32]]:
    """The speakers, and float32 [2, n]: each one's words, and noise between them."""
    speakers = sorted({word.speaker for word in call.words})
    rng = np.random.default_rng(0)
    audio = NOISE * rng.standard_normal((len(speakers), len(call.audio)), dtype=np.float32)
    for word in call.words:
        span = slice(round(word.start * SAMPLE_RATE), round(word.end * SAMPLE_RATE))
        audio[speakers.index(word.speaker), span] = call.audio[span]
    return speakers, audio


def errors(result: dict[str, Any], call: Conversation, speakers: list[str]) -> tuple[float, float]:
    """The word error rates of all words in order of time, and of each speaker's by themselves."""
    spoken = [s for s in result["segments"] if s["text"].strip()]
    truth = " ".join(word.word for word in call.words)
    rate = jiwer.wer(truth, " ".join(words_of(result["text"])))
    if not all("speaker" in segment for segment in spoken):
        return rate, float("nan")
    by_speaker = [
        (
            " ".join(word.word for word in call.words if word.speaker == name),
            " ".join(words_of("".join(s["text"] for s in spoken if s["speaker"] == name))),
        )
        for name in speakers
    ]
    spoken_by, found = map(list, zip(*by_speaker, strict=True))
    return rate, jiwer.wer(spoken_by, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    call = converse(Digits(flags.folder), 2, flags.turns, seed=300)
    speakers, audio = on_channels(call)
    model = slimwhisper.load_model(flags.model, device="cpu")
    print(f"{machine(model.device)}; {audio.shape[1] / SAMPLE_RATE:.0f} s")
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    found: dict[str, tuple[float, float]] = {}
    for number in range(flags.rounds + 1):  # the first warms up
        mixed = 0.0
        for way, options in WAYS.items():
            names: dict[str, Any] = {"channel_names": speakers} if "channels" in options else {}
            begin = time.process_time()
            result = model.transcribe(audio, language="en", temperature=0, **options, **names)
            seconds = time.process_time() - begin
            mixed = mixed or seconds
            found[way] = errors(result, call, speakers)
            if number:
                ratios[way].append(seconds / mixed)
                print(f"round {number}: {way}: {seconds:.2f} s, {seconds / mixed:.2f}", flush=True)
    print("\n| | time | words wrong | by speaker |\n|---|---|---|---|")
    for way, (rate, by_speaker) in found.items():
        print(f"| {way} | {median(ratios[way]):.2f} | {rate:.1%} | {by_speaker:.1%} |")


if __name__ == "__main__":
    main()
