"""Scripts written for openai-whisper, run with `import slimwhisper as whisper`."""

import base64
import gc
import gzip
import inspect
from importlib import import_module
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
result = model.transcribe(audio, fp16=False, temperature=0, sample_len=12, word_timestamps=True)
text, segments, language = result["text"], result["segments"], result["language"]
words = [(w["word"], w["start"], w["end"]) for s in segments for w in s["words"]]

clip = whisper.pad_or_trim(audio)
mel = whisper.log_mel_spectrogram(clip, n_mels=model.dims.n_mels).to(model.device)
token, probs = model.detect_language(mel)
spoken = max(probs, key=probs.get)
tokens, several = whisper.detect_language(model, torch.stack([mel, mel.flip(1)]))
again = whisper.transcribe(model, audio, fp16=False, temperature=0, sample_len=12)["text"]
features = model.embed_audio(mel.unsqueeze(0))
ids = torch.tensor([whisper.tokenizer.get_tokenizer(True).sot_sequence])
logits = model.logits(ids, features)
forwarded = model(mel.unsqueeze(0), ids)

options = whisper.DecodingOptions(fp16=False, language="de", prompt="well, then", sample_len=12)
decoded = whisper.decode(model, mel, options)
beams = whisper.decode(model, mel, fp16=False, language="en", beam_size=3, sample_len=12)
both = torch.stack([mel, mel.flip(1)])
pair = model.decode(both, whisper.DecodingOptions(fp16=False, sample_len=12))
identified = whisper.decode(model, mel, whisper.DecodingOptions(fp16=False, task="lang_id"))
"""


def run(module: Any, path: Path, audio: np.ndarray) -> dict[str, Any]:
    names: dict[str, Any] = {"whisper": module, "path": str(path), "audio": audio, "torch": torch}
    exec(SCRIPT, names)
    return names


def test_the_same_script(random_paths: dict[str, Path]) -> None:
    audio = noise_bursts(31, seed=5)
    ours = run(slimwhisper, random_paths["multilingual"], audio)
    theirs = run(openai_whisper, random_paths["multilingual"], audio)
    for name in ("text", "language", "words", "spoken", "again"):
        assert ours[name] == theirs[name], name
    for name in ("token", "tokens"):
        assert torch.equal(ours[name], theirs[name]), name
    for name in ("features", "logits", "forwarded"):
        torch.testing.assert_close(ours[name], theirs[name], atol=2e-4, rtol=1e-4)
    assert ours["words"], "the comparison is not of nothing"
    for mine, other in zip(ours["segments"], theirs["segments"], strict=True):
        assert [key for key in mine if key != "flags"] == list(other)
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


# what scripts will not find here, and why
MISSING = {
    "normalizers": "whisper.normalizers needs no model; it is there when it has been imported",
    "version": "a module with openai-whisper's number; slimwhisper.__version__ is ours",
    "Whisper.install_kv_cache_hooks": "there are no modules to hook: the caches are passed in",
}
# what scripts do not mean when they say whisper.NAME
IMPORTED = set("List Optional Union hashlib io os torch tqdm urllib warnings".split())


def public(thing: Any) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def test_every_public_name_of_whisper() -> None:
    """All are here, but for a few that are missing on purpose."""
    import_module("whisper.normalizers")
    expected = {n: slimwhisper for n in public(openai_whisper) - IMPORTED}
    expected |= {f"Whisper.{n}": slimwhisper.Whisper for n in public(openai_whisper.Whisper)}
    for module in ("audio", "decoding", "model", "timing", "tokenizer", "utils"):
        theirs = getattr(openai_whisper, module)
        own = {
            n
            for n in public(theirs)
            if getattr(vars(theirs)[n], "__module__", None) == theirs.__name__
        }
        constants = {n for n in public(theirs) if n.isupper()}
        ours = getattr(slimwhisper, module)
        expected |= {f"{module}.{n}": ours for n in own | constants}
    assert slimwhisper.decoding.decode is slimwhisper.decode  # those that need a model are ours
    assert slimwhisper.model.Whisper is slimwhisper.Whisper is slimwhisper.SlimWhisper
    missing = {n for n, home in expected.items() if not hasattr(home, n.rpartition(".")[2])}
    assert missing == MISSING.keys()
    assert len(expected) > 100


def test_alignment_heads_of_ones_own(random_paths: dict[str, Path]) -> None:
    """The same dump gives the same words."""
    audio = noise_bursts(8, seed=2)
    found = []
    for module in (slimwhisper, openai_whisper):
        model = module.load_model(str(random_paths["english"]), device="cpu")
        chosen = np.zeros((model.dims.n_text_layer, model.dims.n_text_head), bool)
        chosen[0, 1] = True
        model.set_alignment_heads(base64.b85encode(gzip.compress(chosen.tobytes())))
        options = {"fp16": False, "temperature": 0, "sample_len": 12, "word_timestamps": True}
        found.append(model.transcribe(audio, **options)["segments"][0]["words"])
        assert (model.is_multilingual, model.device.type) == (False, "cpu")
    assert found[0] and [w["word"] for w in found[0]] == [w["word"] for w in found[1]]
    assert [w["start"] for w in found[0]] == [w["start"] for w in found[1]]
    with pytest.raises(slimwhisper.OptionError, match="2 heads"):
        slimwhisper.load_model(random_paths["english"], "cpu").set_alignment_heads(b"nothing")


def test_in_memory(random_paths: dict[str, Path], tmp_path: Path) -> None:
    """The fourth argument, as in `whisper`: the file may go once the model is loaded."""
    from slimwhisper.checkpoint.load import load_checkpoint

    path = tmp_path / "model.pt"
    path.write_bytes(random_paths["english"].read_bytes())
    mapped, copied = (load_checkpoint(path, in_memory=flag) for flag in (False, True))
    name = "encoder.conv1.weight"
    assert torch.equal(mapped.state[name], copied.state[name])
    assert str(path) in Path("/proc/self/maps").read_text()
    del mapped
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert slimwhisper.load_model(path, "cpu", None, True).dims == copied.dims


def test_what_whisper_would_take(random_paths: dict[str, Path]) -> None:
    with pytest.raises(slimwhisper.OptionError, match="sr=8000"):
        slimwhisper.load_audio("talk.wav", 8000)
    model = slimwhisper.load_model(random_paths["english"], "cpu")
    with pytest.raises(slimwhisper.OptionError, match=r"\[80, 2999\]"):
        model.decode(torch.zeros(80, 2999))
    with pytest.raises(slimwhisper.OptionError, match="best_of"):
        model.decode(torch.zeros(80, 3000), best_of=0)
