"""Comparison with `whisper.transcribe`, segment by segment and word by word."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from slimwhisper.api import SlimWhisper
from slimwhisper.types import FRAMES_PER_SECOND, HOP_SAMPLES, Transcript

EXACT = ("id", "seek", "start", "end", "text", "tokens", "temperature", "compression_ratio")
NEAR = ("avg_logprob", "no_speech_prob")  # equal but for rounding


def whisper_transcribe(model: Any, audio: np.ndarray, **options: Any) -> dict[str, Any]:
    """openai-whisper's own transcription in float32, at temperature 0 unless told, and with what is
    ours on purpose: `limited`.
    """
    result = model.transcribe(audio, fp16=False, **{"temperature": 0, **options})
    return limited(result, len(audio) // HOP_SAMPLES / FRAMES_PER_SECOND)


def limited(result: dict[str, Any], seconds: float) -> dict[str, Any]:
    """whisper's result, whose segments end with the recording, or the next one, at the latest."""
    for segment in reversed(result["segments"]):
        if segment["end"] > seconds:
            latest = max(seconds - 0.02, segment["seek"] / FRAMES_PER_SECOND)
            latest = latest if segment["start"] < segment["end"] else seconds
            segment.update(start=min(segment["start"], latest), end=seconds)
            moved = segment["seek"] / FRAMES_PER_SECOND < segment["start"] == latest
            seconds = latest if moved else seconds
    return result


def transcribe_each(
    model: SlimWhisper, recordings: list[Any], **options: Any
) -> list[dict[str, Any]]:
    """`transcribe_many`, at temperature 0 unless told; the results in the recordings' order."""
    number = {id(audio): i for i, audio in enumerate(recordings)}
    found: dict[int, dict[str, Any]] = {}
    for audio, result in model.transcribe_many(recordings, **{"temperature": 0, **options}):
        assert isinstance(result, Transcript), result
        assert number[id(audio)] not in found
        found[number[id(audio)]] = dict(result)
    return [found[i] for i in range(len(recordings))]


def differences(
    found: Mapping[str, Any], expected: Mapping[str, Any], near: float = 1e-3
) -> list[str]:
    """What is not equal: text, language, tokens, times, words; probabilities beyond `near`."""
    wrong = [k for k in ("text", "language") if found[k] != expected[k]]
    pairs = list(zip(found["segments"], expected["segments"], strict=False))
    if len(found["segments"]) != len(expected["segments"]):
        wrong.append(f"{len(found['segments'])} segments, not {len(expected['segments'])}")
    for ours, theirs in pairs:
        number = theirs["id"]
        wrong += [f"{k} of segment {number}" for k in EXACT if ours[k] != theirs[k]]
        wrong += [f"{k} of segment {number}" for k in NEAR if abs(ours[k] - theirs[k]) > near]
        # whisper gives a cleared segment words even where none are asked for
        if ours.get("words") is None and not theirs.get("words"):
            continue
        wrong += word_differences(ours["words"], theirs["words"], near, f"segment {number}")
    return wrong


def word_differences(
    found: list[dict[str, Any]], expected: list[dict[str, Any]], near: float, where: str
) -> list[str]:
    """The words of one segment that are not equal."""
    if len(found) != len(expected):
        return [f"{len(found)} words of {where}, not {len(expected)}"]
    exact = ("word", "start", "end")
    return [
        f"{ours} of {where}, not {theirs}"
        for ours, theirs in zip(found, expected, strict=True)
        if any(ours[k] != theirs[k] for k in exact)
        or abs(ours["probability"] - theirs["probability"]) > near
    ]
