"""Scripts written for openai-whisper, run with `import slimwhisper as whisper`."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whisper as openai_whisper

import slimwhisper
from tests.support.sounds import noise_bursts

# what openai-whisper's README shows, and what its users write
SCRIPT = """
model = whisper.load_model(path, device="cpu")
result = model.transcribe(audio, fp16=False, temperature=0, sample_len=24, word_timestamps=True)
text, segments, language = result["text"], result["segments"], result["language"]
words = [(w["word"], w["start"], w["end"]) for s in segments for w in s["words"]]

clip = whisper.pad_or_trim(audio)
mel = whisper.log_mel_spectrogram(clip, n_mels=model.dims.n_mels).to(model.device)
_, probs = model.detect_language(mel)
spoken = max(probs, key=probs.get)
_, several = model.detect_language(torch.stack([mel, mel.flip(1)]))

options = whisper.DecodingOptions(fp16=False, language="de", prompt="well, then", sample_len=24)
decoded = whisper.decode(model, mel, options)
beams = whisper.decode(model, mel, fp16=False, language="en", beam_size=3, sample_len=20)
both = torch.stack([mel, mel.flip(1)])
pair = model.decode(both, whisper.DecodingOptions(fp16=False, sample_len=24))
identified = whisper.decode(model, mel, whisper.DecodingOptions(fp16=False, task="lang_id"))
"""


def run(module: Any, path: Path, audio: np.ndarray) -> dict[str, Any]:
    names: dict[str, Any] = {"whisper": module, "path": str(path), "audio": audio, "torch": torch}
    exec(SCRIPT, names)
    return names


def test_the_same_script(random_paths: dict[str, Path]) -> None:
    audio = noise_bursts(41, seed=5)
    ours = run(slimwhisper, random_paths["multilingual"], audio)
    theirs = run(openai_whisper, random_paths["multilingual"], audio)
    for name in ("text", "language", "words", "spoken"):
        assert ours[name] == theirs[name], name
    assert ours["words"], "the comparison is not of nothing"
    for mine, other in zip(ours["segments"], theirs["segments"], strict=True):
        assert list(mine) == list(other)
        assert mine["tokens"] == other["tokens"]
    for mine, other in zip(
        [ours["probs"], *ours["several"]], [theirs["probs"], *theirs["several"]], strict=True
    ):
        assert mine == pytest.approx(other, abs=1e-5)
    results = [(ours[n], theirs[n]) for n in ("decoded", "beams", "identified")]
    for mine, other in [*results, *zip(ours["pair"], theirs["pair"], strict=True)]:
        assert isinstance(mine, openai_whisper.DecodingResult)
        assert (mine.language, mine.tokens, mine.text) == (other.language, other.tokens, other.text)
        assert mine.avg_logprob == pytest.approx(other.avg_logprob, abs=1e-4, nan_ok=True)
        assert mine.no_speech_prob == pytest.approx(other.no_speech_prob, abs=1e-4, nan_ok=True)
        assert mine.compression_ratio == pytest.approx(other.compression_ratio, nan_ok=True)
        assert mine.temperature == pytest.approx(other.temperature, nan_ok=True)


def test_every_option_of_whisper_is_known(random_paths: dict[str, Path]) -> None:
    """The keywords of `transcribe` and the fields of `DecodingOptions`, with the same defaults."""
    from slimwhisper.types import Options

    ours = {name: f.default for name, f in Options.__dataclass_fields__.items()}
    theirs = inspect.signature(openai_whisper.transcribe).parameters
    for name, parameter in theirs.items():
        if name not in ("model", "audio", "verbose", "decode_options"):
            assert ours[name] == parameter.default, name
    own = ("temperature", "prompt", "fp16")  # transcribe's own, made by it, chosen at load
    for name, field in openai_whisper.DecodingOptions.__dataclass_fields__.items():
        if name not in own:
            assert ours[name] == field.default, name


def test_wrong_windows(random_paths: dict[str, Path]) -> None:
    model = slimwhisper.load_model(random_paths["english"], "cpu")
    with pytest.raises(slimwhisper.OptionError, match=r"\[80, 2999\]: give \[80, 3000\]"):
        model.decode(torch.zeros(80, 2999))
    with pytest.raises(slimwhisper.OptionError, match="best_of"):
        model.decode(torch.zeros(80, 3000), best_of=0)
