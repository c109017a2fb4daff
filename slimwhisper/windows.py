"""Decodes single windows with the engine, as `whisper.decode` and `whisper.detect_language` do."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from slimwhisper.engine.engine import choose_encode_batch
from slimwhisper.engine.requests import Answer, Attempt, Decoded, Languages, Search, Window
from slimwhisper.errors import OptionError
from slimwhisper.longform.requests import Prompts, compression_ratio, make_rules, search_of
from slimwhisper.option_group import plain_values
from slimwhisper.options import Options, make_options
from slimwhisper.service.source import Failed, Finished, Windows
from slimwhisper.service.transcriber import Call, Transcriber
from slimwhisper.tokens.vocabulary import language_code
from slimwhisper.types import Dims


@dataclass(frozen=True)
class DecodingOptions:
    """The options of `decode`: the fields and the defaults of `whisper.DecodingOptions`.

    A field that has its default follows the model's own settings, unless it is given to `decode` by
    its name.

    Attributes:
        task: "transcribe"; "translate", into English; or "lang_id", only to detect the language.
        language: The language that is spoken, by its code or name. None means the most likely one.
        temperature: The temperature to sample at. 0 means greedy or beam search.
        sample_len: The most tokens that are sampled. None means half of the text context, 224.
        best_of: How many texts are sampled at temperatures above 0, of which the best one is kept.
            None means 1.
        beam_size: How many beams are searched at temperature 0. None means greedy search.
        patience: A search ends after `beam_size` times this many finished texts. None means 1.0.
        length_penalty: The alpha of the length penalty of Google NMT, from 0 to 1. None ranks texts
            by their mean log-probability.
        prompt: The text of earlier windows, or its tokens, which the window's text continues.
        prefix: The text that the window's text continues, or its tokens.
        suppress_tokens: The ids of the tokens that are never sampled, or the same separated by
            commas. -1 stands for symbols that are not spoken. None and "" allow all tokens.
        suppress_blank: Whether a text must not start with a blank.
        without_timestamps: Whether to decode text without timestamps.
        max_initial_timestamp: The latest possible first timestamp in seconds. None means no limit.
        fp16: This has no effect: the model has its dtype.
    """

    task: str = "transcribe"
    language: str | None = None
    temperature: float = 0.0
    sample_len: int | None = None
    best_of: int | None = None
    beam_size: int | None = None
    patience: float | None = None
    length_penalty: float | None = None
    prompt: str | list[int] | None = None
    prefix: str | list[int] | None = None
    suppress_tokens: str | Iterable[int] | None = "-1"
    suppress_blank: bool = True
    without_timestamps: bool = False
    max_initial_timestamp: float | None = 1.0
    fp16: bool = True


@dataclass(frozen=True)
class DecodingResult:
    """The text of a window: the fields of `whisper.DecodingResult`.

    Attributes:
        audio_features: The encoder's output, [1500, d], or [p, d] for shorter windows.
        language: The language of the text, as it was given, or its code.
        language_probs: The probability of every language by its code. None means that the language
            was given.
        tokens: The tokens that were sampled, without the prompt.
        text: The text, without timestamps.
        avg_logprob: The mean log-probability of the tokens.
        no_speech_prob: The probability that the window has no speech.
        temperature: The temperature that the text was sampled at.
        compression_ratio: The length of the text divided by its length after compression. Texts
            that repeat themselves have a high ratio.
    """

    audio_features: Tensor
    language: str
    language_probs: dict[str, float] | None = None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    avg_logprob: float = math.nan
    no_speech_prob: float = math.nan
    temperature: float = math.nan
    compression_ratio: float = math.nan


def run_windows(
    transcriber: Transcriber, search: Search | None, windows: list[Window]
) -> list[Answer]:
    """Decode some windows together.

    Args:
        transcriber: The loop of a model.
        search: The decoding strategy. None means any, to detect only languages.
        windows: The windows.

    Returns:
        One answer to each window, in order.

    Raises:
        OptionError: When there is too little memory.
        Exception: When something else ends the engine.
    """
    with Call(transcriber, search, len(windows)) as call:
        call.submit(Windows(windows))
        for event in call.run():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Finished):
                answers: list[Answer] = event.result
    return answers


def detect_languages(transcriber: Transcriber, mels: Tensor) -> list[Languages]:
    """Compute the probability of every language in each of some windows.

    Args:
        transcriber: The loop of a model.
        mels: Spectrograms [B, n_mels, 3000], or the encoder's outputs [B, p, d].

    Returns:
        The probabilities for each window. An English-only model gives "en" the probability 1.
    """
    model = transcriber.model
    if not model.vocabulary.languages:
        return [Languages({"en": 1.0}) for _ in mels]
    windows = [Window(mel, (model.vocabulary.sot,), 0, rules=None) for mel in mels]
    return [a for a in run_windows(transcriber, None, windows) if isinstance(a, Languages)]


def decode_windows(
    transcriber: Transcriber, mel: Tensor, options: DecodingOptions | None = None, **changes: Any
) -> DecodingResult | list[DecodingResult]:
    """Decode windows, as described for `slimwhisper.decode`.

    Args:
        transcriber: The loop of a model.
        mel: A spectrogram [n_mels, 3000] or the encoder's output [p, d], or a batch of B of them.
        options: The options. None means the defaults.
        **changes: Fields that replace those of `options`.

    Returns:
        One result, or a list of B results.

    Raises:
        OptionError: When `mel` is no such tensor or is not finite, or an option has an invalid
            value.
    """
    if options is not None and not is_dataclass(options):
        raise OptionError("options: give DecodingOptions, or its fields by their names")
    requested = replace(options or DecodingOptions(), **changes)
    plain, model = DecodingOptions(), transcriber.model
    # a value that equals whisper's default follows the model's settings, unless `changes` sets it
    all_values = plain_values({f.name: getattr(requested, f.name) for f in fields(requested)})
    values = {k: v for k, v in all_values.items() if k in changes or v != getattr(plain, k)}
    values["initial_prompt"] = values.pop("prompt", None)
    if requested.task == "lang_id":
        del values["task"]
    chosen = make_options(model.facts, **values)
    features = _encoded(transcriber, as_windows(mel, transcriber.model.dims))
    detected: Sequence[Languages | None] = [None] * len(features)
    if chosen.language is None or requested.task == "lang_id":
        detected = detect_languages(transcriber, features)
    probs = [None if d is None else d.probs for d in detected]
    spoken = chosen.language and language_code(chosen.language, model.vocabulary)
    languages = [spoken or ("en" if d is None else d.most_likely()) for d in detected]
    if requested.task == "lang_id":
        results = [DecodingResult(*row) for row in zip(features, languages, probs, strict=True)]
    else:
        texts = _texts(transcriber, features, chosen, languages)
        results = [
            replace(text, language=all_values["language"] or text.language, language_probs=p)
            for text, p in zip(texts, probs, strict=True)
        ]
    return results[0] if mel.ndim == 2 else results


@torch.inference_mode()
def _encoded(transcriber: Transcriber, windows: Tensor) -> Tensor:
    """Windows [B, n_mels, 3000], or what is encoded already, -> [B, p, d]."""
    dims, encoder = transcriber.model.dims, transcriber.model.encoder
    if windows.shape[1:] == (dims.n_audio_ctx, dims.n_audio_state):
        return windows.to(transcriber.model.device, transcriber.model.dtype)
    batch = choose_encode_batch(transcriber.model)
    return torch.cat([encoder(part) for part in windows.split(batch)])


def _texts(
    transcriber: Transcriber, features: Tensor, chosen: Options, languages: Sequence[str]
) -> Iterator[DecodingResult]:
    """The texts of windows [B, p, d], each in its own language."""
    model = transcriber.model
    rules = make_rules(model.dims, chosen, model.vocabulary)
    windows, tokenizers = [], []
    for number, (window, language) in enumerate(zip(features, languages, strict=True)):
        tokenizer = model.vocabulary.tokenizer(language, chosen.task)
        prompts = Prompts(tokenizer, model.dims, chosen)
        attempt = Attempt(chosen.temperatures[0], (chosen.seed, number))
        windows.append(Window(window, *prompts.of_window(tokenizer), rules, attempt))
        tokenizers.append(tokenizer)
    for i, answer in enumerate(run_windows(transcriber, search_of(chosen), windows)):
        assert isinstance(answer, Decoded)
        text = tokenizers[i].decode(list(answer.tokens)).strip()
        yield DecodingResult(
            audio_features=features[i],
            language=languages[i],
            tokens=list(answer.tokens),
            text=text,
            avg_logprob=answer.avg_logprob,
            no_speech_prob=answer.no_speech_prob,
            temperature=answer.temperature,
            compression_ratio=compression_ratio(text),
        )


def as_windows(mel: Tensor, dims: Dims) -> Tensor:
    """Check windows, and add the batch axis if there is none.

    Args:
        mel: A spectrogram [n_mels, 3000] or the encoder's output [p, d], or a batch of B of them.
        dims: The dimensions of the model.

    Returns:
        Spectrograms [B, n_mels, 3000] float32, or the encoder's outputs [B, p, d].

    Raises:
        OptionError: When `mel` is no tensor, has another shape, or holds NaN or infinite values.
    """
    if not is_windows(mel, dims):
        found = f"{type(mel).__name__} of shape {list(getattr(mel, 'shape', ()))}"
        source = "or a batch, as tensors of log_mel_spectrogram and pad_or_trim, or of embed_audio"
        raise OptionError(f"mel: {found}; give [{dims.n_mels}, {dims.window_frames}], {source}")
    if not mel.isfinite().all():
        raise OptionError("mel holds NaN or infinite values; give finite values")
    windows = mel if mel.ndim == 3 else mel.unsqueeze(0)
    return windows.float() if windows.shape[1] == dims.n_mels else windows


def is_windows(audio: object, dims: Dims) -> TypeGuard[Tensor]:
    """Return whether something has the shape of windows, or of the encoder's output.

    Args:
        audio: Anything.
        dims: The dimensions of the model.

    Returns:
        Whether it is a tensor [n_mels, 3000] or [p, d], or a batch of B of them.
    """
    shapes = ((dims.n_mels, dims.window_frames), (dims.n_audio_ctx, dims.n_audio_state))
    if not isinstance(audio, Tensor) or audio.ndim not in (2, 3):
        return False
    return audio.shape[-2:] in shapes and len(audio) > 0
