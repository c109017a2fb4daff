"""Every field of OpenAI's form and of whisper.cpp's: what it asks for, and what is refused."""

import base64
import json
from typing import Any, get_args

import pytest
from openai.types import AudioModel, AudioResponseFormat
from openai.types.audio import transcription_create_params as params

from slimwhisper.app.api import request
from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.inference import InferenceForm
from slimwhisper.app.api.references import SpeakerReference
from slimwhisper.app.api.request import RESPONSE_FORMATS, read_request
from slimwhisper.app.service.models import OPENAI_MODELS, openai_model
from slimwhisper.errors import CheckpointError, DependencyError
from slimwhisper.options import Options
from tests.support.forms import MODELS, sent_by_openai, wanted, wanted_by_whisper_cpp
from tests.support.paths import ROOT
from tests.support.refusals import TABLES

SOUND = "data:audio/wav;base64," + base64.b64encode(b"RIFF").decode()
LARGE = "data:audio/wav;base64," + "AAAA" * ((1 << 20) + 1)
VAD = {"type": "server_vad", "threshold": 0.6, "prefix_padding_ms": 100, "silence_duration_ms": 500}
PADDING = {"vad_speech_pad_ms": 100, "vad_min_silence_duration_ms": 500}
KNOWN = {"known_speaker_names": ["Ann", "Bo"], "known_speaker_references": [SOUND, SOUND]}
VERBOSE = {"response_format": "verbose_json"}
FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [  # OpenAI's -> what they are of `Options`
    ({"language": "de"}, {"language": "de"}),
    ({"languages": ["de", "en"]}, {"languages": ("de", "en")}),
    ({"keywords": ["Lagrange", "Ann Lee"]}, {"hotwords": "Lagrange, Ann Lee"}),
    ({"prompt": "one two"}, {"initial_prompt": "one two"}),
    ({"temperature": 0.5}, {"temperature": 0.5}),
    ({"response_format": "vtt"}, {}),
    ({"stream": True}, {}),
    ({"include": ["logprobs"]}, {"token_logprobs": True}),
    ({"chunking_strategy": "auto"}, {"parallel": True}),
    ({"chunking_strategy": VAD}, {"parallel": True, "vad_threshold": 0.6, **PADDING}),
    ({"timestamp_granularities": ["word", "segment"], **VERBOSE}, {"word_timestamps": True}),
    ({"timestamp_granularities": ["word,segment"], **VERBOSE}, {"word_timestamps": True}),
    ({"response_format": "diarized_json", **KNOWN}, {"diarize": "embedding"}),
    ({"extra_body": {"sentences": "true"}, "response_format": "srt"}, {"sentences": True}),
    ({"extra_body": {"on_failure": "last"}}, {"on_failure": "last"}),
    ({"extra_body": {"speech_only": "false"}}, {"speech_only": False}),
    (
        {
            "extra_body": {"channels": "split", "channel_names": ["Ann", "Bo"]},
            "response_format": "diarized_json",
        },
        {"channels": "split", "channel_names": ("Ann", "Bo")},
    ),
    ({"extra_body": {"hot_words": "Ann\t4\n\nBo Li\n"}}, {"hot_words": ("Ann\t4", "Bo Li")}),
    ({"extra_body": {"hot_word_bonus": "3.5"}}, {"hot_word_bonus": 3.5}),
    ({"extra_body": {"audio_track": "en"}}, {"audio_track": "en"}),
]


@pytest.fixture(autouse=True)
def diarize_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "require", lambda *_: None)


@pytest.mark.parametrize(("given", "options"), FIELDS, ids=lambda v: ",".join(v))
def test_fields_as_openais_client_sends(given: dict[str, Any], options: dict[str, Any]) -> None:
    found = read_request(sent_by_openai(**given), "transcribe", MODELS)
    assert found.options == {"task": "transcribe", "on_failure": "best", **options}
    assert found.unknown == []
    assert found.stream == given.get("stream", False)
    assert found.format == given.get("response_format", "json")
    names = given.get("known_speaker_names", [])
    assert found.references == tuple(SpeakerReference(name, b"RIFF") for name in names)
    Options(**found.options)
    found.upload.file.close()


def test_no_field_of_openais_client_is_missing() -> None:
    tried = {name for given, _ in FIELDS for name in given} | {"file", "model"}
    known = params.TranscriptionCreateParamsBase.__annotations__.keys() | {"stream"}
    assert known <= tried
    assert {openai_model(name) for name in get_args(AudioModel)} == set(OPENAI_MODELS)
    assert set(get_args(AudioResponseFormat)) <= set(RESPONSE_FORMATS)
    vad = params.ChunkingStrategyVadConfig.__annotations__.keys()
    assert vad == VAD.keys()


def test_the_documentation_names_every_field() -> None:
    page = (ROOT / "docs" / "openai.md").read_text()
    known = params.TranscriptionCreateParamsBase.__annotations__.keys() | {"stream"}
    for name in (*known, *OPENAI_MODELS, *RESPONSE_FORMATS):
        assert f"`{name}`" in page or f"`{name}[]`" in page, name
    for name in InferenceForm.model_fields:
        assert f"`{name}`" in page, name


