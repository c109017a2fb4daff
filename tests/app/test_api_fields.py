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
from slimwhisper.app.api.recordings import SpeakerReference
from slimwhisper.app.api.request import RESPONSE_FORMATS, read_request
from slimwhisper.app.service.host import OPENAI_MODELS, openai_model
from slimwhisper.errors import CheckpointError, DependencyError
from slimwhisper.options import Options
from tests.support.forms import MODELS, sent_by_openai, wanted, wanted_by_whisper_cpp
from tests.support.paths import ROOT
from tests.support.refusals import TABLES

SOUND = "data:audio/wav;base64," + base64.b64encode(b"RIFF").decode()
LONG = "a" * 100_001
LARGE = "data:audio/wav;base64," + "AAAA" * ((1 << 20) + 1)
FIELDS: list[Any] = TABLES["openai_options"]  # OpenAI's -> what they are of `Options`


@pytest.fixture(autouse=True)
def diarize_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "require", lambda *_: None)


def expected(options: dict[str, Any]) -> dict[str, Any]:
    """What is asked for, of which task; a table's lists are tuples."""
    asked = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    return {"task": "transcribe", **asked}


@pytest.mark.parametrize(("given", "options"), FIELDS, ids=lambda v: ",".join(v))
def test_fields_as_openais_client_sends(given: dict[str, Any], options: dict[str, Any]) -> None:
    found = read_request(sent_by_openai(**given), MODELS, "transcribe")
    assert found.options == expected({"on_failure": "best", **options})
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
    strategies = [given.get("chunking_strategy") for given, _ in FIELDS]
    assert vad in [each.keys() for each in strategies if isinstance(each, dict)]


def test_the_documentation_names_every_field() -> None:
    page = (ROOT / "docs/connect/apis.md").read_text()
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
        # the server would count the tokens of a prompt, while all others wait
        *(({name: LONG}, name, "100000") for name in ("prompt", "language", "keywords[]")),
        ({"keywords": LONG}, "keywords[]", "100000"),
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: Any, field: str, message: str) -> None:
    with pytest.raises((APIError, CheckpointError)) as raised:
        wanted(*(fields.items() if isinstance(fields, dict) else fields))
    error = as_api_error(raised.value)
    assert error.status_code == (404 if field == "model" else 400)
    assert message in str(error) and "\n" not in str(error) and len(str(error)) < 300
    assert error.param == field


def test_a_prompt_of_just_the_limit_is_taken() -> None:
    assert wanted(("prompt", LONG[1:])).options["initial_prompt"] == LONG[1:]


def test_what_cannot_be_diarized(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(backend: str, use: str) -> None:
        raise DependencyError(f"{use} needs {backend}: pip install it")

    for fields, param in ((DIARIZED, "response_format"), ({"diarize": "true"}, "diarize")):
        with pytest.raises(APIError, match="translation") as raised:
            wanted(*fields.items(), task="translate")
        assert raised.value.param == param
    monkeypatch.setattr(request, "require", lambda *_: None)
    assert "no speakers" in wanted(("diarize", "true")).warnings[0]
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


@pytest.mark.parametrize(("fields", "options"), TABLES["whisper_cpp_options"])
def test_fields_of_whisper_cpp(fields: dict[str, str], options: dict[str, Any]) -> None:
    found = wanted_by_whisper_cpp(*fields.items())
    asked = expected(options)
    heat, asked_heat = found.options.pop("temperature", ()), asked.pop("temperature", ())
    assert found.options == asked and heat == pytest.approx(asked_heat)
    assert found.unknown == [] and found.words_inside
    Options(**found.options)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [*TABLES["whisper_cpp"], pytest.param("prompt", LONG, "100000", id="a long prompt")],
)
def test_what_whisper_cpp_has_and_we_have_not(name: str, value: str, message: str) -> None:
    with pytest.raises(APIError) as raised:
        wanted_by_whisper_cpp((name, value))
    assert message in str(raised.value)
    assert (raised.value.status_code, raised.value.param) == (400, name)
