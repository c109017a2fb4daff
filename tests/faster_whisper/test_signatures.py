"""The names, arguments and defaults are faster-whisper 1.2's: pinned here, and compared with the
package where it is installed.
"""

import importlib
import inspect
from typing import Any

import pytest

from slimwhisper import faster_whisper

DECODING = (
    "beam_size=5 best_of=5 patience=1 length_penalty=1 repetition_penalty=1 no_repeat_ngram_size=0 "
    "temperature=[0.0,0.2,0.4,0.6,0.8,1.0] compression_ratio_threshold=2.4 log_prob_threshold=-1.0 "
    "no_speech_threshold=0.6 condition_on_previous_text=True prompt_reset_on_temperature=0.5 "
    "initial_prompt=None prefix=None suppress_blank=True suppress_tokens=[-1]"
)
WORDS = (
    """word_timestamps=False prepend_punctuations="\\"'“¿([{-" """
    """append_punctuations="\\"'.。,，!！?？:：”)]}、" multilingual=False"""
)
DETECTION = "hotwords=None language_detection_threshold=0.5 language_detection_segments=1"
PINNED = {
    "WhisperModel.__init__": "self model_size_or_path device='auto' device_index=0 "
    "compute_type='default' cpu_threads=0 num_workers=1 download_root=None local_files_only=False "
    "files=None revision=None use_auth_token=None **model_kwargs",
    "WhisperModel.transcribe": "self audio language=None task='transcribe' log_progress=False "
    f"{DECODING} without_timestamps=False max_initial_timestamp=1.0 {WORDS} vad_filter=False "
    "vad_parameters=None max_new_tokens=None chunk_length=None clip_timestamps='0' "
    f"hallucination_silence_threshold=None {DETECTION}",
    "WhisperModel.detect_language": "self audio=None features=None vad_filter=False "
    "vad_parameters=None language_detection_segments=1 language_detection_threshold=0.5",
    "WhisperModel.encode": "self features",
    "WhisperModel.get_prompt": "self tokenizer previous_tokens without_timestamps=False "
    "prefix=None hotwords=None",
    "BatchedInferencePipeline.__init__": "self model",
    "BatchedInferencePipeline.transcribe": "self audio language=None task='transcribe' "
    f"log_progress=False {DECODING} without_timestamps=True max_initial_timestamp=1.0 {WORDS} "
    "vad_filter=True vad_parameters=None max_new_tokens=None chunk_length=None "
    f"clip_timestamps=None hallucination_silence_threshold=None batch_size=8 {DETECTION}",
    "decode_audio": "input_file sampling_rate=16000 split_stereo=False",
    "available_models": "",
    "download_model": "size_or_id output_dir=None local_files_only=False cache_dir=None "
    "revision=None use_auth_token=None",
    "format_timestamp": "seconds always_include_hours=False decimal_marker='.'",
    "audio.pad_or_trim": "array length=3000 * axis=-1",
    "tokenizer.Tokenizer.__init__": "self tokenizer multilingual task=None language=None",
    "transcribe.Word": "start end word probability",
    "transcribe.Segment": "id seek start end text tokens avg_logprob compression_ratio "
    "no_speech_prob words temperature",
    "transcribe.TranscriptionInfo": "language language_probability duration duration_after_vad "
    "all_language_probs transcription_options vad_options",
    "transcribe.TranscriptionOptions": "beam_size best_of patience length_penalty "
    "repetition_penalty no_repeat_ngram_size log_prob_threshold no_speech_threshold "
    "compression_ratio_threshold condition_on_previous_text prompt_reset_on_temperature "
    "temperatures initial_prompt prefix suppress_blank suppress_tokens without_timestamps "
    "max_initial_timestamp word_timestamps prepend_punctuations append_punctuations multilingual "
    "max_new_tokens clip_timestamps hallucination_silence_threshold hotwords",
    "vad.VadOptions": "threshold=0.5 neg_threshold=None min_speech_duration_ms=0 "
    "max_speech_duration_s=inf min_silence_duration_ms=2000 speech_pad_ms=400",
    "vad.get_speech_timestamps": "audio vad_options=None sampling_rate=16000 **kwargs",
}


def written(value: Any) -> str:
    """The arguments of a function or a class, in one line."""
    words = []
    starred = False
    for p in inspect.signature(value).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        name = f"**{p.name}" if p.kind is p.VAR_KEYWORD else p.name
        default = repr(p.default).replace(", ", ",") if isinstance(p.default, list) else p.default
        if isinstance(default, str) and not isinstance(p.default, list):
            default = repr(default) if '"' not in default else default
        words.append(name if p.default is p.empty else f"{name}={default}")
    return " ".join(words)


def found(package: Any, path: str) -> Any:
    value = package
    for part in path.split("."):
        if not hasattr(value, part):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    return value


def normal(text: str) -> str:
    """Without the quotes around the two sets of punctuation, which hold both kinds."""
    return text.replace("\\", "").replace('=""', '="').replace('" ', " ")


@pytest.mark.parametrize("path", PINNED)
def test_arguments_and_defaults(path: str) -> None:
    assert normal(written(found(faster_whisper, path)) + " ") == normal(PINNED[path] + " ")


@pytest.mark.parametrize("path", PINNED)
def test_arguments_and_defaults_are_the_packages(path: str) -> None:
    package = pytest.importorskip("faster_whisper", reason="needs faster-whisper")
    if not package.__version__.startswith("1.2."):
        pytest.skip(f"faster-whisper {package.__version__} is another one than 1.2")
    assert written(found(faster_whisper, path)) == written(found(package, path))


def test_every_public_name_of_the_package() -> None:
    package = pytest.importorskip("faster_whisper", reason="needs faster-whisper")
    assert set(package.__all__) <= set(faster_whisper.__all__)
