"""faster-whisper's `WhisperModel`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.audio.load import load_samples
from slimwhisper.audio.mel import first_window
from slimwhisper.audio.samples import ArraySamples, Excerpts, Samples
from slimwhisper.errors import OptionError
from slimwhisper.faster_whisper.arguments import (
    Arguments,
    as_understood,
    choose_device,
    choose_dtype,
    for_the_model,
    options_of,
    vad_options,
)
from slimwhisper.faster_whisper.ctranslate2_calls import CTranslate2Calls
from slimwhisper.faster_whisper.segments import ModelKey, SegmentIterator, shared_model
from slimwhisper.faster_whisper.tokenizer import HubTokenizer, Tokenizer
from slimwhisper.faster_whisper.types import Segment, TranscriptionInfo, VadOptions
from slimwhisper.faster_whisper.utils import check_hub_arguments, get_logger
from slimwhisper.faster_whisper.vad import get_speech_timestamps
from slimwhisper.types import HOP_SAMPLES, SAMPLE_RATE
from slimwhisper.windows import detect_languages

Audio = str | BinaryIO | NDArray[Any]
TEMPERATURES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
SUPPRESS = [-1]
PREPEND, APPEND = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"


class WhisperModel:
    """A model. All models of a process with the same arguments share one engine, in which the
    recordings of several threads are decoded side by side.
    """

    def __init__(
        self,
        model_size_or_path: str,
        device: str = "auto",
        device_index: int | list[int] = 0,
        compute_type: str = "default",
        cpu_threads: int = 0,
        num_workers: int = 1,
        download_root: str | None = None,
        local_files_only: bool = False,
        files: dict[str, Any] | None = None,
        revision: str | None = None,
        use_auth_token: str | bool | None = None,
        **model_kwargs: Any,
    ) -> None:
        """num_workers and model_kwargs change nothing: all threads share one engine.

        Raises CheckpointError, and OptionError for what is not offered.
        """
        if files:
            raise OptionError("files: give the path of a model; files in memory are not supported")
        check_hub_arguments(revision, use_auth_token)
        where, dtype = choose_device(device, device_index), choose_dtype(compute_type)
        name, threads = str(model_size_or_path), max(0, cpu_threads)
        key = ModelKey(name, where, dtype, download_root, local_files_only, threads)
        self.logger = get_logger()
        self.whisper = shared_model(key)  # slimwhisper's own
        self.model = CTranslate2Calls(self.whisper)
        self.hf_tokenizer = HubTokenizer(self.whisper.network.vocabulary)
        self.feat_kwargs = {"feature_size": self.model.n_mels}
        self.max_length = self.whisper.dims.n_text_ctx

    @property
    def supported_languages(self) -> list[str]:
        """Their codes."""
        return list(self.whisper.network.vocabulary.languages.values()) or ["en"]

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
        without_timestamps: bool = False,
        max_initial_timestamp: float = 1.0,
        word_timestamps: bool = False,
        prepend_punctuations: str = PREPEND,
        append_punctuations: str = APPEND,
        multilingual: bool = False,
        vad_filter: bool = False,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        max_new_tokens: int | None = None,
        chunk_length: int | None = None,
        clip_timestamps: str | list[float] = "0",
        hallucination_silence_threshold: float | None = None,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
    ) -> tuple[Iterable[Segment], TranscriptionInfo]:
        """Transcribe a recording: its segments, each as soon as it is decoded, and what is known of
        it already. Raises AudioError, OptionError.

        audio: a path, a binary file object, or float32 [n] at 16 kHz.
        """
        arguments, vad = for_the_model(locals(), self.whisper), None
        if vad_filter and arguments["clip_timestamps"] == "0":
            vad = vad_options(arguments, VadOptions())
        options = options_of(arguments, vad, self.whisper) | {"vad_filter": vad is not None}
        return self.begin(audio, arguments, options, vad)

    def begin(
        self,
        audio: Audio,
        arguments: Arguments,
        options: Arguments,
        vad: VadOptions | None,
        slots: int = 1,
    ) -> tuple[SegmentIterator, TranscriptionInfo]:
        """Start to transcribe; for the two classes' `transcribe`.

        arguments: of that call. options: of `slimwhisper.Options`. vad: what counts as speech;
        None: all is decoded. slots: windows decoded together.
        """
        samples = _samples(audio)
        probability, probs = 1.0, None
        if arguments["language_detection_segments"] > 1 and arguments["language"] is None:
            clips = self.whisper.make_options(clip_timestamps=options["clip_timestamps"])
            start = round(next(iter(clips.clip_seconds), 0.0) * SAMPLE_RATE)
            signal = samples.read(min(start, len(samples)), len(samples))
            limits = (arguments[f"language_detection_{name}"] for name in ("segments", "threshold"))
            found = self.detect_language(signal, None, vad is not None, vad, *limits)
            language, probability, probs = found
            options = options | {"language": language}
        segments = SegmentIterator(self.whisper, samples, options, slots, arguments["log_progress"])
        session = segments.recording.sessions[0]
        assert session.language is not None
        if session.language_probs:
            probs = _most_likely_first(session.language_probs)
            probability = session.language_probs[session.language]
        length, speech = len(samples) / SAMPLE_RATE, segments.recording.seconds_of_speech
        understood = as_understood(arguments, self.whisper)
        language = session.language
        info = TranscriptionInfo(language, probability, length, speech, probs, understood, vad)
        return segments, info

    def detect_language(
        self,
        audio: NDArray[np.float32] | None = None,
        features: NDArray[np.float32] | None = None,
        vad_filter: bool = False,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        language_detection_segments: int = 1,
        language_detection_threshold: float = 0.5,
    ) -> tuple[str, float, list[tuple[str, float]]]:
        """The language, its probability, and that of each, most likely first: of the first window
        in which one exceeds the threshold, else of the one that most windows have.

        audio: float32 [n] at 16 kHz. features: float32 [n_mels, frames], if there is no audio.
        """
        network = self.whisper
        if not network.is_multilingual:
            return "en", 1.0, [("en", 1.0)]
        votes, best, probs = Counter[str](), dict[str, float](), dict[str, float]()
        for window in self._windows(audio, features, vad_filter, vad_parameters):
            if votes.total() == max(language_detection_segments, 1):
                break
            found = detect_languages(network.transcriber, window[None])[0]
            language, probs = found.most_likely(), found.probs
            if probs[language] > (language_detection_threshold or 0.5):
                return language, probs[language], _most_likely_first(probs)
            votes[language] += 1
            best[language] = max(best.get(language, 0.0), probs[language])
        language = max(votes, key=votes.__getitem__)
        return language, best[language], _most_likely_first(probs)

    def _windows(
        self,
        audio: NDArray[np.float32] | None,
        features: NDArray[np.float32] | None,
        vad_filter: bool,
        vad_parameters: dict[str, Any] | VadOptions | None,
    ) -> Iterator[Tensor]:
        """The spectrograms [n_mels, 3000] of a recording's windows, at least one."""
        dims = self.whisper.dims
        if audio is None:
            assert features is not None, "Either `audio` or `features` must be provided."
            for start in range(0, max(features.shape[-1], 1), dims.window_frames):
                mel = torch.tensor(features[..., start : start + dims.window_frames])
                yield torch.nn.functional.pad(mel, (0, dims.window_frames - mel.shape[-1]))
            return
        samples: Samples = ArraySamples(np.asarray(audio, np.float32))
        if vad_filter:
            vad = vad_options({"vad_parameters": vad_parameters}, VadOptions())
            found = get_speech_timestamps(audio, vad)
            samples = Excerpts(samples, [(r["start"], r["end"]) for r in found])
        window = dims.window_frames * HOP_SAMPLES
        for start in range(0, max(len(samples), 1), window):
            yield first_window(samples.read(start, start + window), dims.n_mels, dims.window_frames)

    # -- for programs that decode windows themselves ---------------------------------------------

    def encode(self, features: NDArray[np.float32]) -> Any:
        """float32 [n_mels, 3000] or [B, n_mels, 3000] -> what `self.model.generate` takes."""
        return self.model.encode(features)

    def get_prompt(
        self,
        tokenizer: Tokenizer,
        previous_tokens: list[int],
        without_timestamps: bool = False,
        prefix: str | None = None,
        hotwords: str | None = None,
    ) -> list[int]:
        """The tokens before a window's text."""
        most = self.max_length // 2 - 1
        hints = tokenizer.encode(" " + hotwords.strip())[:most] if hotwords and not prefix else []
        before = [*hints, *previous_tokens[-most:]]
        prompt = [tokenizer.sot_prev, *before] if before else []
        prompt += tokenizer.sot_sequence
        if without_timestamps:
            prompt.append(tokenizer.no_timestamps)
        if prefix:
            if not without_timestamps:
                prompt.append(tokenizer.timestamp_begin)
            prompt += tokenizer.encode(" " + prefix.strip())[:most]
        return [token for token in prompt if token is not None]


def _samples(audio: Audio) -> Samples:
    """Of a path, a file object or an array; without any, a moment that is shorter than a frame."""
    if isinstance(audio, np.ndarray) and not audio.size:
        audio = np.zeros(1, np.float32)
    return load_samples(audio, allow_truncated=True)


def _most_likely_first(probs: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(probs.items(), key=lambda pair: -pair[1])
