"""The calls of `ctranslate2.models.Whisper` that programs make of `WhisperModel.model`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimwhisper.api import SlimWhisper
from slimwhisper.engine.requests import Attempt, Decoded, Window
from slimwhisper.errors import OptionError
from slimwhisper.longform.requests import make_rules, search_of
from slimwhisper.option_group import plain_value
from slimwhisper.windows import as_windows, detect_languages, run_windows


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The text of one window, as `ctranslate2.models.WhisperGenerationResult`.

    Attributes:
        sequences_ids: The tokens of the text, as the only entry of a list.
        scores: The log-probability of the text divided by its length, as the only entry of a list.
        no_speech_prob: The probability that the window has no speech.
    """

    sequences_ids: list[list[int]]
    scores: list[float]
    no_speech_prob: float


@dataclass(frozen=True, slots=True)
class AudioToEncode:
    """Windows that the engine will encode when it decodes them.

    Attributes:
        mels: Spectrograms [B, n_mels, 3000], float32.
    """

    mels: Tensor

    @property
    def shape(self) -> list[int]:
        """The shape of the spectrograms."""
        return list(self.mels.shape)


class CTranslate2Calls:
    """Encodes and decodes windows, and detects their languages, in an engine of its own.

    Attributes:
        is_multilingual: Whether the model knows other languages than English.
        n_mels: The bins of a spectrogram.
        device: "cuda" or "cpu".
        device_index: The number of the GPU, as the only entry of a list.
        compute_type: The name of the dtype.
    """

    def __init__(self, model: SlimWhisper) -> None:
        """Make the calls for a model.

        Args:
            model: The model.
        """
        self._model = model
        self.is_multilingual = model.is_multilingual
        self.n_mels = model.dims.n_mels
        self.device = "cuda" if model.device.type == "cuda" else "cpu"
        self.device_index = [model.device.index or 0]
        self.compute_type = model.compute_type

    def encode(self, features: Any, to_cpu: bool = False) -> AudioToEncode:
        """Prepare spectrograms.

        Args:
            features: Spectrograms, float32 [n_mels, 3000] or [B, n_mels, 3000].
            to_cpu: This has no effect.

        Returns:
            What the other methods take.

        Raises:
            OptionError: When they have another shape.
        """
        if not isinstance(features, Tensor):
            features = torch.from_numpy(np.array(features, np.float32))
        return AudioToEncode(as_windows(features, self._model.dims))

    def detect_language(self, features: AudioToEncode) -> list[list[tuple[str, float]]]:
        """Detect the languages of windows.

        Args:
            features: The windows, as `encode` returns them.

        Returns:
            For each window the tokens, such as "<|de|>", with their probabilities, the most likely
                first.
        """
        return [
            sorted(((f"<|{c}|>", p) for c, p in found.probs.items()), key=lambda pair: -pair[1])
            for found in detect_languages(self._model.transcriber, features.mels)
        ]

    def generate(
        self,
        features: AudioToEncode,
        prompts: Sequence[Sequence[int]],
        *,
        beam_size: int = 5,
        patience: float = 1,
        num_hypotheses: int = 1,
        length_penalty: float = 1,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        max_length: int = 448,
        return_scores: bool = False,
        return_no_speech_prob: bool = False,
        max_initial_timestamp_index: int = 50,
        suppress_blank: bool = True,
        suppress_tokens: Sequence[int] | None = (-1,),
        sampling_topk: int = 1,
        sampling_temperature: float = 1,
        **ignored: Any,
    ) -> list[GenerationResult]:
        """Decode the text of each window after its prompt.

        Args:
            features: The windows, as `encode` returns them.
            prompts: The tokens of the prompt of each window.
            beam_size: How many beams are searched. 1 means greedy search.
            patience: A search ends after `beam_size` times this many finished texts.
            num_hypotheses: How many texts are sampled, of which the best one is returned.
            length_penalty: Only 1 is offered.
            repetition_penalty: The logits of tokens that the text has already are divided by this,
                or multiplied if they are below 0.
            no_repeat_ngram_size: The tokens in a row that the text may not repeat. 0 means no
                limit.
            max_length: This has no effect.
            return_scores: This has no effect: there are always scores.
            return_no_speech_prob: This has no effect: there is always the probability.
            max_initial_timestamp_index: The latest possible first timestamp, in steps of 20 ms.
            suppress_blank: Whether a text must not start with a blank.
            suppress_tokens: The ids of the tokens that are never sampled. -1 stands for symbols
                that are not spoken.
            sampling_topk: 1 searches the best text. Any other number samples it.
            sampling_temperature: The temperature to sample at.
            **ignored: These have no effect.

        Returns:
            The text of each window.

        Raises:
            OptionError: When an argument is not offered, or has an invalid value.
        """
        model, vocabulary = self._model, self._model.network.vocabulary
        prompts = [list(plain_value(prompt)) for prompt in prompts]
        if length_penalty != 1:
            raise OptionError(f"length_penalty {length_penalty!r}: only 1 is supported")
        samples = sampling_topk != 1
        options = model.make_options(
            temperature=float(sampling_temperature) if samples else 0.0,
            beam_size=beam_size if beam_size > 1 and not samples else None,
            best_of=num_hypotheses if samples else None,
            patience=float(patience) if beam_size > 1 and not samples else None,
            repetition_penalty=repetition_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
            suppress_blank=suppress_blank,
            suppress_tokens=tuple(plain_value(suppress_tokens) or ()),
            max_initial_timestamp=max_initial_timestamp_index * 0.02,
            without_timestamps=all(vocabulary.no_timestamps in prompt for prompt in prompts),
        )
        rules, attempt = make_rules(model.dims, options, vocabulary), options.temperatures[0]
        windows = [
            Window(mel, tuple(prompt), prompt.index(vocabulary.sot), rules, Attempt(attempt))
            for mel, prompt in zip(features.mels, prompts, strict=True)
        ]
        answers = run_windows(model.transcriber, search_of(options), windows)
        results = []
        for answer in answers:
            assert isinstance(answer, Decoded)
            count = len(answer.tokens)
            score = answer.avg_logprob * (count + 1) / max(count, 1)
            results.append(GenerationResult([list(answer.tokens)], [score], answer.no_speech_prob))
        return results
