"""whisper.cpp's form, `/inference`, checked: the fields of its examples/server/server.cpp.

What has no counterpart here is accepted at whisper.cpp's default and refused at any other value.
"""

import sys
from typing import Any

from starlette.datastructures import FormData

from slimwhisper.app.api.form import Fields, refused
from slimwhisper.app.api.request import choose_model
from slimwhisper.app.api.wanted import Wanted
from slimwhisper.app.service.models import Models
from slimwhisper.jobs.decoding_flags import temperatures

FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
MOST_ROWS = 8  # beams or samples, as in whisper.cpp
LEAST_STEP = 0.05  # from one temperature to the next
MOST_MS = 86_400_000  # a day
INFINITE = 3.5e38  # whisper.cpp's largest float, rounded up

# numbers: name, the value that is accepted, and why no other
NUMBERS = (
    ("offset_n", 0, "segments are numbered from 0"),
    ("max_len", 0, "segments end where the model ends them"),
    ("audio_ctx", 0, "the encoder reads whole windows"),
    ("word_thold", 0.01, "words are timed by attention, not by timestamp tokens"),
    ("entropy_thold", 2.4, "repetition is found by the compression ratio"),
    ("vad_min_speech_duration_ms", 250, "no speech is too short to be kept"),
    ("vad_samples_overlap", 0.1, "regions are padded instead"),
)
# flags that may only be false
OFF = (
    ("detect_language", "verbose_json names the language that was detected"),
    ("diarize", "speakers are found by /v1/audio/transcriptions, response_format=diarized_json"),
    ("tinydiarize", "speakers are found by /v1/audio/transcriptions, diarized_json"),
)
# what has no effect on the response here, and little there
UNUSED = ("debug_mode", "no_language_probabilities", "split_on_word")


def read_inference(form: FormData, models: Models) -> Wanted:
    """What a form asks for. Raises APIError for a field that cannot be honoured."""
    fields = Fields(form)
    upload = fields.upload()
    model, served_by = choose_model(None, models)
    format = fields.choice("response_format", FORMATS) or "json"
    for name, only, reason in NUMBERS:
        value = fields.number(name, -INFINITE, INFINITE)
        if value not in (None, only):
            raise refused(name, f"{name} {value:g} is not {only:g}, and cannot be: {reason}")
    for name, reason in OFF:
        if fields.flag(name):
            raise refused(name, f"{name} cannot be true: {reason}")
    for name in UNUSED:
        fields.flag(name)
    task = "translate" if fields.flag("translate") else "transcribe"
    options = {
        "task": task,
        "on_failure": "best",
        **_decoding(fields),
        **_prompting(fields),
        **_speech(fields),
        **_words(fields, format),
    }
    wanted = Wanted(upload, task, format, model, served_by, options, words_inside=True)
    wanted.unknown = fields.unknown()
    return wanted


def _decoding(fields: Fields) -> dict[str, Any]:
    first = fields.number("temperature", 0, 1)
    step = fields.number("temperature_inc", 0, 1)
    found: dict[str, Any] = {}
    if step is not None and 0 < step < LEAST_STEP:
        message = f"temperature_inc {step:g} is not 0, nor from {LEAST_STEP:g} to 1"
        raise refused("temperature_inc", message)
    if first is not None or step is not None:
        step = 0.2 if step is None else step
        found["temperature"] = temperatures(first or 0.0, step or None)
    for name in ("beam_size", "best_of"):
        rows = fields.whole(name, -1, MOST_ROWS)  # -1: whisper.cpp's "none"
        if rows is not None and rows > 1:
            found[name] = rows
    for theirs, ours in (
        ("logprob_thold", "logprob_threshold"),
        ("no_speech_thold", "no_speech_threshold"),
    ):
        value = fields.number(theirs, -100, 1)
        if value is not None:
            found[ours] = value
    for name in ("suppress_nst", "suppress_non_speech"):
        if not fields.flag(name, default=True):
            raise refused(name, f"{name} cannot be false: symbols nobody speaks are never sampled")
    return found


def _prompting(fields: Fields) -> dict[str, Any]:
    found: dict[str, Any] = {}
    language = fields.text("language")
    if language not in (None, "auto"):
        found["language"] = language
    if prompt := fields.text("prompt"):
        found["initial_prompt"] = prompt
    if fields.flag("carry_initial_prompt"):
        found["carry_initial_prompt"] = True
    context = fields.whole("max_context", -1, sys.maxsize)
    if context == 0:
        found["condition_on_previous_text"] = False
    elif context not in (None, -1):
        message = f"max_context {context}: give 0 for none of the previous text, or -1 for all"
        raise refused("max_context", message)
    return found


def _speech(fields: Fields) -> dict[str, Any]:
    """Where there is speech: a clip, and the voice activity."""
    found: dict[str, Any] = {}
    start = fields.whole("offset_t", 0, MOST_MS) or 0
    duration = fields.whole("duration", 0, MOST_MS) or 0
    if start or duration:
        clip = (start, start + duration) if duration else (start,)
        found["clip_timestamps"] = tuple(t / 1000 for t in clip)
    settings: dict[str, Any] = {
        "vad_threshold": fields.number("vad_threshold", 0, 1),
        "vad_min_silence_duration_ms": fields.whole("vad_min_silence_duration_ms", 0, 60_000),
        "vad_speech_pad_ms": fields.whole("vad_speech_pad_ms", 0, 60_000),
    }
    longest = fields.number("vad_max_speech_duration_s", 0, INFINITE)
    if longest is not None and longest < MOST_MS:
        reason = "speech is not cut by its length"
        raise refused("vad_max_speech_duration_s", f"vad_max_speech_duration_s: {reason}")
    if fields.flag("vad"):  # else whisper.cpp does not look at the others
        found["vad_filter"] = True
        found |= {name: value for name, value in settings.items() if value is not None}
    return found


def _words(fields: Fields, format: str) -> dict[str, Any]:
    """verbose_json has words, unless it is to have no timestamps."""
    stamps = not fields.flag("no_timestamps")
    words = fields.flag("token_timestamps", default=stamps)
    found = {} if stamps else {"without_timestamps": True}
    return found | ({"word_timestamps": True} if words and format == "verbose_json" else {})
