"""What a realtime session is configured to do, as OpenAI's Realtime API has it.

The fields are those of openai-python 3.54 (types/realtime/realtime_transcription_session_*.py);
docs/realtime.md lists them all.
"""

from dataclasses import dataclass, replace
from typing import Any

from slimwhisper.app.api.request import choose_model
from slimwhisper.app.realtime.fields import Fields, invalid, unsupported
from slimwhisper.app.realtime.sound import Format
from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.app.service.models import DIARIZE, Models, openai_model
from slimwhisper.live.types import LiveOptions

FORMATS = {"audio/pcm": "pcm16", "audio/pcmu": "mulaw", "audio/pcma": "alaw"}
PCM = Format()
PCM_RATES = (24_000, 16_000)
G711_RATE = 8_000
BETA_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
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


@dataclass(frozen=True, slots=True)
class Turns:
    """server_vad: pauses end utterances."""

    threshold: float = _LIVE.vad_threshold
    prefix_padding_ms: int = _LIVE.prefix_padding_ms
    silence_duration_ms: int = _LIVE.silence_duration_ms


SERVER_VAD = Turns()


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """A session's configuration."""

    format: Format = PCM
    model: str | None = None  # as it was asked for
    language: str | None = None
    prompt: str | None = None
    keywords: tuple[str, ...] = ()
    delay: str | None = None
    task: str = _LIVE.task  # our own
    turns: Turns | None = SERVER_VAD
    include: tuple[str, ...] = ()

    def options(self, defaults: LiveOptions) -> LiveOptions:
        """The options of the stream; `defaults` are the server's."""
        turns = self.turns or SERVER_VAD
        return replace(
            defaults,
            task=self.task,
            language=self.language,
            prompt=self.prompt,
            hotwords=", ".join(self.keywords) or None,
            update=DELAYS[self.delay] if self.delay else defaults.update,
            words=WORDS in self.include,
            turns=self.turns is not None,
            vad_threshold=turns.threshold,
            prefix_padding_ms=turns.prefix_padding_ms,
            silence_duration_ms=turns.silence_duration_ms,
        )

    def choice(self, models: Models) -> ModelChoice:
        """The model that is meant. Raises APIError."""
        if openai_model(self.model) == DIARIZE:
            raise unsupported("model", "speakers are not told apart in a stream")
        return choose_model(None if self.model in LIVE_MODELS else self.model, models)[0]

    def shown(self) -> dict[str, Any]:
        """The configuration as a session's fields, all of them."""
        kind = next(name for name, coding in FORMATS.items() if coding == self.format.coding)
        format: dict[str, Any] = {"type": kind}
        if kind == "audio/pcm":
            format["rate"] = self.format.rate
        transcription = {
            "model": self.model,
            "language": self.language,
            "prompt": self.prompt,
            "keywords": list(self.keywords) or None,
            "delay": self.delay,
            "task": self.task,
        }
        turns = self.turns and {
            "type": "server_vad",
            "threshold": self.turns.threshold,
            "prefix_padding_ms": self.turns.prefix_padding_ms,
            "silence_duration_ms": self.turns.silence_duration_ms,
        }
        audio = {
            "format": format,
            "noise_reduction": None,
            "transcription": transcription,
            "turn_detection": turns,
        }
        return {
            "type": "transcription",
            "audio": {"input": audio},
            "include": list(self.include) or None,
        }


def update_session(config: SessionConfig, given: object) -> tuple[SessionConfig, list[str]]:
    """`config` with the fields that are present in a `session`, and the names of unknown ones.

    null resets a field. Raises APIError for one that cannot be honoured; nothing is changed then.
    """
    session = Fields(given, "session")
    kind = session.value("type")
    if kind == "realtime":
        reason = "this server transcribes and makes no responses; send 'transcription'"
        raise unsupported("session.type", f"'realtime': {reason}")
    if kind != "transcription":
        raise invalid("session.type", "session.type must be 'transcription'")
    for name in ("id", "object", "expires_at"):  # as `session.created` has them: no effect
        session.has(name)
    if session.has("include"):
        config = replace(config, include=_include(session))
    if (audio := session.inside("audio")) and (sound := audio.inside("input")):
        config = _sound(config, sound)
    return config, session.unknown()


def from_beta(given: object) -> dict[str, Any]:
    """The `session` of a beta's `transcription_session.update`, as a `session` of today's."""
    session = dict(Fields(given, "session").given)
    sound: dict[str, Any] = {}
    if (kind := session.pop("input_audio_format", None)) is not None:
        if not isinstance(kind, str) or kind not in BETA_FORMATS:
            known = ", ".join(BETA_FORMATS)
            raise invalid("session.input_audio_format", f"input_audio_format: choose {known}")
        sound["format"] = {"type": BETA_FORMATS[kind]}
    for theirs, ours in (
        ("input_audio_transcription", "transcription"),
        ("input_audio_noise_reduction", "noise_reduction"),
        ("turn_detection", "turn_detection"),
    ):
        if theirs in session:
            sound[ours] = session.pop(theirs)
    return {**session, "type": "transcription", "audio": {"input": sound}}


