"""Single windows through the engine: what `whisper.decode` and `detect_language` do."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimwhisper.engine.requests import Attempt, Decoded, Languages, Window
from slimwhisper.engine.rules import make_rules
from slimwhisper.errors import OptionError
from slimwhisper.longform.attempts import compression_ratio
from slimwhisper.longform.engines import EnginePool, search_of
from slimwhisper.longform.prompts import Prompts
from slimwhisper.options import make_options
from slimwhisper.tokens.vocabulary import language_code
from slimwhisper.types import Dims, Options

if TYPE_CHECKING:
    from whisper import DecodingOptions, DecodingResult


def hear_languages(engines: EnginePool, mels: Tensor) -> list[Languages]:
    """Every language's probability, for each of the windows [B, n_mels, 3000]."""
    model = engines.model
    if not model.vocabulary.languages:
        return [Languages({"en": 1.0}) for _ in mels]
    windows = [Window(mel, (model.vocabulary.sot,), 0, rules=None) for mel in mels]
    with engines.lend(None, len(windows)) as engine:
        answers = engine.ask(windows)
    return [a for a in answers if isinstance(a, Languages)]


def decode_windows(
    engines: EnginePool, mel: Tensor, options: "DecodingOptions | None" = None, **changes: Any
) -> "DecodingResult | list[DecodingResult]":
    """mel [n_mels, 3000] -> one result, [B, n_mels, 3000] -> B; see `slimwhisper.decode`."""
    from whisper import DecodingOptions, DecodingResult

    asked = replace(options or DecodingOptions(), **changes)
    plain, model = DecodingOptions(), engines.model
    # what is left at whisper's default follows the model's settings, unless it is said here
    values = {f.name: getattr(asked, f.name) for f in fields(asked) if f.name != "prompt"}
    given = {k: v for k, v in values.items() if k in changes or v != getattr(plain, k)}
    if asked.task == "lang_id":
        del given["task"]
    chosen = make_options(model.dims, model.name, model.vocabulary, model.settings, **given)
    mels = as_windows(mel, engines.model.dims)
    heard: Sequence[Languages | None] = [None] * len(mels)
    if chosen.language is None or asked.task == "lang_id":
        heard = hear_languages(engines, mels)
    probs = [None if h is None else h.probs for h in heard]
    spoken = chosen.language and language_code(chosen.language, model.vocabulary)
    languages = [spoken or ("en" if h is None else h.likeliest()) for h in heard]
    if asked.task == "lang_id":
        results = [
            DecodingResult(audio_features=torch.empty(0), language=language, language_probs=p)
            for language, p in zip(languages, probs, strict=True)
        ]
    else:
        results = [
            replace(result, language=asked.language or result.language, language_probs=p)
            for result, p in zip(
                _texts(engines, mels, chosen, asked.prompt, languages), probs, strict=True
            )
        ]
    return results[0] if mel.ndim == 2 else results


def _texts(
    engines: EnginePool,
    mels: Tensor,
    chosen: Options,
    prompt: str | Sequence[int] | None,
    languages: Sequence[str],
) -> "list[DecodingResult]":
    """The texts of windows [B, n_mels, 3000], each in its own language; prompt: the text before."""
    from whisper import DecodingResult

    model = engines.model
    rules = make_rules(model.dims, chosen, model.vocabulary)
    windows, tokenizers = [], []
    for number, (window, language) in enumerate(zip(mels, languages, strict=True)):
        tokenizer = model.vocabulary.tokenizer(language, chosen.task)
        prompts = Prompts(tokenizer, model.dims, chosen)
        text = tokenizer.encode(" " + prompt.strip()) if isinstance(prompt, str) else prompt
        prompts.add(list(text or ()), keep=True)
        attempt = Attempt(chosen.temperatures[0], (chosen.seed, number))
        windows.append(Window(window, *prompts.of_window(tokenizer), rules, attempt))
        tokenizers.append(tokenizer)
    with engines.lend(search_of(chosen), len(windows)) as engine:
        answers = engine.ask(windows)
    results = []
    for i, answer in enumerate(answers):
        assert isinstance(answer, Decoded)
        text = tokenizers[i].decode(list(answer.tokens)).strip()
        results.append(
            DecodingResult(
                audio_features=torch.empty(0),
                language=languages[i],
                tokens=list(answer.tokens),
                text=text,
                avg_logprob=answer.avg_logprob,
                no_speech_prob=answer.no_speech_prob,
                temperature=answer.temperature,
                compression_ratio=compression_ratio(text),
            )
        )
    return results


def as_windows(mel: Tensor, dims: Dims) -> Tensor:
    """[n_mels, 3000] or [B, n_mels, 3000] -> [B, n_mels, 3000] float32. Raises OptionError."""
    if (
        mel.ndim not in (2, 3)
        or mel.shape[-2:] != (dims.n_mels, dims.window_frames)
        or not len(mel)
    ):
        raise OptionError(
            f"mel of shape {list(mel.shape)}: give [{dims.n_mels}, {dims.window_frames}], or "
            "several, from log_mel_spectrogram and pad_or_trim"
        )
    return (mel if mel.ndim == 3 else mel.unsqueeze(0)).float()
