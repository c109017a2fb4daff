"""What a realtime session is configured to do, as OpenAI's Realtime API has it.

The fields are those of openai-python 3.54 (types/realtime/realtime_transcription_session_*.py);
docs/realtime.md lists them all.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from slimwhisper.app.api.fields import (
    NULL_IS_DEFAULT,
    WHOLE,
    Fields,
    check,
    one_of,
    unserved,
    unsupported,
    wrong,
)
from slimwhisper.app.api.request import choose_model
from slimwhisper.app.realtime.sound import Format
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.models import DIARIZE, Models, openai_model
from slimwhisper.live.types import LiveOptions

FORMATS = {"audio/pcm": "PCM_16", "audio/pcmu": "ULAW", "audio/pcma": "ALAW"}
PCM_RATES = (24_000, 16_000)
G711_RATE = 8_000
BETA_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
BETA = {  # the names of its fields, and today's, in `audio.input`
    "input_audio_transcription": "transcription",
    "input_audio_noise_reduction": "noise_reduction",
    "turn_detection": "turn_detection",
}
LIVE_MODELS = ("gpt-realtime-whisper", "gpt-live-transcribe")  # also mean the server's model
DELAYS = {"minimal": 0.5, "low": 0.75, "medium": 1.0, "high": 1.5, "xhigh": 2.5}  # seconds
TRANSCRIPTION = "item.input_audio_transcription"
TENTATIVE, WORDS = f"{TRANSCRIPTION}.tentative", f"{TRANSCRIPTION}.words"
DETAILS = f"{TRANSCRIPTION}.details"
LOGPROBS = f"{TRANSCRIPTION}.logprobs"
INCLUDE = (TENTATIVE, WORDS, DETAILS, LOGPROBS)
_LIVE = LiveOptions()  # its defaults
MAX_TEXT = 10_000  # characters of a prompt
MAX_MODEL = 200  # characters of a model's name
MAX_KEYWORD, MAX_KEYWORDS = 100, 100
MAX_MS = 10_000  # of padding and of silence
MAX_UNKNOWN, MAX_NAME = 20, 40  # names of unknown fields that are told, and their characters


def _language(language: str | None) -> str | None:
    from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    if not language:
        return None
    code = TO_LANGUAGE_CODE.get(language.lower(), language.lower())
    if code not in LANGUAGES:
        raise wrong("not a language's code, such as 'en' or 'de'")
    return code


NO_LOGPROBS = "a stream gives no log-probabilities; /v1/audio/transcriptions does"
Language = Annotated[str, Field(max_length=40)]
Keyword = Annotated[str, Field(max_length=MAX_KEYWORD)]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS), WHOLE, NULL_IS_DEFAULT]
Response = Annotated[Any, unserved(bool, "a transcription session has no responses")]
Included = Annotated[str, one_of(INCLUDE), unserved(lambda name: name == LOGPROBS, NO_LOGPROBS)]


class AudioFormat(Fields):
    """How audio is sent. It is changed as a whole."""

    type: Annotated[str, one_of(FORMATS), NULL_IS_DEFAULT] = "audio/pcm"
    rate: int | None = Field(
        default=None, validate_default=True, exclude_if=lambda rate: rate is None
    )

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: int | None, info: ValidationInfo) -> int | None:
        """None for G.711, whose rate is not told."""
        kind = info.data.get("type", "audio/pcm")
        rates = PCM_RATES if kind == "audio/pcm" else (G711_RATE,)
        if rate not in (None, *rates):
            raise wrong(f"the rate of {kind} must be {' or '.join(map(str, rates))}")
        return (rate or PCM_RATES[0]) if kind == "audio/pcm" else None


class Transcription(Fields):
    """What is decoded, and how."""

    model: Annotated[str, Field(max_length=MAX_MODEL)] | None = None  # as it was asked for
    languages: Annotated[
        list[Annotated[Language, AfterValidator(_language)]],
        NULL_IS_DEFAULT,
        unserved(
            lambda names: isinstance(names, list) and len(names) > 1,
            "a stream takes one language, or none to detect it in each utterance",
        ),
    ] = Field(default=[], exclude=True)
    language: Annotated[Language | None, AfterValidator(_language)] = None
    prompt: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    keywords: list[Keyword] | None = Field(default=None, max_length=MAX_KEYWORDS)
    delay: Annotated[str, one_of(DELAYS)] | None = None
    task: Annotated[str, one_of(("transcribe", "translate")), NULL_IS_DEFAULT] = _LIVE.task  # ours

    @model_validator(mode="before")
    @classmethod
    def _one_language(cls, given: Any) -> Any:
        """`languages` is another name of `language`."""
        if not isinstance(given, dict) or "languages" not in given:
            return given
        names = given["languages"]
        return {**given, "language": names[0] if isinstance(names, list) and names else None}


class ServerVad(Fields):
    """Pauses end utterances."""

    type: Annotated[
        Literal["server_vad"],
        NULL_IS_DEFAULT,
        unserved(
            lambda kind: kind == "semantic_vad",
            "utterances end at pauses only; send server_vad, or null and commit yourself",
        ),
    ] = "server_vad"
    threshold: Annotated[float, NULL_IS_DEFAULT] = Field(default=_LIVE.vad_threshold, ge=0, le=1)
    prefix_padding_ms: Milliseconds = _LIVE.prefix_padding_ms
    silence_duration_ms: Milliseconds = _LIVE.silence_duration_ms
    create_response: Response = Field(default=None, exclude=True)
    interrupt_response: Response = Field(default=None, exclude=True)
    idle_timeout_ms: Response = Field(default=None, exclude=True)


class AudioInput(Fields):
    """The audio, and what is done with it."""

    format: Annotated[AudioFormat, NULL_IS_DEFAULT] = AudioFormat()
    noise_reduction: Annotated[
        Any, unserved(lambda value: value is not None, "noise is not filtered out; send null")
    ] = None
    transcription: Annotated[
        Transcription,
        unserved(
            lambda value: value is None,
            "null would leave nothing to do; send {} for the defaults",
        ),
    ] = Transcription()
    turn_detection: ServerVad | None = ServerVad()  # None: only commits end utterances


class Audio(Fields):
    """`input`: what the client sends."""

    input: Annotated[AudioInput, NULL_IS_DEFAULT] = AudioInput()


class SessionConfig(Fields):
    """A session's configuration; also a `session` that a client sends."""

    type: Annotated[
        Literal["transcription"],
        unserved(
            lambda kind: kind == "realtime",
            "this server transcribes and makes no responses; send 'transcription'",
        ),
    ]
    audio: Annotated[Audio, NULL_IS_DEFAULT] = Audio()
    include: list[Included] | None = Field(default=None, max_length=10)
    # as `session.created` has them: no effect
    id: Any = Field(default=None, exclude=True)
    object: Any = Field(default=None, exclude=True)
    expires_at: Any = Field(default=None, exclude=True)

    @property
    def format(self) -> Format:
        """How audio is sent."""
        given = self.audio.input.format
        return Format(FORMATS[given.type], given.rate or G711_RATE)

    @property
    def has_turns(self) -> bool:
        """Whether pauses end utterances."""
        return self.audio.input.turn_detection is not None

    def includes(self, name: str) -> bool:
        """Whether the client wants these events or fields, too."""
        return name in (self.include or ())

    def options(self, defaults: LiveOptions) -> LiveOptions:
        """The options of the stream; `defaults` are the server's."""
        wanted = self.audio.input.transcription
        turns = self.audio.input.turn_detection or ServerVad()
        return replace(
            defaults,
            task=wanted.task,
            language=wanted.language,
            prompt=wanted.prompt or None,
            hotwords=", ".join(filter(None, wanted.keywords or ())) or None,
            update=DELAYS[wanted.delay] if wanted.delay else defaults.update,
            words=self.includes(WORDS),
            turns=self.has_turns,
            vad_threshold=turns.threshold,
            prefix_padding_ms=turns.prefix_padding_ms,
            silence_duration_ms=turns.silence_duration_ms,
        )

    def choice(self, models: Models) -> ModelChoice:
        """The model that is meant. Raises APIError."""
        name = self.audio.input.transcription.model
        if openai_model(name) == DIARIZE:
            raise unsupported("model", "speakers are not told apart in a stream")
        return choose_model(None if name in LIVE_MODELS else name, models)[0]


