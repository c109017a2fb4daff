"""The arguments of faster-whisper as our options, and what is refused."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from slimwhisper.api import SlimWhisper
from slimwhisper.errors import OptionError
from slimwhisper.faster_whisper.types import TranscriptionOptions, VadOptions
from slimwhisper.faster_whisper.utils import get_logger
from slimwhisper.faster_whisper.vad import option_fields
from slimwhisper.option_group import TASKS, check_names, plain_values
from slimwhisper.text import not_one_of
from slimwhisper.tokens.options import ENGLISH, suppressed_tokens
from slimwhisper.tokens.vocabulary import language_code
from slimwhisper.types import CHUNK_SECONDS
from slimwhisper.types import COMPUTE_TYPES as OURS

Arguments = dict[str, Any]  # of `transcribe`, by name

SAME = (  # named and meant alike
    *("language", "task", "temperature", "best_of", "repetition_penalty", "no_repeat_ngram_size"),
    *("compression_ratio_threshold", "no_speech_threshold", "condition_on_previous_text"),
    *("prompt_reset_on_temperature", "prefix", "suppress_blank", "without_timestamps"),
    *("max_initial_timestamp", "word_timestamps", "prepend_punctuations", "append_punctuations"),
    *("multilingual", "hotwords", "clip_timestamps", "initial_prompt", "suppress_tokens"),
)
COMPUTE_TYPES = {  # CTranslate2's: ours; None: our default for the device
    "default": None,
    **{name: name for name in OURS},
    **dict.fromkeys(("int8_float32", "int8_float16", "int8_bfloat16"), "int8"),
}


def choose_dtype(compute_type: str) -> str | None:
    """Choose the dtype of `load_model`.

    Args:
        compute_type: A compute type of CTranslate2, or a dtype of `load_model`.

    Returns:
        The dtype. None means the default for the device.

    Raises:
        OptionError: When there is no such compute type.
    """
    if compute_type not in COMPUTE_TYPES:
        raise OptionError(f"compute_type {not_one_of(compute_type, COMPUTE_TYPES)}")
    return COMPUTE_TYPES[compute_type]


def choose_device(device: str, device_index: int | list[int]) -> str | None:
    """Choose the device of `load_model`.

    Args:
        device: "auto", "cpu" or "cuda".
        device_index: The number of the GPU.

    Returns:
        The device. None means a GPU if one is available.

    Raises:
        OptionError: When several GPUs are given.
    """
    indices = device_index if isinstance(device_index, list | tuple) else [device_index]
    if len(indices) != 1:
        rule = "a model is on one GPU; make one WhisperModel for each"
        raise OptionError(f"device_index {device_index!r}: {rule}")
    if device == "auto":
        return None
    return f"{device}:{indices[0]}" if device == "cuda" else device


def for_the_model(call: Arguments, model: SlimWhisper) -> Arguments:
    """Convert the arguments of a `transcribe` for a model.

    What an English-only model cannot do is replaced, and logged.

    Args:
        call: The local names of that call.
        model: The model.

    Returns:
        The arguments by name.

    Raises:
        OptionError: When the task or the language is unknown.
    """
    arguments = plain_values({k: v for k, v in call.items() if k not in ("self", "audio")})
    for name in ("initial_prompt", "suppress_tokens"):
        if isinstance(arguments[name], Iterable) and not isinstance(arguments[name], str):
            arguments[name] = tuple(arguments[name])
    if arguments["task"] not in TASKS:
        raise OptionError(f"task {not_one_of(arguments['task'], TASKS)}")
    vocabulary = model.network.vocabulary
    if vocabulary.languages:
        return arguments
    if isinstance(arguments["language"], str):
        arguments["language"] = language_code(arguments["language"], vocabulary, any_model=True)
    for name, value in ENGLISH.items():
        if arguments[name] not in (value, None):
            message = "The model is English-only: %s=%r is used, not %r"
            get_logger().warning(message, name, value, arguments[name])
    return arguments | ENGLISH


def vad_options(parameters: Any, defaults: VadOptions) -> VadOptions:
    """Read `vad_parameters`.

    Args:
        parameters: The argument.
        defaults: The values of what is not given.

    Returns:
        What counts as speech.

    Raises:
        OptionError: When a name is unknown, or it is something else.
    """
    parameters = parameters or {}
    if isinstance(parameters, VadOptions):
        return parameters
    if not isinstance(parameters, Mapping):
        raise OptionError(f"vad_parameters {parameters!r}: give VadOptions, or a dictionary")
    check_names(VadOptions, parameters)
    return VadOptions(**(asdict(defaults) | dict(parameters)))


def options_of(arguments: Arguments, vad: VadOptions | None, model: SlimWhisper) -> Arguments:
    """Convert the arguments of a call to our options.

    Args:
        arguments: The arguments, by name.
        vad: What counts as speech. None means no filter.
        model: The model.

    Returns:
        The fields of `slimwhisper.Options`.

    Raises:
        OptionError: When an argument is not offered.
    """
    if arguments["length_penalty"] != 1:
        what = f"length_penalty {arguments['length_penalty']!r}: only 1 is supported"
        raise OptionError(f"{what}, the mean log-probability; leave it out")
    if arguments["chunk_length"] not in (None, CHUNK_SECONDS):
        length = arguments["chunk_length"]
        raise OptionError(f"chunk_length {length!r}: windows are {CHUNK_SECONDS} s; leave it out")
    if arguments["prefix"]:
        what = "prefix %r: each window's text continues it, without it, and may lack words"
        get_logger().warning(f"{what}; initial_prompt is safer", arguments["prefix"])
    options = {name: arguments[name] for name in SAME}
    options["logprob_threshold"] = arguments["log_prob_threshold"]
    options["on_failure"] = "best"  # its rule where all temperatures fail
    if arguments["beam_size"] != 1:
        options |= {name: arguments[name] for name in ("beam_size", "patience")}
    most, limit = arguments["max_new_tokens"], model.dims.n_text_ctx // 2
    if most is not None:
        options["sample_len"] = limit if isinstance(most, int) and most > limit else most
    if arguments["word_timestamps"]:  # without words, faster-whisper ignores it
        name = "hallucination_silence_threshold"
        options[name] = arguments[name]
    return options | ({} if vad is None else option_fields(vad))


def as_understood(arguments: Mapping[str, Any], model: SlimWhisper) -> TranscriptionOptions:
    """Make the record of the options that `TranscriptionInfo` has.

    Args:
        arguments: The arguments of the call, by name.
        model: The model.

    Returns:
        The record.
    """
    temperature, suppressed = arguments["temperature"], arguments["suppress_tokens"]
    names = {field.name for field in fields(TranscriptionOptions)}
    record = {name: value for name, value in arguments.items() if name in names}
    several = isinstance(temperature, list | tuple)
    record["temperatures"] = list(temperature) if several else [temperature]
    if suppressed:
        tokens = suppressed_tokens(model.network.vocabulary, suppressed)
        record["suppress_tokens"] = sorted(set(tokens))
    return TranscriptionOptions(**record)
