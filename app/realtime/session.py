"""The configuration of a realtime session, as in OpenAI's Realtime API.

The fields are those of openai-python 3.54 (types/realtime/realtime_transcription_session_*.py);
docs/connect/realtime.md has those that most need.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from slimwhisper.app.api.fields import (
    NULL_IS_DEFAULT,
    WHOLE,
    LenientModel,
    check,
    invalid,
    one_of,
    unsupported,
    unsupported_if,
)
from slimwhisper.app.api.request import choose_model
from slimwhisper.app.realtime.stream_feed import SoundFormat
from slimwhisper.app.service.host import DIARIZE, Models, openai_model
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.live.types import MOST_PADDING_MS, LiveOptions
from slimwhisper.option_group import asks_detection
from slimwhisper.tokens.encoding import whispers_code

FORMATS = {"audio/pcm": "PCM_16", "audio/pcmu": "ULAW", "audio/pcma": "ALAW"}
PCM_RATES = (24_000, 16_000)
G711_RATE = 8_000
BETA_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
BETA = {  # the beta API's names of fields, and the present names in `audio.input`
    "input_audio_transcription": "transcription",
    "input_audio_noise_reduction": "noise_reduction",
    "turn_detection": "turn_detection",
}
# OpenAI's names of models for sessions: they also select the server's
LIVE_MODEL = re.compile(r"gpt-(4o-(mini-)?)?(realtime|live)(-.*)?")
DELAYS = {"minimal": 0.5, "low": 0.75, "medium": 1.0, "high": 1.5, "xhigh": 2.5}  # seconds
TRANSCRIPTION = "item.input_audio_transcription"
TENTATIVE, WORDS = f"{TRANSCRIPTION}.tentative", f"{TRANSCRIPTION}.words"
DETAILS = f"{TRANSCRIPTION}.details"
LOGPROBS = f"{TRANSCRIPTION}.logprobs"
INCLUDE = (TENTATIVE, WORDS, DETAILS, LOGPROBS)
_LIVE = LiveOptions()  # its defaults
MAX_TEXT, MAX_MODEL = 10_000, 200  # characters: of a prompt, of a model's name
MAX_KEYWORD, MAX_KEYWORDS = 100, 100
MAX_MS = 10_000  # of silence
MAX_UNKNOWN, MAX_NAME = 20, 100  # names of unknown fields in `warnings`, and their characters


def _language(language: str | None) -> str | None:
    if language is None or asks_detection(language):
        return None
    code = whispers_code(language)
    if code is None:
        raise invalid("not a language's code, such as 'en' or 'de'")
    return code


# documented values that are ignored
NOT_SERVED = {
    "noise_reduction": "noise is not filtered out",
    "include": "streams have no log-probabilities; use /v1/audio/transcriptions",
    "turn_detection.type": "semantic_vad is not served; pauses end utterances, as with server_vad",
}
Language = Annotated[str, Field(max_length=40)]
Keyword = Annotated[str, Field(max_length=MAX_KEYWORD)]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS), WHOLE, NULL_IS_DEFAULT]
Padding = Annotated[int, Field(ge=0, le=MOST_PADDING_MS), WHOLE, NULL_IS_DEFAULT]
Response = Annotated[Any, unsupported_if(bool, "a transcription session has no responses")]
Included = Annotated[str, one_of(INCLUDE)]


class SessionPart(LenientModel):
    """A part of a session's configuration."""

    def unknown(self, data: dict[str, Any], path: str) -> list[str]:
        """Also the fields of NOT_SERVED whose value was not taken as it is."""
        changed = [path + name for name, value in self if data.get(name) not in (None, value)]
        return super().unknown(data, path) + list(filter(_not_served, changed))


def _not_served(name: str) -> str:
    """Why a field, with its path, may be ignored; "": it is not in NOT_SERVED."""
    found = (reason for field, reason in NOT_SERVED.items() if name.endswith(f".{field}"))
    return next(found, "")


