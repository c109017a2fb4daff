"""The class `BatchedInferencePipeline` of faster-whisper."""

from collections.abc import Iterable
from inspect import Parameter, Signature, signature
from itertools import chain
from typing import Any

from slimwhisper.devices import check_batch_size
from slimwhisper.errors import OptionError
from slimwhisper.faster_whisper.arguments import for_the_model, options_of, vad_options
from slimwhisper.faster_whisper.model import WhisperModel
from slimwhisper.faster_whisper.types import Segment, TranscriptionInfo, VadOptions
from slimwhisper.types import CHUNK_SECONDS

UNUSED = {  # arguments without an effect here, as there: the values used instead
    "condition_on_previous_text": False,
    "prompt_reset_on_temperature": 0.5,
    "max_initial_timestamp": 1.0,
    **dict.fromkeys(("compression_ratio_threshold", "log_prob_threshold", "no_speech_threshold")),
    **dict.fromkeys(("hallucination_silence_threshold", "prefix")),
}


OTHERS = {"without_timestamps": True, "vad_filter": True, "clip_timestamps": None, "batch_size": 8}


def _signature() -> Signature:
    """That of `WhisperModel.transcribe` with the defaults in `OTHERS`; the batch's size comes
    before the hot words.
    """
    names = signature(WhisperModel.transcribe).parameters
    batch = Parameter("batch_size", Parameter.POSITIONAL_OR_KEYWORD, annotation=int)
    rows = chain.from_iterable([batch, p] if n == "hotwords" else [p] for n, p in names.items())
    return Signature([p.replace(default=OTHERS.get(p.name, p.default)) for p in rows])


class BatchedInferencePipeline:
    """Decodes the pieces of one recording side by side, without the text before each.

    Attributes:
        model: The model.
    """

    def __init__(self, model: WhisperModel) -> None:
        """Make a pipeline.

        Args:
            model: The model.
        """
        self.model = model

    def transcribe(self, *given: Any, **named: Any) -> tuple[Iterable[Segment], TranscriptionInfo]:
        """Transcribe a recording, its pieces side by side.

        The arguments are those of `WhisperModel.transcribe`, and `batch_size`: how many windows are
        decoded together, 8 by default. `vad_filter` and `without_timestamps` are True by default.
        `clip_timestamps` are dictionaries of "start" and "end", in seconds. Those that
        faster-whisper leaves out have no effect here, too: the names in `UNUSED`, and all
        temperatures but the first.

        Args:
            *given: The arguments by their position.
            **named: The arguments by their name.

        Returns:
            The segments, each of which is decoded when it is asked for.
            What is known of the recording already.

        Raises:
            AudioError: When the recording cannot be read.
            OptionError: When an argument is not offered or has an invalid value, or when a
                recording of more than 30 s has neither clips nor `vad_filter`.
        """
        call = SIGNATURE.bind(self, *given, **named)
        call.apply_defaults()
        whisper = self.model.whisper
        arguments = for_the_model(call.arguments | UNUSED, whisper)
        if isinstance(arguments["temperature"], list | tuple):
            arguments["temperature"] = list(arguments["temperature"])[:1]
        clips = _edges(arguments["clip_timestamps"])
        arguments["clip_timestamps"] = clips or "0"
        vad = None
        if arguments["vad_filter"] and not clips:
            # pauses at which pieces may end, and their length, which cannot be set
            defaults = VadOptions(max_speech_duration_s=CHUNK_SECONDS)
            parameters = arguments["vad_parameters"]
            if parameters is None:
                defaults.min_silence_duration_ms = 160
            elif isinstance(parameters, dict):
                parameters = parameters | {"max_speech_duration_s": CHUNK_SECONDS}
            vad = vad_options(parameters, defaults)
        options = options_of(arguments, vad, whisper) | {"parallel": vad is not None}
        slots = check_batch_size(arguments["batch_size"])
        result = self.model.begin(call.arguments["audio"], arguments, options, vad, slots)
        if vad is None and not clips and result[1].duration > CHUNK_SECONDS:
            result[0].close()
            remedy = f"give clip_timestamps, or a recording of up to {CHUNK_SECONDS} s"
            raise OptionError(f"vad_filter: with False, {remedy}")
        return result


SIGNATURE = _signature()
vars(BatchedInferencePipeline)["transcribe"].__signature__ = SIGNATURE


def _edges(clips: Iterable[dict[str, float]] | None) -> list[float]:
    """The start and the end of each clip. Raises OptionError."""
    try:
        return [float(clip[edge]) for clip in clips or () for edge in ("start", "end")]
    except (KeyError, TypeError, ValueError):
        what = "give dictionaries of start and end, in seconds"
        raise OptionError(f"clip_timestamps: {clips!r}: {what}") from None
