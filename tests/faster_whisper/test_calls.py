"""Scripts written for faster-whisper: what they call, and what they get."""

import gc
import importlib
import inspect
import io
import json
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import slimwhisper
from slimwhisper import faster_whisper
from slimwhisper.errors import AudioError, CheckpointError, OptionError
from slimwhisper.faster_whisper import BatchedInferencePipeline, WhisperModel, decode_audio
from slimwhisper.faster_whisper.segments import _models
from slimwhisper.faster_whisper.tokenizer import Tokenizer
from slimwhisper.faster_whisper.transcribe import get_suppressed_tokens
from slimwhisper.faster_whisper.utils import available_models, download_model, format_timestamp
from slimwhisper.faster_whisper.vad import VadOptions, get_speech_timestamps
from tests.support.command import python
from tests.support.refusals import TABLES
from tests.support.spoken import EXPECTED, LONG, SAMPLES

PHONE, PI = SAMPLES / "phone-number.wav", SAMPLES / "pi.opus"
COUNTDOWN, DOOR = SAMPLES / "countdown.flac", SAMPLES / "door-code.mp3"


@pytest.fixture(scope="module")
def model() -> Iterator[WhisperModel]:
    yield WhisperModel("digits", device="cpu")


@pytest.fixture(scope="module")
def multilingual(random_paths: dict[str, Path]) -> WhisperModel:
    return WhisperModel(str(random_paths["multilingual"]), device="cpu", compute_type="float32")


def said(segments: Any) -> str:
    return "".join(segment.text for segment in segments).strip()


def test_a_recording(model: WhisperModel) -> None:
    """The segments and words are those of our own call with the same options."""
    segments, info = model.transcribe(str(PHONE), word_timestamps=True)
    found = list(segments)
    ours = model.whisper.transcribe(
        PHONE, word_timestamps=True, beam_size=5, best_of=5, on_failure="best"
    )["segments"]
    assert [s.id for s in found] == [1, 2, 3]
    for segment, other in zip(found, ours, strict=True):
        for name in ("seek", "start", "end", "text", "tokens", "temperature", "no_speech_prob"):
            assert getattr(segment, name) == pytest.approx(other[name]), name
        assert [asdict(w) for w in segment.words or ()] == [
            pytest.approx(word) for word in other["words"]
        ]
    assert found[0]._asdict()["words"][0]["word"] == " five"
    assert (info.language, info.language_probability) == ("en", 1.0)
    assert info.duration == info.duration_after_vad == pytest.approx(9.0436, abs=1e-3)
    assert info.transcription_options.beam_size == 5 and info.vad_options is None
    assert 1 in (info.transcription_options.suppress_tokens or ())


def test_what_audio_may_be(model: WhisperModel) -> None:
    for source in (str(PHONE), io.BytesIO(PHONE.read_bytes()), decode_audio(str(PHONE))):
        assert said(model.transcribe(source, beam_size=1)[0]) == EXPECTED[PHONE.name]["text"]


def test_no_audio_gives_no_segments(model: WhisperModel) -> None:
    for samples in (0, 1, 16_000):
        segments, info = model.transcribe(np.zeros(samples, np.float32))
        assert list(segments) == []
        assert info.duration == pytest.approx(samples / 16_000, abs=1e-4)


def test_segments_come_while_the_rest_is_decoded(model: WhisperModel) -> None:
    """Closing or dropping the iterator ends the work."""
    audio = decode_audio(str(SAMPLES / LONG))[: 70 * 16_000]
    for end in ("close", "__del__"):
        segments, _ = model.transcribe(audio, beam_size=1)
        assert next(iter(segments)).text.strip() and model.whisper.transcriber.used
        if end == "close":
            segments.close()  # type: ignore[attr-defined]
        del segments
        gc.collect()
        assert not model.whisper.transcriber.used


