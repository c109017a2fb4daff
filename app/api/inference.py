"""Checks whisper.cpp's form, `/inference`: the fields of its examples/server/server.cpp.

Fields without a counterpart here must have whisper.cpp's default value, or are refused.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from starlette.datastructures import FormData

from slimwhisper.app.api.fields import Text, UploadForm, check_form, invalid, one_of, only
from slimwhisper.app.api.request import TranscriptionRequest
from slimwhisper.app.service.host import Models
from slimwhisper.jobs.flags import temperatures
from slimwhisper.option_group import asks_detection

FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
MAX_ROWS = 8  # beams or samples, as in whisper.cpp
MIN_STEP = 0.05  # from one temperature to the next
MAX_MS = 86_400_000  # a day
CHANNEL_NAMES = ("speaker 0", "speaker 1")  # as whisper.cpp calls them
SPEAKERS = "voices are found by /v1/audio/transcriptions, response_format=diarized_json"
NO_SYMBOLS = "non-speech symbols are never sampled"


def _check_step(value: float) -> float:
    if 0 < value < MIN_STEP:
        raise invalid(f"send 0, or {MIN_STEP:g} to 1")
    return value


class InferenceForm(UploadForm):
    """The form's fields."""

    response_format: Annotated[str, one_of(FORMATS)] = "json"
    language: Text | None = None
    translate: bool = False
    prompt: Text | None = None
    carry_initial_prompt: bool = False
    max_context: Annotated[int, one_of((0, -1))] = -1  # none of the previous text, or all
    temperature: float | None = Field(None, ge=0, le=1)
    temperature_inc: Annotated[float, AfterValidator(_check_step)] | None = Field(None, ge=0, le=1)
    beam_size: int = Field(-1, ge=-1, le=MAX_ROWS)  # -1: none
    best_of: int = Field(-1, ge=-1, le=MAX_ROWS)
    logprob_thold: float | None = Field(None, ge=-100, le=1)
    no_speech_thold: float | None = Field(None, ge=-100, le=1)
    offset_t: int = Field(0, ge=0, le=MAX_MS)
    duration: int = Field(0, ge=0, le=MAX_MS)
    vad: bool = False
    vad_threshold: float | None = Field(None, gt=0, lt=1)
    vad_min_silence_duration_ms: int | None = Field(None, ge=0, le=60_000)
    vad_speech_pad_ms: int | None = Field(None, ge=0, le=60_000)
    no_timestamps: bool = False
    token_timestamps: bool | None = None
    # fields that accept only one value
    offset_n: Annotated[float, only(0, "segments are numbered from 0")] = 0
    max_len: Annotated[float, only(0, "segments end where the model ends them")] = 0
    audio_ctx: Annotated[float, only(0, "the encoder reads whole windows")] = 0
    word_thold: Annotated[float, only(0.01, "words are timed by attention, not by tokens")] = 0.01
    entropy_thold: Annotated[float, only(2.4, "the compression ratio finds repetition")] = 2.4
    vad_min_speech_duration_ms: Annotated[float, only(250, "no speech is too short")] = 250
    vad_samples_overlap: Annotated[float, only(0.1, "regions are padded instead")] = 0.1
    vad_max_speech_duration_s: float = Field(MAX_MS, ge=MAX_MS)  # speech is not cut by length
    detect_language: Annotated[bool, only(False, "verbose_json names the language")] = False
    diarize: bool = False  # of stereo recordings
    tinydiarize: Annotated[bool, only(False, SPEAKERS)] = False
    audio_track: Text | None = None  # not whisper.cpp's, whose files have one
    suppress_nst: Annotated[bool, only(True, NO_SYMBOLS)] = True
    suppress_non_speech: Annotated[bool, only(True, NO_SYMBOLS)] = True
    # fields without effect on the response here, and with little in whisper.cpp
    debug_mode: bool = False
    no_language_probabilities: bool = False
    split_on_word: bool = False

    def options(self) -> dict[str, Any]:
        """The fields as `slimwhisper.Options`."""
        options: dict[str, Any] = {
            "language": None if asks_detection(self.language) else self.language,
            "initial_prompt": self.prompt,
            "carry_initial_prompt": self.carry_initial_prompt or None,
            "condition_on_previous_text": None if self.max_context else False,
            "beam_size": self.beam_size if self.beam_size > 1 else None,
            "best_of": self.best_of if self.best_of > 1 else None,
            "logprob_threshold": self.logprob_thold,
            "no_speech_threshold": self.no_speech_thold,
            "without_timestamps": self.no_timestamps or None,
            "audio_track": self.audio_track,
        }
        if self.diarize:
            options |= {"channels": "split", "channel_names": CHANNEL_NAMES}
        if self.temperature is not None or self.temperature_inc is not None:
            step = 0.2 if self.temperature_inc is None else self.temperature_inc
            options["temperature"] = temperatures(self.temperature or 0.0, step or None)
        if self.offset_t or self.duration:
            end = [self.offset_t + self.duration] if self.duration else []
            options["clip_timestamps"] = tuple(ms / 1000 for ms in (self.offset_t, *end))
        if self.vad:  # else whisper.cpp ignores the other fields, too
            settings = {"vad_threshold", "vad_min_silence_duration_ms", "vad_speech_pad_ms"}
            options |= {"vad_filter": True, **self.model_dump(include=settings)}
        words = not self.no_timestamps if self.token_timestamps is None else self.token_timestamps
        if words and self.response_format == "verbose_json":
            options["word_timestamps"] = True
        return {name: value for name, value in options.items() if value is not None}


def read_inference(form: FormData, models: Models) -> TranscriptionRequest:
    """The request of a form. Raises APIError for a field that is invalid or not supported."""
    fields = check_form(InferenceForm, form)
    request = TranscriptionRequest.of(fields, fields.file, fields.response_format, None, models)
    task = "translate" if fields.translate else "transcribe"
    request.options = {"task": task, **fields.options()}
    request.words_inside = True
    return request