class AudioFormat(LenientModel):
    """The format of the audio. An update replaces it as a whole."""

    type: Annotated[str, one_of(FORMATS), NULL_IS_DEFAULT] = "audio/pcm"
    rate: int | None = Field(
        default=None, validate_default=True, exclude_if=lambda rate: rate is None
    )

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: int | None, info: ValidationInfo) -> int | None:
        """None for G.711, as its rate is fixed."""
        kind = info.data.get("type", "audio/pcm")
        rates = PCM_RATES if kind == "audio/pcm" else (G711_RATE,)
        if rate not in (None, *rates):
            raise invalid(f"the rate of {kind} must be {' or '.join(map(str, rates))}")
        return (rate or PCM_RATES[0]) if kind == "audio/pcm" else None


class Transcription(LenientModel):
    """The options of transcription."""

    model: Annotated[str, Field(max_length=MAX_MODEL)] | None = None  # as requested
    languages: Annotated[
        list[Annotated[Language, AfterValidator(_language)]],
        NULL_IS_DEFAULT,
        unsupported_if(
            lambda names: isinstance(names, list) and len(names) > 1,
            "send one language, or none to detect it in each utterance",
        ),
    ] = Field(default=[], exclude=True)
    language: Annotated[Language | None, AfterValidator(_language)] = None
    prompt: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    keywords: list[Keyword] | None = Field(default=None, max_length=MAX_KEYWORDS)
    delay: Annotated[str, one_of(DELAYS)] | None = None
    # not fields of OpenAI's API
    condition_on_previous_text: Annotated[bool, NULL_IS_DEFAULT] = _LIVE.condition_on_previous_text
    task: Annotated[str, one_of(("transcribe", "translate")), NULL_IS_DEFAULT] = _LIVE.task

    @model_validator(mode="before")
    @classmethod
    def _one_language(cls, data: Any) -> Any:
        """Read `languages` as another name of `language`."""
        if not isinstance(data, dict) or "languages" not in data:
            return data
        names = data["languages"]
        return {**data, "language": names[0] if isinstance(names, list) and names else None}


class ServerVad(SessionPart):
    """Voice activity detection: pauses end utterances."""

    type: Annotated[
        Literal["server_vad"],
        NULL_IS_DEFAULT,
        BeforeValidator(lambda kind: "server_vad" if kind == "semantic_vad" else kind),
    ] = "server_vad"
    threshold: Annotated[float, NULL_IS_DEFAULT] = Field(default=_LIVE.vad_threshold, gt=0, lt=1)
    prefix_padding_ms: Padding = _LIVE.prefix_padding_ms
    silence_duration_ms: Milliseconds = _LIVE.silence_duration_ms
    create_response: Response = Field(default=None, exclude=True)
    interrupt_response: Response = Field(default=None, exclude=True)
    idle_timeout_ms: Response = Field(default=None, exclude=True)


class AudioInput(SessionPart):
    """The audio, and how it is transcribed."""

    format: Annotated[AudioFormat, NULL_IS_DEFAULT] = AudioFormat()
    noise_reduction: Annotated[Any, BeforeValidator(lambda _: None)] = None
    transcription: Annotated[
        Transcription,
        unsupported_if(
            lambda value: value is None, "null would leave nothing to do; send {} for the defaults"
        ),
    ] = Transcription()
    turn_detection: ServerVad | None = ServerVad()  # None: only commits end utterances


class Audio(LenientModel):
    """The session's audio; only its input has an effect."""

    input: Annotated[AudioInput, NULL_IS_DEFAULT] = AudioInput()


