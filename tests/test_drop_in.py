"""Scripts written for openai-whisper, run with `import slimwhisper as whisper`."""

import base64
import copy
import gc
import gzip
import json
import pickle
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whisper as openai_whisper

import slimwhisper
from tests.support.command import python
from tests.support.paths import PHONE
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


def test_one_result_for_one_recording_and_for_many(digits_path: Path) -> None:
    """It reads as `whisper`'s dictionary, and has attributes."""
    model = slimwhisper.load_model(str(digits_path))
    alone = model.transcribe(str(PHONE), word_timestamps=True)
    ((_, found),) = model.transcribe_many([PHONE], word_timestamps=True)
    assert not isinstance(found, slimwhisper.SlimWhisperError) and found == alone
    assert list(found) == ["text", "segments", "language"]
    assert found["text"] == found.text and found["segments"][0]["start"] == found.segments[0].start
    assert found["segments"][0]["words"][0]["word"] == " five"
    read_back = json.loads(json.dumps(found))
    assert read_back == found == dict(found) == {**found}
    for twin in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert type(twin) is slimwhisper.Transcript and twin == found
        assert twin.segments == found.segments
    found["segments"][0]["tokens"].clear()
    assert found.segments[0].tokens, "a copy"
    assert repr(found).startswith("Transcript(' five five") and len(repr(found)) < 120
    assert repr(found) == str(found) and "\n" not in repr(found)


@pytest.mark.slow
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
        assert list(mine) == list(other)
        assert mine["tokens"] == other["tokens"]
    for mine, other in zip(
        [ours["probs"], *ours["several"]], [theirs["probs"], *theirs["several"]], strict=True
    ):
        assert mine == pytest.approx(other, abs=1e-5)
    results = [(ours[n], theirs[n]) for n in ("decoded", "beams", "identified")]
    for mine, other in [*results, *zip(ours["pair"], theirs["pair"], strict=True)]:
        assert isinstance(mine, slimwhisper.DecodingResult)
        assert (mine.language, mine.tokens, mine.text) == (other.language, other.tokens, other.text)
        assert mine.avg_logprob == pytest.approx(other.avg_logprob, abs=1e-4, nan_ok=True)
        assert mine.no_speech_prob == pytest.approx(other.no_speech_prob, abs=1e-4, nan_ok=True)
        assert mine.compression_ratio == pytest.approx(other.compression_ratio, nan_ok=True)
        assert mine.temperature == pytest.approx(other.temperature, nan_ok=True)