START = SessionConfig(type="transcription")  # what a session begins with


def update_session(config: SessionConfig, given: object) -> tuple[SessionConfig, list[str]]:
    """`config` with the fields that are present in a `session`, and the names of unknown ones.

    null resets a field. Raises APIError for one that cannot be honoured; nothing is changed then.
    """
    merged = _merged(config.model_dump(exclude={"type"}), given)
    found = check(SessionConfig, merged, "session")
    return found, found.unknown(merged, "session.")


def _merged(before: Any, given: object) -> Any:
    """JSON with the fields of another, of the objects within it too; `format` is one value."""
    if not (isinstance(before, dict) and isinstance(given, dict)):
        return given
    inner = {name: _merged(before.get(name), given[name]) for name in given if name != "format"}
    return {**before, **given, **inner}


def from_beta(given: Any) -> Any:
    """The `session` of a beta's `transcription_session.update`, as a `session` of today's."""
    if not isinstance(given, dict):
        return given  # which is refused
    session = given.copy()
    sound = {BETA[name]: session.pop(name) for name in BETA if name in session}
    if "input_audio_format" in session:
        kind = session.pop("input_audio_format")
        sound["format"] = {"type": BETA_FORMATS.get(str(kind), kind)}
    return {**session, "type": "transcription", "audio": {"input": sound}}


def session_object(
    config: SessionConfig, id: str, expires_at: int | None = None, unknown: list[str] | None = None
) -> dict[str, Any]:
    """The `session` of an answer. unknown: fields that were ignored, named in `warnings`."""
    found = {"id": id, "object": "realtime.transcription_session", **config.model_dump()}
    if expires_at is not None:
        found["expires_at"] = expires_at
    if unknown:
        found["warnings"] = [
            f"unknown field {name[:MAX_NAME]!r} was ignored" for name in unknown[:MAX_UNKNOWN]
        ]
    return found