def test_openais_models_are_the_servers() -> None:
    for name in (*get_args(AudioModel), "gpt-4o-transcribe-2025-03-20"):
        found = wanted(("model", name))
        assert (found.model.name, found.openai_model) == ("digits", openai_model(name))
        assert found.headers() == {"X-Slimwhisper-Model": "digits"}
    for name in "whisper default Systran/faster-whisper-digits openai/whisper-digits-ct2".split():
        assert wanted(("model", name)).headers() == {"X-Slimwhisper-Model": "digits"}, name
    assert (
        wanted(("model", "gpt-7")).headers()["X-Slimwhisper-Warning"] == "model 'gpt-7' is not here"
    )
    text = '{"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 500}'
    options = wanted(("chunking_strategy", text)).options
    assert options["parallel"] and options["vad_threshold"] == 0.6
    assert options["vad_min_silence_duration_ms"] == 500


DIARIZED = {"response_format": "diarized_json"}
NAME, SAMPLE = ("known_speaker_names[]", "Ann"), ("known_speaker_references[]", SOUND)


def chunks(**fields: Any) -> dict[str, str]:
    return {"chunking_strategy": json.dumps({"type": "server_vad", **fields})}


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        *TABLES["openai"],
        ({"chunking_strategy": '{"a": [' + "[]," * 60_000 + "1]}"}, "chunking_strategy", "auto"),
        # no number of Python's holds these
        (chunks(threshold=10**400), "chunking_strategy", ""),
        (chunks(silence_duration_ms=-(10**400)), "chunking_strategy", ""),
        ([NAME, (SAMPLE[0], LARGE)], "known_speaker_references[]", "3 MB"),
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: Any, field: str, message: str) -> None:
    with pytest.raises((APIError, CheckpointError)) as raised:
        wanted(*(fields.items() if isinstance(fields, dict) else fields))
    error = as_api_error(raised.value)
    assert error.status == (404 if field == "model" else 400)
    assert message in str(error) and "\n" not in str(error) and len(str(error)) < 300
    assert error.param == field


def test_what_cannot_be_diarized(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(backend: str, use: str) -> None:
        raise DependencyError(f"{use} needs {backend}: pip install it")

    with pytest.raises(APIError, match="translation"):
        wanted(*DIARIZED.items(), task="translate")
    monkeypatch.setattr(request, "require", lacks)
    with pytest.raises(APIError, match="diarized_json needs embedding: pip install it, on the ser"):
        wanted(*DIARIZED.items())
    plain = wanted(("model", "gpt-4o-transcribe-diarize"))
    assert plain.options.get("diarize") is None, "plain JSON needs no speakers"


def test_unknown_fields_are_named_in_a_header() -> None:
    odd = 'a"b\\c\r\nSet-Cookie: ü'
    found = wanted(("fps", "25"), (odd, "1"), *((f"f{i}", "x") for i in range(9)))
    warning = found.headers()["X-Slimwhisper-Warning"]
    assert warning.startswith('unknown field "fps" was ignored; unknown field "a%22b%5Cc%0D%0ASet')
    assert warning.endswith("; and 6 more") and warning.isascii() and warning.isprintable()


VAD_FIELDS = {"vad_threshold": "0.3", "vad_speech_pad_ms": "30"}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"language": "auto"}, {}),
        ({"language": "de", "prompt": "one"}, {"language": "de", "initial_prompt": "one"}),
        ({"translate": "true"}, {"task": "translate"}),
        ({"temperature": "0.6", "temperature_inc": "0.2"}, {"temperature": (0.6, 0.8, 1.0)}),
        ({"temperature": "0.0", "temperature_inc": "0"}, {"temperature": 0.0}),
        ({"beam_size": "5", "best_of": "3"}, {"beam_size": 5, "best_of": 3}),
        ({"beam_size": "-1", "max_context": "-1", "max_len": "0"}, {}),
        ({"max_context": "0"}, {"condition_on_previous_text": False}),
        ({"carry_initial_prompt": "true"}, {"carry_initial_prompt": True}),
        ({"offset_t": "1500", "duration": "2000"}, {"clip_timestamps": (1.5, 3.5)}),
        ({"offset_t": "1500"}, {"clip_timestamps": (1.5,)}),
        (
            {"vad": "1", **VAD_FIELDS},
            {"vad_filter": True, "vad_threshold": 0.3, "vad_speech_pad_ms": 30},
        ),
        (VAD_FIELDS, {}),
        ({"logprob_thold": "-0.5"}, {"logprob_threshold": -0.5}),
        ({"no_speech_thold": "0.4"}, {"no_speech_threshold": 0.4}),
        (VERBOSE, {"word_timestamps": True}),
        ({**VERBOSE, "no_timestamps": "true"}, {"without_timestamps": True}),
        ({"diarize": "true"}, {"channels": "split", "channel_names": ("speaker 0", "speaker 1")}),
        ({"entropy_thold": "2.40", "debug_mode": "false", "suppress_nst": "true"}, {}),
    ],
)
def test_fields_of_whisper_cpp(fields: dict[str, str], options: dict[str, Any]) -> None:
    found = wanted_by_whisper_cpp(*fields.items())
    expected = {"task": "transcribe", "on_failure": "best", **options}
    heat, expected_heat = found.options.pop("temperature", ()), expected.pop("temperature", ())
    assert found.options == expected and heat == pytest.approx(expected_heat)
    assert found.unknown == [] and found.words_inside
    Options(**found.options)


@pytest.mark.parametrize(("name", "value", "message"), TABLES["whisper_cpp"])
def test_what_whisper_cpp_has_and_we_have_not(name: str, value: str, message: str) -> None:
    with pytest.raises(APIError) as raised:
        wanted_by_whisper_cpp((name, value))
    assert message in str(raised.value)
    assert (raised.value.status, raised.value.param) == (400, name)