# what scripts will not find here, and why
MISSING = {
    "Whisper.install_kv_cache_hooks": "there are no modules to hook: the caches are passed in"
}
# modules of which only these names are here: the others decode with whisper's own modules
OURS = {
    "decoding": {"DecodingOptions", "DecodingResult", "decode", "detect_language"},
    "model": {"ModelDimensions", "Whisper"},
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
    modules = ("audio", "decoding", "model", "normalizers", "timing", "tokenizer", "utils")
    for module in modules:
        theirs = getattr(openai_whisper, module)
        own = {
            n
            for n in public(theirs)
            if getattr(vars(theirs)[n], "__module__", None) == theirs.__name__
        }
        constants = {n for n in public(theirs) if n.isupper()} - {"F", "TYPE_CHECKING"}
        ours = getattr(slimwhisper, module)
        expected |= {f"{module}.{n}": ours for n in OURS.get(module, own | constants)}
    assert slimwhisper.decoding.decode is slimwhisper.decode  # those that need a model are ours
    assert slimwhisper.model.Whisper is slimwhisper.Whisper is slimwhisper.SlimWhisper
    missing = {n for n, home in expected.items() if not hasattr(home, n.rpartition(".")[2])}
    assert missing == MISSING.keys()
    for name in ("_MODELS", "_ALIGNMENT_HEADS"):
        assert getattr(slimwhisper, name) == getattr(openai_whisper, name)
    assert len(expected) > 80


def head_dump(dims: Any, head: tuple[int, int]) -> bytes:
    """One head, (layer, head), as `whisper` dumps it."""
    chosen = np.zeros((dims.n_text_layer, dims.n_text_head), bool)
    chosen[head] = True
    return base64.b85encode(gzip.compress(chosen.tobytes()))


def refused(message: str, call: Any, *given: Any, **named: Any) -> None:
    with pytest.raises(slimwhisper.OptionError, match=message):
        call(*given, **named)


def test_alignment_heads_of_ones_own(random_paths: dict[str, Path], monkeypatch: Any) -> None:
    """The same dump gives the same words."""
    timing = openai_whisper.timing
    for compiled in (timing.dtw_cpu, timing.backtrace):  # which takes seconds
        monkeypatch.setattr(timing, compiled.__name__, compiled.py_func)
    audio = noise_bursts(8, seed=2)
    found = []
    for module in (slimwhisper, openai_whisper):
        model = module.load_model(str(random_paths["english"]), device="cpu")
        model.set_alignment_heads(head_dump(model.dims, (0, 1)))
        options = {"fp16": False, "temperature": 0, "sample_len": 12, "word_timestamps": True}
        found.append(model.transcribe(audio, **options)["segments"][0]["words"])
        assert (model.is_multilingual, model.device.type) == (False, "cpu")
    assert found[0] and [w["word"] for w in found[0]] == [w["word"] for w in found[1]]
    assert [w["start"] for w in found[0]] == [w["start"] for w in found[1]]
    ours = slimwhisper.load_model(random_paths["english"], "cpu")
    refused("2 heads", ours.set_alignment_heads, b"nothing")


def test_in_memory(random_paths: dict[str, Path], tmp_path: Path) -> None:
    """The fourth argument, as in `whisper`: the file may go once the model is loaded."""
    from slimwhisper.formats.load import load_checkpoint

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


def test_what_scripts_call_on_a_module(random_paths: dict[str, Path]) -> None:
    """The model stays where it is, and its parameters are those of `whisper`."""
    path = str(random_paths["english"])
    ours, theirs = (m.load_model(path, device="cpu") for m in (slimwhisper, openai_whisper))
    for model in (ours.to("cpu"), ours.cpu(), ours.eval(), ours.half(), ours.float(), ours.train()):
        assert model is ours
    assert ours.to(torch.zeros(1)) is ours.to(device="cpu") is ours.to(torch.float16) is ours
    assert not ours.eval().training
    for move in (ours.cuda, lambda: ours.to(0), lambda: ours.to("cuda:1")):
        refused(r"on cpu.*load_model\(name, device=.cuda", move)
    refused("'nowhere' is not a device", ours.to, "nowhere")
    assert ours.dims.__dict__ == theirs.dims.__dict__
    mine, others = list(ours.parameters()), list(theirs.parameters())
    assert sum(p.numel() for p in mine) == sum(p.numel() for p in others) > 0
    assert {tuple(p.shape) for p in mine} == {tuple(p.shape) for p in others}
    assert next(ours.parameters()).device == ours.device
    weights = ours.state_dict()
    assert weights.keys() == theirs.state_dict().keys()
    assert {n for n, _ in ours.named_parameters()} == {n for n, _ in theirs.named_parameters()}
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weights[name], weight), name
    refused(r"do not change; save these with torch.save", ours.load_state_dict, weights)


def test_calls_of_scripts(random_paths: dict[str, Path]) -> None:
    """`file=`, all of `DecodingOptions` as keywords, and errors by `whisper`'s kind."""
    audio = slimwhisper.load_audio(file=str(PHONE))
    assert np.array_equal(audio, slimwhisper.load_audio(str(PHONE)))
    model = slimwhisper.load_model(random_paths["english"], device="cpu")
    options = asdict(slimwhisper.DecodingOptions(language="en", sample_len=8, temperature=0.0))
    assert model.transcribe(audio, **options)["text"]
    for wrong in (lambda: slimwhisper.load_model("none"), lambda: slimwhisper.load_audio("none")):
        with pytest.raises(RuntimeError, match="none"):
            wrong()
    # what was asked for is no setting of the model
    assert slimwhisper.load_model("digits", "cpu", audio_window="near").settings == []
    load, one = partial(slimwhisper.load_model, device="cpu"), torch.zeros(80, 3000)
    refused("give initial_prompt", model.transcribe, audio, prompt="seven")
    refused("use load_model", slimwhisper.Whisper, model.dims)
    refused("sr=8000", slimwhisper.load_audio, "talk.wav", 8000)
    refused(r"\[80, 2999\]", model.decode, one[:, 1:])
    refused("give DecodingOptions", model.decode, one, {"language": "en"})
    refused(r"\[80, 3000\]; give \[B, 80, 3000\]", model.embed_audio, one)
    refused(r"2999\]; give \[B, 80, 3000\]", model.embed_audio, one[None, :, 1:])
    refused("window '10' is not from 4 to 30 s", model.shortened, "10")
    refused("name None: give a name", load, None)
    refused("windows '2' is not a whole number", load, "digits", windows="2")
    refused("cache_memory: '-5' is not a size", load, "digits", cache_memory=-5)
    refused("cache_dtype: 'int8' is not one of fp8", load, "digits", cache_dtype="int8")


