"""The class `WhisperModel` of faster-whisper."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.audio.load import load_samples
from slimwhisper.audio.mel import first_window
from slimwhisper.audio.samples import Excerpts, Samples
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
from slimwhisper.faster_whisper.segments import SegmentIterator, shared_model
from slimwhisper.faster_whisper.tokenizer import HubTokenizer, Tokenizer
from slimwhisper.faster_whisper.types import Segment, TranscriptionInfo, VadOptions
from slimwhisper.faster_whisper.utils import check_hub_arguments, get_logger
from slimwhisper.faster_whisper.vad import option_fields
from slimwhisper.option_group import check_count
from slimwhisper.options import Options
from slimwhisper.types import HOP_SAMPLES, SAMPLE_RATE
from slimwhisper.voice_activity import find_speech
from slimwhisper.windows import detect_languages

Audio = str | BinaryIO | NDArray[Any]
TEMPERATURES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
SUPPRESS = [-1]
PREPEND, APPEND = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"


class WhisperModel:
    """A model, with the methods of `faster_whisper.WhisperModel`.

    All models of a process that have the same arguments share one engine, in which the recordings
    of several threads are decoded side by side.

    Attributes:
        whisper: The `SlimWhisper` that does the work.
        model: The calls of CTranslate2's model that programs make.
        hf_tokenizer: The calls of a tokenizer of `tokenizers` that programs make.
        feat_kwargs: The arguments of the feature extractor: "feature_size", the bins of a
            spectrogram.
        max_length: The most tokens of a text with its prompt.
        logger: The logger of faster-whisper.
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
        """Load a model.

        Args:
            model_size_or_path: A name of `available_models`, an id of the Hugging Face hub, or the
                path of a file or a folder.
            device: "auto", "cpu" or "cuda". "auto" means a GPU if one is available.
            device_index: The number of the GPU.
            compute_type: A compute type of CTranslate2 or a dtype of `load_model`. "default" means
                float16 on a GPU and float32 on a CPU; "int8_float32" and the like mean "int8".
            cpu_threads: The number of threads of this process, for all of its models from now on.
                0 changes nothing; the default is that of the machine.
            num_workers: This has no effect: all threads share one engine.
            download_root: The folder for downloaded models. None means ~/.cache/whisper.
            local_files_only: Whether to download nothing.
            files: This is not offered.
            revision: This is not offered.
            use_auth_token: True or False has no effect; a token is not offered.
            **model_kwargs: These have no effect.

        Raises:
            CheckpointError: When the model cannot be found, downloaded or loaded.
            OptionError: When an argument is not offered, or has an invalid value.
        """
        if files:
            raise OptionError("files: give the path of a model; files in memory are not supported")
        check_hub_arguments(revision, use_auth_token)
        self.logger = get_logger()
        self.whisper = shared_model(  # slimwhisper's own
            check_count("cpu_threads", cpu_threads, 0),
            name=str(model_size_or_path),
            device=choose_device(device, device_index),
            dtype=choose_dtype(compute_type),
            download_root=download_root,
            local_files_only=local_files_only,
        )
        self.model = CTranslate2Calls(self.whisper)
        self.hf_tokenizer = HubTokenizer(self.whisper.network.vocabulary)
        self.feat_kwargs = {"feature_size": self.model.n_mels}
        self.max_length = self.whisper.dims.n_text_ctx

    @property
    def supported_languages(self) -> list[str]:
        """The codes of the languages that the model knows."""
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
        """Transcribe a recording of any length, as `faster_whisper.WhisperModel.transcribe` does.

        Args:
            audio: A path, a binary file object, or samples, float32 [n] at 16 kHz.
            language: The language that is spoken, by its code or name. None means that it is
                detected.
            task: "transcribe" writes in the language that is spoken, "translate" in English.
            log_progress: Whether to show a progress bar.
            beam_size: How many beams are searched at temperature 0. 1 means greedy search.
            best_of: How many texts of a window are sampled at temperatures above 0.
            patience: A search ends after `beam_size` times this many finished texts.
            length_penalty: Only 1 is offered, which ranks texts by their mean log-probability.
            repetition_penalty: The logits of tokens that a window's text has already are divided by
                this, or multiplied if they are below 0.
            no_repeat_ngram_size: The tokens in a row that a window's text may not repeat. 0 means
                no limit.
            temperature: The temperature to sample at, or several to try in turn until a window's
                text passes the thresholds.
            compression_ratio_threshold: A text fails if it compresses better than this. None means
                no such check.
            log_prob_threshold: A text fails if its mean log-probability is lower than this. None
                means no such check.
            no_speech_threshold: A window is silent if its probability of no speech is higher than
                this and its text fails `log_prob_threshold`. None means no such check.
            condition_on_previous_text: Whether each window's text continues the text before it.
            prompt_reset_on_temperature: Text that was sampled at a higher temperature than this is
                not in the prompt of later windows.
            initial_prompt: The text, or its tokens, that the first window's text continues.
            prefix: The text that every window's text continues, without it. This is not what
                faster-whisper does, and text may be lost.
            suppress_blank: Whether a text must not start with a blank.
            suppress_tokens: The ids of the tokens that are never sampled. -1 stands for symbols
                that are not spoken.
            without_timestamps: Whether to decode text without timestamps.
            max_initial_timestamp: The latest possible first timestamp of a window in seconds.
            word_timestamps: Whether to find the start and the end of each word.
            prepend_punctuations: The punctuation that belongs to the next word.
            append_punctuations: The punctuation that belongs to the word before it.
            multilingual: Whether to detect the language of every window.
            vad_filter: Whether to skip audio without speech.
            vad_parameters: What counts as speech: a `VadOptions`, or some of its fields.
            max_new_tokens: The most tokens of a window. None means half of the text context, 224.
            chunk_length: The length of a window in seconds. Only 30 is offered.
            clip_timestamps: The clips to transcribe, in seconds: start, end, start, end and so on.
                With clips, `vad_filter` has no effect.
            hallucination_silence_threshold: Silence that is longer than this many seconds is
                skipped around text that may be invented. It has an effect only with
                `word_timestamps`.
            hotwords: Words to expect, which are put into the prompt of every window. They have no
                effect with a prefix.
            language_detection_threshold: The probability from which a window's language is taken at
                once.
            language_detection_segments: How many windows are used to detect the language.

        Returns:
            The segments, each of which is decoded when it is asked for.
            What is known of the recording already.

        Raises:
            AudioError: When the recording cannot be read.
            OptionError: When an argument is not offered, or has an invalid value.
        """
        arguments, vad = for_the_model(locals(), self.whisper), None
        if vad_filter and arguments["clip_timestamps"] == "0":
            vad = vad_options(arguments["vad_parameters"], VadOptions())
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
        """Start to transcribe, for the method `transcribe` of this class and of the batched one.

        Args:
            audio: The recording.
            arguments: The arguments of that call, by name.
            options: The same as fields of `slimwhisper.Options`.
            vad: What counts as speech. None means that all is decoded.
            slots: How many windows are decoded together.

        Returns:
            The segments.
            What is known of the recording already.

        Raises:
            AudioError: When the recording cannot be read.
            OptionError: When an option has an invalid value.
        """
        samples = _samples(audio)
        probability, probs = 1.0, None
        if arguments["language"] is None and arguments["language_detection_segments"] not in (0, 1):
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
        audio: Audio | None = None,
        features: NDArray[np.float32] | None = None,
        vad_filter: bool = False,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        language_detection_segments: int = 1,
        language_detection_threshold: float = 0.5,
    ) -> tuple[str, float, list[tuple[str, float]]]:
        """Detect the language of a recording.

        This is the language of the first window in which one exceeds the threshold, and else the
        one that most windows have.

        Args:
            audio: The recording, as in `transcribe`.
            features: A spectrogram, float32 [n_mels, frames], if there is no audio.
            vad_filter: Whether to skip audio without speech.
            vad_parameters: What counts as speech: a `VadOptions`, or some of its fields.
            language_detection_segments: How many windows are used at most.
            language_detection_threshold: The probability from which a window's language is taken at
                once.

        Returns:
            The code of the language.
            Its probability.
            All languages with their probabilities, the most likely first.

        Raises:
            AudioError: When the recording cannot be read.
            OptionError: When `vad_parameters` or the number of windows is invalid.
        """
        network = self.whisper
        most = check_count("language_detection_segments", language_detection_segments, 0)
        if not network.is_multilingual:
            return "en", 1.0, [("en", 1.0)]
        votes, best, probs = Counter[str](), dict[str, float](), dict[str, float]()
        vad = vad_options(vad_parameters, VadOptions()) if vad_filter else None
        for window in self._windows(audio, features, vad):
            if votes.total() == max(most, 1):
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
        self, audio: Audio | None, features: NDArray[np.float32] | None, vad: VadOptions | None
    ) -> Iterator[Tensor]:
        """The spectrograms [n_mels, 3000] of a recording's windows, at least one."""
        dims = self.whisper.dims
        if audio is None:
            assert features is not None, "Either `audio` or `features` must be provided."
            for start in range(0, max(features.shape[-1], 1), dims.window_frames):
                mel = torch.tensor(features[..., start : start + dims.window_frames])
                yield torch.nn.functional.pad(mel, (0, dims.window_frames - mel.shape[-1]))
            return
        samples = _samples(audio)
        if vad is not None:
            samples = Excerpts(samples, find_speech(samples, Options(**option_fields(vad))))
        window = dims.window_frames * HOP_SAMPLES
        for start in range(0, max(len(samples), 1), window):
            yield first_window(samples.read(start, start + window), dims.n_mels, dims.window_frames)

    # -- for programs that decode windows themselves ---------------------------------------------

    def encode(self, features: NDArray[np.float32]) -> Any:
        """Prepare spectrograms for `self.model.generate`.

        Args:
            features: Spectrograms, float32 [n_mels, 3000] or [B, n_mels, 3000].

        Returns:
            What `generate` takes.

        Raises:
            OptionError: When they have another shape.
        """
        return self.model.encode(features)

    def get_prompt(
        self,
        tokenizer: Tokenizer,
        previous_tokens: list[int],
        without_timestamps: bool = False,
        prefix: str | None = None,
        hotwords: str | None = None,
    ) -> list[int]:
        """Make the tokens before a window's text.

        Args:
            tokenizer: The tokenizer of the language and the task.
            previous_tokens: The tokens of the text before.
            without_timestamps: Whether the text has no timestamps.
            prefix: The text that the window's text begins with.
            hotwords: Words to expect. They have no effect with a prefix.

        Returns:
            The tokens.
        """
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
