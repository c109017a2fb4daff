"""faster-whisper's `BatchedInferencePipeline`."""

from collections.abc import Iterable
from typing import Any

from slimwhisper.devices import check_batch_size
from slimwhisper.errors import OptionError
from slimwhisper.faster_whisper.arguments import for_the_model, options_of, vad_options
from slimwhisper.faster_whisper.model import (
    APPEND,
    PREPEND,
    SUPPRESS,
    TEMPERATURES,
    Audio,
    WhisperModel,
)
from slimwhisper.faster_whisper.types import Segment, TranscriptionInfo, VadOptions
from slimwhisper.types import CHUNK_SECONDS

UNUSED = {  # arguments without an effect here, as there: the values used instead
    "condition_on_previous_text": False,
    "prompt_reset_on_temperature": 0.5,
    "compression_ratio_threshold": None,
    "log_prob_threshold": None,
    "no_speech_threshold": None,
    "hallucination_silence_threshold": None,
    "prefix": None,
    "max_initial_timestamp": 1.0,
}


class BatchedInferencePipeline:
    """Decodes the pieces of one recording side by side, without the text before each."""

    def __init__(self, model: WhisperModel) -> None:
        self.model = model

    def transcribe(
        self,
        audio: Audio,
        language: str | None = None,
        task: str = "transcribe",
        log_progress: bool = False,
        beam_size: int = 5,
        best_of: int = 5,
        patience: float = 1,
        length_penalty: float = 1,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        temperature: float | list[float] | tuple[float, ...] = TEMPERATURES,
        compression_ratio_threshold: float | None = 2.4,
        log_prob_threshold: float | None = -1.0,
        no_speech_threshold: float | None = 0.6,
        condition_on_previous_text: bool = True,
        prompt_reset_on_temperature: float = 0.5,
        initial_prompt: str | Iterable[int] | None = None,
        prefix: str | None = None,
        suppress_blank: bool = True,
        suppress_tokens: list[int] | None = SUPPRESS,
        without_timestamps: bool = True,
        max_initial_timestamp: float = 1.0,
        word_timestamps: bool = False,
        prepend_punctuations: str = PREPEND,
        append_punctuations: str = APPEND,
        multilingual: bool = False,
        vad_filter: bool = True,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        max_new_tokens: int | None = None,
        chunk_length: int | None = None,
        clip_timestamps: list[dict[str, float]] | None = None,
        hallucination_silence_threshold: float | None = None,
        batch_size: int = 8,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
    ) -> tuple[Iterable[Segment], TranscriptionInfo]:
        """As `WhisperModel.transcribe`, of which it leaves out what faster-whisper leaves out: the
        arguments in `UNUSED`, and all temperatures but the first.

        clip_timestamps: dictionaries of "start" and "end", in seconds. batch_size: windows
        decoded together.
        """
        arguments, whisper = locals() | UNUSED, self.model.whisper
        arguments = for_the_model(arguments, whisper)
        if isinstance(arguments["temperature"], list | tuple):
            arguments["temperature"] = list(arguments["temperature"])[:1]
        clips = [second for clip in arguments["clip_timestamps"] or () for second in _edges(clip)]
        arguments["clip_timestamps"] = clips or "0"
        vad = None
        if vad_filter and not clips:
            # pauses at which pieces may end, and their length, which cannot be set
            defaults = VadOptions(max_speech_duration_s=CHUNK_SECONDS)
            if vad_parameters is None:
                defaults.min_silence_duration_ms = 160
            elif isinstance(vad_parameters, dict):
                vad_parameters = vad_parameters | {"max_speech_duration_s": CHUNK_SECONDS}
            vad = vad_options(arguments | {"vad_parameters": vad_parameters}, defaults)
        options = options_of(arguments, vad, whisper) | {"parallel": vad is not None}
        result = self.model.begin(audio, arguments, options, vad, check_batch_size(batch_size))
        if vad is None and not clips and result[1].duration > CHUNK_SECONDS:
            result[0].close()
            raise OptionError(
                "vad_filter: with False, give clip_timestamps, or a recording of up to "
                f"{CHUNK_SECONDS} s"
            )
        return result


def _edges(clip: dict[str, float]) -> tuple[float, float]:
    """A clip's start and end. Raises OptionError."""
    try:
        return float(clip["start"]), float(clip["end"])
    except (KeyError, TypeError, ValueError):
        raise OptionError(
            f"clip_timestamps: {clip!r}: give dictionaries of start and end, in seconds"
        ) from None