def test_copies_and_pickles(random_paths: dict[str, Path]) -> None:
    """A copy shares the weights, a pickle loads them again; both keep the alignment heads."""
    audio = noise_bursts(8, seed=2)
    model = slimwhisper.load_model(random_paths["english"], "cpu", self_cache="kv")
    model.set_alignment_heads(head_dump(model.dims, (0, 1)))
    options = {"temperature": 0, "sample_len": 12, "word_timestamps": True}
    expected = model.transcribe(audio, **options)
    data = pickle.dumps(model)
    assert len(data) < 10_000
    for other in (copy.deepcopy(model), pickle.loads(data), copy.deepcopy(pickle.loads(data))):
        assert other is not model and other.forms == model.forms == ("e", "kv")
        assert other.transcribe(audio, **options) == expected
    copied = copy.deepcopy(model)
    assert copied.network.encoder is model.network.encoder
    copied.set_alignment_heads(head_dump(model.dims, (1, 0)))
    assert model.network.alignment_heads == {0: [1]}  # a copy's are its own
    refused("load_model", pickle.dumps, slimwhisper.SlimWhisper(model.network))


# other packages' code, which says "whisper" itself
AS_WHISPER = """
import sys
import slimwhisper
sys.modules["whisper"] = slimwhisper
import whisper, whisper.transcribe
from whisper.audio import SAMPLE_RATE, log_mel_spectrogram
from whisper.decoding import DecodingOptions, decode
from whisper.model import Whisper
from whisper.normalizers import EnglishTextNormalizer
from whisper.normalizers.basic import BasicTextNormalizer
from whisper.normalizers.english import EnglishNumberNormalizer
from whisper.timing import dtw
from whisper.tokenizer import get_tokenizer
from whisper.transcribe import cli, transcribe
from whisper.version import __version__
from slimwhisper.options import Options
from slimwhisper.transcribe import transcribe as other

assert whisper.load_model is slimwhisper.load_model and Whisper is slimwhisper.SlimWhisper
assert EnglishTextNormalizer()("Mr. Park") == "mister park"
assert EnglishNumberNormalizer()("thirty one") == "31" and BasicTextNormalizer()("Hi!") == "hi "
assert __version__ == slimwhisper.__version__ and callable(cli)
model = whisper.load_model(sys.argv[1], device="cpu")
import numpy as np
audio = np.zeros(SAMPLE_RATE, np.float32)
functions = whisper.transcribe, transcribe, other
found = [f(model, audio, temperature=0, sample_len=4) for f in functions]
assert found[0] == found[1] == found[2] and "text" in found[0], found
words = model.transcribe(audio, temperature=0, word_timestamps=True, no_speech_threshold=None)
mel = whisper.pad_or_trim(log_mel_spectrogram(audio), 3000)
print(decode(model, mel, DecodingOptions(sample_len=4, fp16=False)).text)
"""


@pytest.mark.slow
def test_in_the_place_of_whisper(random_paths: dict[str, Path]) -> None:
    found = python("-c", AS_WHISPER, str(random_paths["english"]))
    assert found.returncode == 0, found.stderr


def test_encode_once_and_decode_twice(random_paths: dict[str, Path]) -> None:
    ours, theirs = (
        m.load_model(str(random_paths["multilingual"]), device="cpu")
        for m in (slimwhisper, openai_whisper)
    )
    audio = torch.tensor(noise_bursts(30, seed=5))
    mel = slimwhisper.log_mel_spectrogram(audio, ours.dims.n_mels)
    both = torch.stack([mel, mel.flip(1)])
    options = slimwhisper.DecodingOptions(fp16=False, sample_len=12)
    whole = ours.decode(both, options)
    features = torch.stack([result.audio_features for result in whole])
    torch.testing.assert_close(features, theirs.embed_audio(both), atol=2e-4, rtol=1e-4)
    again = ours.decode(features, options)
    assert [r.tokens for r in again] == [r.tokens for r in whole] and whole[0].tokens
    assert ours.decode(features[1], options).tokens == whole[1].tokens
    assert ours.detect_language(features)[1] == [r.language_probs for r in whole]
    for wrong, problem in ((None, "NoneType"), (mel / 0, "NaN")):
        refused(problem, ours.decode, wrong)
    assert torch.equal(ours.encoder(both), features)
    several = torch.tensor([[50258, 7, 8], [50258, 9, 10]])
    for tokens, audios in ((several, features[:1]), (several[:1], features)):
        expected = theirs.logits(tokens, audios)
        torch.testing.assert_close(ours.decoder(tokens, audios), expected, atol=2e-4, rtol=1e-4)
        assert len(expected) == 2
    assert torch.equal(ours.alignment_heads.to_dense(), theirs.alignment_heads.to_dense())


@pytest.mark.parametrize("name", ["english", "multilingual"])
def test_an_empty_array_is_an_empty_transcript(random_paths: dict[str, Path], name: str) -> None:
    model = slimwhisper.load_model(random_paths[name], "cpu")
    nothing = np.zeros(0, np.float32)
    for options in ({}, {"word_timestamps": True}, {"without_timestamps": True}):
        found = model.transcribe(nothing, **options)
        assert (found["text"], found["segments"]) == ("", [])
    ((_, transcript),) = model.transcribe_many([nothing])
    assert isinstance(transcript, slimwhisper.Transcript) and transcript.text == ""