class SessionConfig(SessionPart):
    """A session's configuration; also a `session` that a client sends."""

    type: Annotated[
        Literal["transcription"],
        unsupported_if(
            lambda kind: kind == "realtime",
            "this server transcribes and makes no responses; send 'transcription'",
        ),
    ]
    audio: Annotated[Audio, NULL_IS_DEFAULT] = Audio()
    include: list[Included] | None = Field(default=None, max_length=10)
    # fields of `session.created`, which a client may send back: no effect
    id: Any = Field(default=None, exclude=True)
    object: Any = Field(default=None, exclude=True)
    expires_at: Any = Field(default=None, exclude=True)

    @field_validator("include")
    @classmethod
    def _drop_logprobs(cls, names: list[str] | None) -> list[str] | None:
        return names and [name for name in names if name != LOGPROBS]

    @property
    def format(self) -> SoundFormat:
        """The format of the client's audio."""
        format = self.audio.input.format
        return SoundFormat(FORMATS[format.type], format.rate or G711_RATE)

    @property
    def has_turns(self) -> bool:
        """Whether pauses end utterances."""
        return self.audio.input.turn_detection is not None

    def includes(self, name: str) -> bool:
        """Whether the client requested these optional events or fields."""
        return name in (self.include or ())

    def options(self, defaults: LiveOptions) -> LiveOptions:
        """The stream's options. defaults: of the server."""
        transcription = self.audio.input.transcription
        turns = self.audio.input.turn_detection or ServerVad()
        return replace(
            defaults,
            task=transcription.task,
            condition_on_previous_text=transcription.condition_on_previous_text,
            language=transcription.language,
            prompt=transcription.prompt or None,
            hotwords=", ".join(filter(None, transcription.keywords or ())) or None,
            update=DELAYS[transcription.delay] if transcription.delay else defaults.update,
            words=self.includes(WORDS),
            turns=self.has_turns,
            vad_threshold=turns.threshold,
            prefix_padding_ms=turns.prefix_padding_ms,
            silence_duration_ms=turns.silence_duration_ms,
        )

    def choice(self, models: Models) -> tuple[ModelChoice, list[str]]:
        """The session's model, and warnings about its name. Raises APIError, CheckpointError."""
        name = self.audio.input.transcription.model
        if openai_model(name) == DIARIZE:
            raise unsupported("model", "a session has no speakers; use /v1/audio/transcriptions")
        served = None if LIVE_MODEL.fullmatch(name or "") else name
        choice, _, warnings = choose_model(served, models)
        return choice, warnings


START = SessionConfig(type="transcription")  # the default of a session


def update_session(config: SessionConfig, changes: object) -> tuple[SessionConfig, list[str]]:
    """`config` with the fields of a client's `session`, and the names of ignored fields.

    null resets a field. Raises APIError for a field that is invalid or not supported; `config` does
    not change then.
    """
    merged = _merged(config.model_dump(exclude={"type"}), changes)
    updated = check(SessionConfig, merged, "session")
    return updated, updated.unknown(merged, "session.")


def _merged(before: Any, changes: object) -> Any:
    """JSON with the fields of another, merged recursively; `format` is replaced as a whole."""
    if not (isinstance(before, dict) and isinstance(changes, dict)):
        return changes
    inner = {name: _merged(before.get(name), changes[name]) for name in changes if name != "format"}
    return {**before, **changes, **inner}


def from_beta(beta: Any) -> Any:
    """The `session` of the beta API's `transcription_session.update`, in the present format."""
    if not isinstance(beta, dict):
        return beta  # refused later
    session = beta.copy()
    sound = {BETA[name]: session.pop(name) for name in BETA if name in session}
    if "input_audio_format" in session:
        kind = session.pop("input_audio_format")
        sound["format"] = {"type": BETA_FORMATS.get(str(kind), kind)}
    return {**session, "type": "transcription", "audio": {"input": sound}}


def session_object(
    config: SessionConfig,
    models: Models,
    id: str,
    expires_at: int | None = None,
    unknown: Sequence[str] = (),
) -> dict[str, Any]:
    """The `session` of a server event. unknown: ignored fields. Raises as `choice`."""
    fields = {"id": id, "object": "realtime.transcription_session", **config.model_dump()}
    if expires_at is not None:
        fields["expires_at"] = expires_at
    if warnings := [*config.choice(models)[1], *map(_warning, unknown[:MAX_UNKNOWN])]:
        fields["warnings"] = warnings
    return fields


def _warning(name: str) -> str:
    if reason := _not_served(name):
        return f"{name} was ignored: {reason}"
    return f"unknown field {name[:MAX_NAME]!r} was ignored"
