"""Another project's policy: python bench/live_peers.py FSDD --whisper_streaming FOLDER

Runs the LocalAgreement-2 of whisper_streaming and `SlimWhisper.live` over the same conversations,
one stream at a time, with the same model, decoded by slimwhisper on this machine. FOLDER is a
checkout of https://github.com/ufal/whisper_streaming; it needs librosa. The clock is the audio's,
plus the CPU seconds that each call takes with one thread: an update that is not done when the next
one is due makes that one late. Prints a line of JSON for each.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conversations import Conversation
from live import conversations
from live_client import RATE, SILENCE
from live_score import Score, Shown, score
from numpy.typing import NDArray
from timing import machine

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.live.types import Text

STEP = 0.02  # seconds of audio that a live stream is given at a time


class Transcriber:
    """What whisper_streaming asks of a model, by its names."""

    sep = ""  # words begin with a space

    def __init__(self, model: SlimWhisper) -> None:
        self._model = model

    def transcribe(self, audio: NDArray[np.float32], init_prompt: str = "") -> list[dict[str, Any]]:
        """The segments of float32 [n], with word times."""
        found = self._model.transcribe(
            audio,
            language="en",
            initial_prompt=init_prompt or None,
            word_timestamps=True,
            condition_on_previous_text=True,
        )
        segments: list[dict[str, Any]] = found["segments"]
        return segments

    def ts_words(self, segments: list[dict[str, Any]]) -> list[tuple[float, float, str]]:
        return [(w["start"], w["end"], w["word"]) for s in segments for w in s["words"]]

    def segments_end_ts(self, segments: list[dict[str, Any]]) -> list[float]:
        return [s["end"] for s in segments]


def theirs(model: SlimWhisper, audio: NDArray[np.float32], update: float) -> tuple[Shown, float]:
    """What whisper_streaming shows, and the seconds that it worked."""
    from whisper_online import OnlineASRProcessor

    online, shown, now, given, worked = OnlineASRProcessor(Transcriber(model)), Shown(), 0.0, 0, 0.0
    while given < len(audio):
        now = max(now, given / RATE + update)
        upto = min(round(now * RATE), len(audio))
        online.insert_audio_chunk(audio[given:upto])
        given, since = upto, time.process_time()
        _, _, text = online.process_iter()
        spent = time.process_time() - since
        now, worked = now + spent, worked + spent
        shown.commit(text, now)
        shown.show(online.to_flush(online.transcript_buffer.complete())[2])
    shown.commit(online.finish()[2], now)
    shown.show("")
    return shown, worked


def ours(model: SlimWhisper, audio: NDArray[np.float32], update: float) -> tuple[Shown, float]:
    """What `live` shows, and the seconds that it worked."""
    given, lag, worked = 0.0, 0.0, 0.0

    def pieces() -> Iterator[NDArray[np.float32]]:
        nonlocal given, lag
        size = round(STEP * RATE)
        for start in range(0, len(audio), size):
            given += STEP
            lag = max(lag - STEP, 0.0)  # work goes on while people speak
            yield audio[start : start + size]

    shown, utterance, since = Shown(), 0, time.process_time()
    for event in model.live(pieces(), language="en", update=update, window=None):
        spent, since = time.process_time() - since, time.process_time()
        lag, worked = lag + spent, worked + spent
        if isinstance(event, Text):
            if event.utterance != utterance:
                utterance = event.utterance
                shown.commit(" ", given)
            shown.commit(event.committed, given + lag)
            shown.show(event.tentative)
        since = time.process_time()
    return shown, worked


def row(name: str, run: Any, model: SlimWhisper, talks: list[Conversation], update: float) -> Any:
    """One line of the results."""
    scores, worked, seconds = list[Score](), 0.0, 0.0
    for talk in talks:
        audio = np.concatenate([talk.audio, np.zeros(round(SILENCE * RATE), np.float32)])
        shown, spent = run(model, audio, update)
        offline = model.transcribe(talk.audio, language="en")["text"]
        scores.append(score(talk.words, offline, [shown]))
        worked, seconds = worked + spent, seconds + len(audio) / RATE
    return {"policy": name, **reduce(add, scores).summary(), "work": worked / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--whisper_streaming", type=Path, help="a checkout [only ours is run]")
    parser.add_argument("--model", default="digits")
    parser.add_argument("--count", type=int, default=4, help="conversations")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each, about")
    parser.add_argument("--update", type=float, default=1.0, help="seconds between updates [1]")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = slimwhisper.load_model(asked.model, "cpu")
    talks = conversations(asked.folder, asked.count, asked.seconds, 0)
    runs = {"slimwhisper live": ours}
    if asked.whisper_streaming is not None:
        sys.path.append(str(asked.whisper_streaming))
        runs["whisper_streaming"] = theirs
    print(*(f"{key}: {value}" for key, value in machine(torch.device("cpu")).items()), sep="\n")
    for name, run in runs.items():
        found = row(name, run, model, talks, asked.update)
        print(json.dumps({"bench": "live_peers", "model": asked.model, **found}), flush=True)


if __name__ == "__main__":
    main()
