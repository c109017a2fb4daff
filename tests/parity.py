"""Comparison with `whisper.transcribe`, segment by segment."""

from typing import Any

import numpy as np


def whisper_transcribe(model: Any, audio: np.ndarray, **options: Any) -> dict[str, Any]:
    """openai-whisper's own transcription at temperature 0, in float32."""
    return model.transcribe(audio, temperature=0, beam_size=None, fp16=False, **options)


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What is not equal: text, language, tokens, times; probabilities beyond rounding."""
    wrong = [k for k in ("text", "language") if found[k] != expected[k]]
    pairs = list(zip(found["segments"], expected["segments"], strict=False))
    if len(found["segments"]) != len(expected["segments"]):
        wrong.append(f"{len(found['segments'])} segments, not {len(expected['segments'])}")
    exact = ("id", "seek", "start", "end", "text", "tokens", "temperature", "compression_ratio")
    for ours, theirs in pairs:
        wrong += [f"{k} of segment {theirs['id']}" for k in exact if ours[k] != theirs[k]]
        for key in ("avg_logprob", "no_speech_prob"):
            if abs(ours[key] - theirs[key]) > 1e-3:
                wrong.append(f"{key} of segment {theirs['id']}")
    return wrong