@pytest.mark.parametrize(
    ("asked", "used"), [("default", "float32"), ("auto", "bfloat16"), ("int8_float32", "int8")]
)
def test_compute_types(asked: str, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor with instructions for bfloat16."""
    monkeypatch.setattr("slimwhisper.devices.processor_has", lambda _: True)
    assert WhisperModel("digits", device="cpu", compute_type=asked).model.compute_type == used


def test_the_engine_goes_with_its_last_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """And sets the threads of the process each time that it is asked for."""
    threads: list[int] = []
    monkeypatch.setattr("slimwhisper.faster_whisper.segments.set_threads", threads.append)
    made = WhisperModel("digits", device="cpu", cpu_threads=1)
    assert made.whisper in _models.values()
    again = WhisperModel("digits", device="cpu", cpu_threads=1, num_workers=4)
    assert again.whisper is made.whisper and threads == [1, 1]
    whisper = weakref.ref(made.whisper)
    del made, again
    gc.collect()
    assert whisper() is None


def test_the_pauses_are_left_out(model: WhisperModel) -> None:
    segments, info = model.transcribe(
        str(PI), vad_filter=True, vad_parameters={"min_silence_duration_ms": 500}
    )
    assert said(segments) == EXPECTED["pi.opus"]["text"]
    assert info.duration_after_vad < info.duration - 0.5
    assert info.vad_options == VadOptions(min_silence_duration_ms=500)
    audio = decode_audio(str(PI))
    regions = get_speech_timestamps(audio, min_silence_duration_ms=500)
    whole = (audio * 32768).astype(np.int16)
    assert get_speech_timestamps(whole, min_silence_duration_ms=500) == regions
    heard = sum(r["end"] - r["start"] for r in regions) / 16_000
    assert info.duration_after_vad == pytest.approx(heard)
    short = VadOptions(0.5, 0.3, 0, 2.0, 100, 30)
    assert len(get_speech_timestamps(audio, short)) > len(regions)
    assert all(r["end"] - r["start"] < 2.1 * 16_000 for r in get_speech_timestamps(audio, short))
    segments, info = model.transcribe(
        str(PI), vad_filter=True, vad_parameters={"min_speech_duration_ms": 60_000}
    )
    assert (list(segments), info.duration_after_vad) == ([], 0.0)


@pytest.mark.slow
def test_pieces_side_by_side(model: WhisperModel) -> None:
    batched = BatchedInferencePipeline(model)
    segments, info = batched.transcribe(str(SAMPLES / LONG), beam_size=1, batch_size=4)
    found = list(segments)
    ours = model.whisper.transcribe(
        SAMPLES / LONG,
        parallel=True,
        without_timestamps=True,
        temperature=0.0,
        vad_min_silence_duration_ms=160,
        vad_speech_pad_ms=400,
        vad_max_speech_duration_s=30,
    )
    assert said(found) == ours["text"].strip() and len(found) > 4
    assert info.duration_after_vad < info.duration
    assert not info.transcription_options.condition_on_previous_text
    assert info.vad_options == VadOptions(0.5, None, 0, 30, 160, 400)
    _, info = batched.transcribe(str(PHONE), vad_parameters={"max_speech_duration_s": 5})
    assert info.vad_options == VadOptions(0.5, None, 0, 30, 2000, 400)
    clips = [{"start": 0.0, "end": 2.5}, {"start": 2.6, "end": 5.2}]
    found = list(batched.transcribe(str(PHONE), clip_timestamps=clips)[0])
    assert [s.text for s in found] == [" five five five", " zero one four"]
    for wrong in ({"vad_filter": False}, {"clip_timestamps": 5}):
        with pytest.raises(OptionError, match="clip_timestamps"):
            batched.transcribe(str(SAMPLES / LONG), **wrong)


def test_options_reach_the_engine(model: WhisperModel) -> None:
    def text(**options: Any) -> str:
        return said(model.transcribe(str(PHONE), temperature=0, **options)[0])

    plain = "five five five zero one four two seven nine eight"
    assert text(no_repeat_ngram_size=1).count("five") == 1
    assert text(repetition_penalty=5.0).count("five") == 1
    five = model.hf_tokenizer.encode(" five").ids[0]
    assert "five" not in text(suppress_tokens=[-1, five])
    assert text(clip_timestamps=[2.5, 5.2]) == text(clip_timestamps="2.5,5.2") == "zero one four"
    assert text(max_new_tokens=5, without_timestamps=True) == "five five five zero one"
    assert text(initial_prompt=[five], hotwords="zero") == text(initial_prompt="five") == plain
    assert text(patience=2, beam_size=3, max_new_tokens=1000) == plain
    failing = {"temperature": [0.0, 1.0], "compression_ratio_threshold": 0.0}
    first = next(iter(model.transcribe(str(PHONE), **failing)[0]))
    assert first.temperature == 0, "the best, where all fail"


def test_progress_is_shown_where_it_is_asked_for(model: WhisperModel, capsys: Any) -> None:
    list(model.transcribe(str(PHONE), log_progress=True)[0])
    assert "9.04/9.04" in capsys.readouterr().err
    list(model.transcribe(str(PHONE))[0])
    assert capsys.readouterr().err == ""


def test_an_english_model_warns_and_goes_on(model: WhisperModel, caplog: Any) -> None:
    segments, info = model.transcribe(str(PHONE), language="de", task="translate", beam_size=1)
    assert said(segments) and info.language == "en"
    assert "'de'" in caplog.text and "'translate'" in caplog.text
    model.transcribe(str(PHONE), prefix="five", beam_size=1)
    assert "prefix 'five'" in caplog.text


def test_languages(multilingual: WhisperModel) -> None:
    """Of the first window, or by the votes of several."""
    window = 30 * 16_000
    audio = decode_audio(str(SAMPLES / LONG))[: 3 * window]
    code, probability, probs = multilingual.detect_language(audio)
    ours = multilingual.whisper.detect_language(audio)
    assert (code, probability) == (ours[0], pytest.approx(ours[1][code]))
    assert probs[0] == (code, probability) and len(probs) == 99
    for same in (str(SAMPLES / LONG), (audio * 32768).astype(np.int16)):
        assert multilingual.detect_language(same) == (code, probability, probs)
    with pytest.raises(OptionError, match="language_detection_segments '2' is not"):
        multilingual.transcribe(audio, language_detection_segments="2")  # type: ignore[arg-type]
    quick: dict[str, Any] = {"beam_size": 1, "temperature": 0, "max_new_tokens": 1}
    _, info = multilingual.transcribe(audio, **quick)
    assert info.language == code
    assert info.language_probability == pytest.approx(probability, abs=1e-5)
    assert info.all_language_probs is not None and info.all_language_probs[0][0] == code
    votes = [multilingual.detect_language(audio[i * window :])[:2] for i in range(3)]
    several = {"language_detection_segments": 3, "language_detection_threshold": 1.0}
    found = multilingual.detect_language(audio, **several)
    codes = [code for code, _ in votes]
    assert found[0] == max(codes, key=codes.count)
    assert found[1] == pytest.approx(max(p for code, p in votes if code == found[0]), abs=1e-5)
    assert found[2] != probs, "the last window's"
    _, info = multilingual.transcribe(audio, **quick, **several)
    assert info.language == found[0] and info.language_probability == pytest.approx(found[1])
    later = multilingual.detect_language(audio[window:], **several)
    _, info = multilingual.transcribe(audio, clip_timestamps="30", **quick, **several)
    assert (info.language, info.all_language_probs) == (later[0], later[2])
    mel = np.concatenate(list(multilingual._windows(audio[: 2 * window], None, None)), -1)
    assert multilingual.detect_language(features=mel)[0] == code
    assert "de" in multilingual.supported_languages


def test_windows_that_programs_decode_themselves(model: WhisperModel) -> None:
    """The calls that whisperX makes."""
    tokenizer = Tokenizer(model.hf_tokenizer, model.model.is_multilingual, "transcribe", "en")
    prompt = model.get_prompt(tokenizer, [], without_timestamps=True)
    assert prompt == [tokenizer.sot, tokenizer.no_timestamps]
    previous = model.get_prompt(tokenizer, [5, 6], prefix="seven", hotwords="unused")
    assert previous == [
        *(tokenizer.sot_prev, 5, 6, tokenizer.sot, tokenizer.timestamp_begin),
        *tokenizer.encode(" seven"),
    ]
    audio = [decode_audio(str(path)) for path in (COUNTDOWN, DOOR)]
    mels = np.stack([next(iter(model._windows(a, None, None))) for a in audio])
    features = model.encode(mels)
    assert features.shape == [2, 80, 3000]
    results = model.model.generate(features, [prompt] * 2, beam_size=2, return_scores=True)
    texts = model.hf_tokenizer.decode_batch([r.sequences_ids[0] for r in results])
    assert [t.strip() for t in texts] == [EXPECTED[p.name]["text"] for p in (COUNTDOWN, DOOR)]
    assert all(-1 < r.scores[0] < 0 and r.no_speech_prob < 0.1 for r in results)
    (once,) = model.model.generate(model.encode(mels[0]), [prompt], no_repeat_ngram_size=1)
    assert len(set(once.sequences_ids[0])) == len(once.sequences_ids[0])


def test_tokens_of_programs(model: WhisperModel, multilingual: WhisperModel) -> None:
    tokenizer = Tokenizer(model.hf_tokenizer, False)
    special = get_suppressed_tokens(tokenizer, [])
    assert special[0] == tokenizer.sot == 50257 and len(special) == 6
    assert get_suppressed_tokens(tokenizer, [13]) == (13, *special)
    assert get_suppressed_tokens(tokenizer, [-1]) == (
        *sorted(tokenizer.non_speech_tokens),
        *special,
    )
    other = Tokenizer(multilingual.hf_tokenizer, True)
    tokens = other.encode(" est érit")
    words, pieces = other.split_tokens_on_spaces(tokens)
    assert words == [" est", " érit"] and pieces == [tokens[:1], tokens[1:]]
    characters, pieces = other.split_tokens_on_unicode(tokens)
    assert "".join(characters) == " est érit" and len(pieces) > 1
    assert [token for piece in pieces for token in piece] == tokens


def test_languages_of_windows(multilingual: WhisperModel) -> None:
    (window,) = multilingual._windows(decode_audio(str(PHONE)), None, None)
    found = multilingual.model.detect_language(multilingual.encode(window.numpy()))
    token, probability = found[0][0]
    code, expected, _ = multilingual.detect_language(decode_audio(str(PHONE)))
    assert token == f"<|{code}|>" and probability == pytest.approx(expected)
    tokenizer = Tokenizer(multilingual.hf_tokenizer, True, "translate", "de")
    assert tokenizer.sot_sequence == [tokenizer.sot, tokenizer.language, tokenizer.task]
    assert multilingual.hf_tokenizer.token_to_id("<|de|>") == tokenizer.language
    assert tokenizer.task == tokenizer.translate and tokenizer.language_code == "de"


def test_audio_is_decoded_as_asked(tmp_path: Path) -> None:
    import soundfile

    both = 0.3 * np.sin(np.outer(np.arange(44_100), (0.05, 0.2)))
    soundfile.write(path := tmp_path / "two.wav", both, 44_100, "PCM_16")
    split = decode_audio(str(path), sampling_rate=44_100, split_stereo=True)
    np.testing.assert_allclose(np.stack(split, axis=1), both, atol=1e-4)
    assert decode_audio(str(path), 8000).shape == (8000,)
    half = io.BytesIO(COUNTDOWN.read_bytes()[:100_000])
    assert 16_000 < len(decode_audio(half)) < 14 * 16_000, "what can be read of it"
    with pytest.raises(AudioError, match="no such file"):
        decode_audio("http://127.0.0.1/a.wav", split_stereo=True)


def test_numbers_and_arrays_of_numpy_and_torch(model: WhisperModel) -> None:
    values: dict[str, Any] = {
        "beam_size": 2,
        "best_of": 1,
        "temperature": [0.0, 0.4],
        "initial_prompt": [1, 2],
        "suppress_tokens": [-1],
        "max_new_tokens": 30,
        "word_timestamps": True,
    }
    for engine, heats in ((model, [0.0, 0.4]), (BatchedInferencePipeline(model), [0.0])):
        expected = [s.text for s in engine.transcribe(str(PHONE), **values, vad_filter=True)[0]]
        for kind in (np.array, torch.tensor):
            given = {name: kind(value) for name, value in values.items()}
            vad = {"vad_filter": True, "vad_parameters": {"threshold": kind(0.4)}}
            found, info = engine.transcribe(str(PHONE), **given, **vad, language="Auto")
            assert [s.text for s in found] == expected and info.language == "en"
            assert info.transcription_options.temperatures == pytest.approx(heats)


@pytest.mark.parametrize(("make", "message"), TABLES["faster_whisper_models"])
def test_models_that_cannot_be_had(make: dict[str, Any], message: str) -> None:
    with pytest.raises((OptionError, CheckpointError), match=rf"\A.*{message}.*\Z"):
        WhisperModel(**{"model_size_or_path": "digits", **make})


@pytest.mark.parametrize(("options", "message"), TABLES["faster_whisper_options"])
def test_options_that_cannot_be_had(
    model: WhisperModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=rf"\A.*{message}.*\Z"):
        model.transcribe(str(PHONE), **options)


def test_helpers() -> None:
    assert format_timestamp(0.5, always_include_hours=True, decimal_marker=",") == "00:00:00,500"
    assert {"turbo", "digits", "distil-large-v3"} <= set(available_models())
    assert slimwhisper.load_model(download_model("digits"), device="cpu").dims.n_mels == 80


PROGRAM = """
import sys
for name in ("fastapi", "gradio", "prometheus_client", "pydantic", "uvicorn", "websockets"):
    sys.modules[name] = None  # the server's packages, which may be missing
import faster_whisper
from faster_whisper import WhisperModel
from faster_whisper.audio import pad_or_trim
from faster_whisper.tokenizer import _LANGUAGE_CODES
from faster_whisper.transcribe import Segment, TranscriptionOptions, get_ctranslate2_storage
from faster_whisper.vad import VadOptions
import beside
print(faster_whisper.__version__, sys.argv[1:], __name__, len(_LANGUAGE_CODES), beside.FACT)
segments, _ = WhisperModel("digits", device="cpu").transcribe(sys.argv[1], beam_size=1)
assert isinstance(list(segments)[0], Segment)
"""


as_faster_whisper = partial(python, "-m", "slimwhisper.as_faster_whisper")


@pytest.mark.slow
def test_a_program_gets_it_in_place_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("FACT = 7")
    done = as_faster_whisper(str(tmp_path / "program.py"), str(PHONE), "--flag")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"1.2.1 ['{PHONE}', '--flag'] __main__ 100 7\n"


@pytest.mark.slow
def test_programs_by_command_and_module() -> None:
    done = as_faster_whisper("slimwhisper", "--version")
    assert done.returncode == 0 and "0.1" in done.stdout, done.stderr
    done = as_faster_whisper("timeit", "-n1", "-r1", "import faster_whisper.vad")
    assert done.returncode == 0 and "loop" in done.stdout, done.stderr
    done = as_faster_whisper("no-such-program")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no such file, command or module" in done.stderr
    assert as_faster_whisper().returncode == 2


# -- names, arguments and defaults are faster-whisper 1.2's ----------------------------------------


PINNED = json.loads(Path(__file__).with_name("signatures.json").read_text(encoding="utf-8"))


def signature(package: Any, path: str) -> str:
    """Of a function or a class in a package, without types."""
    value = package
    for part in path.split("."):
        if not hasattr(value, part):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    found = inspect.signature(value)
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


def test_arguments_and_defaults() -> None:
    assert {path: signature(faster_whisper, path) for path in PINNED} == PINNED


def test_they_are_the_packages() -> None:
    package = pytest.importorskip("faster_whisper", reason="needs faster-whisper")
    if not package.__version__.startswith("1.2."):
        pytest.skip(f"faster-whisper {package.__version__} is another one than 1.2")
    assert {path: signature(package, path) for path in PINNED} == PINNED
    assert set(package.__all__) <= set(faster_whisper.__all__)