def _include(session: Fields) -> tuple[str, ...]:
    found = session.texts("include", 100, 10)
    for name in found:
        if name not in INCLUDE:
            raise invalid("session.include", f"session.include: choose from {', '.join(INCLUDE)}")
        if name == LOGPROBS:
            raise unsupported(
                f"session.include {LOGPROBS}",
                "a stream gives no log-probabilities; /v1/audio/transcriptions does",
            )
    return tuple(dict.fromkeys(found))


def _sound(config: SessionConfig, sound: Fields) -> SessionConfig:
    """The fields of `session.audio.input`."""
    if sound.has("format"):
        config = replace(config, format=_format(sound.inside("format")))
    if sound.value("noise_reduction") is not None:
        reason = "noise is not filtered out before the model; send null"
        raise unsupported(sound.name("noise_reduction"), reason)
    if sound.has("transcription"):
        config = _transcription(config, sound.inside("transcription"), sound)
    if sound.has("turn_detection"):
        config = replace(config, turns=_turns(config.turns, sound.inside("turn_detection")))
    return config


def _format(format: Fields | None) -> Format:
    if format is None:
        return PCM
    kind = format.choice("type", tuple(FORMATS)) or "audio/pcm"
    rate = format.value("rate")
    rates = PCM_RATES if kind == "audio/pcm" else (G711_RATE,)
    if rate is not None and (rate not in rates or isinstance(rate, bool | float)):
        known = " or ".join(map(str, rates))
        raise invalid(format.name("rate"), f"{format.name('rate')} of {kind} must be {known}")
    return Format(FORMATS[kind], rate or rates[0])


def _transcription(config: SessionConfig, given: Fields | None, sound: Fields) -> SessionConfig:
    if given is None:
        reason = "null would leave nothing to do; send {} for the defaults"
        raise unsupported(sound.name("transcription"), reason)
    changes: dict[str, Any] = {}
    if given.has("model"):
        changes["model"] = given.text("model", MAX_MODEL)
    if given.has("language"):
        changes["language"] = _language(given, given.text("language", 40))
    if given.has("languages"):
        languages = given.texts("languages", 40, 100)
        if len(languages) > 1:
            reason = "a stream takes one language, or none to detect it in each utterance"
            raise unsupported(given.name("languages"), reason)
        changes["language"] = _language(given, languages[0] if languages else None)
    if given.has("prompt"):
        changes["prompt"] = given.text("prompt", MAX_TEXT)
    if given.has("keywords"):
        changes["keywords"] = tuple(given.texts("keywords", MAX_KEYWORD, MAX_KEYWORDS))
    if given.has("delay"):
        changes["delay"] = given.choice("delay", tuple(DELAYS))
    if given.has("task"):
        changes["task"] = given.choice("task", ("transcribe", "translate")) or _LIVE.task
    return replace(config, **changes)


def _language(given: Fields, language: str | None) -> str | None:
    from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    if language is None:
        return None
    code = TO_LANGUAGE_CODE.get(language.lower(), language.lower())
    if code not in LANGUAGES:
        path = given.name("language")
        raise invalid(path, f"{path} {language!r} is not a language's code, such as 'en' or 'de'")
    return code


def _turns(before: Turns | None, given: Fields | None) -> Turns | None:
    if given is None:
        return None
    if given.value("type") == "semantic_vad":
        reason = "utterances end at pauses only; send server_vad, or null and commit yourself"
        raise unsupported(given.name("type"), f"'semantic_vad': {reason}")
    if given.value("type") not in (None, "server_vad"):
        raise invalid(given.name("type"), f"{given.name('type')} must be 'server_vad'")
    for name in ("create_response", "interrupt_response"):
        if given.value(name):
            raise unsupported(given.name(name), "a transcription session has no responses")
    if given.value("idle_timeout_ms") is not None:
        raise unsupported(given.name("idle_timeout_ms"), "there is no response to time out to")
    found = before or SERVER_VAD
    threshold = given.number("threshold", 0, 1)
    padding = given.whole("prefix_padding_ms", 0, MAX_MS)
    silence = given.whole("silence_duration_ms", 0, MAX_MS)
    return Turns(
        found.threshold if threshold is None else threshold,
        found.prefix_padding_ms if padding is None else padding,
        found.silence_duration_ms if silence is None else silence,
    )


def session_object(
    config: SessionConfig, id: str, expires_at: int | None = None, unknown: list[str] | None = None
) -> dict[str, Any]:
    """The `session` of an answer. unknown: fields that were ignored, named in `warnings`."""
    found = {"id": id, "object": "realtime.transcription_session", **config.shown()}
    if expires_at is not None:
        found["expires_at"] = expires_at
    if unknown:
        found["warnings"] = [f"unknown field {name!r} was ignored" for name in unknown]
    return found
