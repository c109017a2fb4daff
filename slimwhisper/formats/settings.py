"""Reads a model's own settings from what its files state, and what they make of Whisper's
vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slimwhisper.checkpoint.files import JSONFields, load_error
from slimwhisper.checkpoint.load import GenerationSettings, Heads, Setting, heads_by_layer
from slimwhisper.option_group import AUDIO_WINDOWS, TASKS
from slimwhisper.text import not_one_of
from slimwhisper.tokens.vocabulary import (
    Vocabulary,
    get_tokenizer,
    get_vocabulary,
    suppressed,
    with_new_names,
)
from slimwhisper.types import Dims

CONFIG = "config.json"
# settings that transformers follows and slimwhisper does not, and the values without effect
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "do_sample": (None, False),
    "repetition_penalty": (None, 1, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0),
    "bad_words_ids": (None, []),
    "sequence_bias": (None,),
}


def parse_head_pairs(pairs: Any, dims: Dims) -> Heads | None:
    """The heads of a folder's "alignment_heads", [layer, head] each; None if they are not valid."""
    try:
        valid = [(int(layer), int(head)) for layer, head in pairs]
    except (ValueError, TypeError, OverflowError):
        return None
    layers, heads = range(dims.n_text_layer), range(dims.n_text_head)
    if not valid or any(layer not in layers or head not in heads for layer, head in valid):
        return None
    return heads_by_layer(valid)


class _TokenFields(JSONFields):
    """Fields that hold token ids, or None where they are not given. Raises CheckpointError."""

    def __init__(self, file: Path, content: Mapping[str, Any], size: int) -> None:
        """size: of the vocabulary."""
        super().__init__(file, content)
        self.size = size

    def token(self, key: str) -> int | None:
        value = self.content.get(key)
        if isinstance(value, list) and len(value) == 1:  # eos_token_id may be a list
            value = value[0]
        if value is not None and not self._is_token(value):
            raise self.invalid(key, f"not a token id below {self.size}")
        return value

    def tokens(self, key: str) -> tuple[int, ...] | None:
        """Those of the vocabulary; transformers also ignores others."""
        value = self.get(key, list)
        if value is None:
            return None
        if any(type(t) is not int for t in value):
            raise self.invalid(key, "not a list of token ids")
        return tuple(sorted({t for t in value if self._is_token(t)}))

    def named(self, key: str) -> dict[str, int] | None:
        value = self.get(key, dict)
        if value is None:
            return None
        if not all(map(self._is_token, value.values())):
            raise self.invalid(key, f"not a mapping from names to token ids below {self.size}")
        tokens = with_new_names({f"<|{_bare(name)}|>": t for name, t in value.items()})
        return {_bare(name): t for name, t in tokens.items()}

    def position_pairs(self, key: str) -> tuple[tuple[int, int | None], ...]:
        """Pairs of a position and a token, or None for no token."""
        pairs = self.get(key, list, [])
        for pair in pairs:
            kinds = [type(n) for n in pair] if isinstance(pair, list) else []
            if kinds not in ([int, int], [int, type(None)]):
                raise self.invalid(key, "not a list of pairs of a position and a token id")
        return tuple((position, token) for position, token in pairs)

    def _is_token(self, value: Any) -> bool:
        return type(value) is int and 0 <= value < self.size


def _bare(token: str) -> str:
    """ "<|de|>" -> "de"."""
    return token.removeprefix("<|").removesuffix("|>")


def own_audio_window(file: Path, content: Mapping[str, Any]) -> str | None:
    """A model's setting in a file. Raises CheckpointError."""
    value = content.get("audio_window")
    if value not in (None, *AUDIO_WINDOWS):
        raise load_error(f"{file}: audio_window is {not_one_of(value, AUDIO_WINDOWS)}; correct it")
    return value


def parse_settings(file: Path, content: Mapping[str, Any], dims: Dims) -> GenerationSettings:
    """The settings that stand in a file. Raises CheckpointError."""
    # config.json has Whisper's own numbers in some fields, whatever was trained
    fields, trained = _TokenFields(file, content, dims.n_vocab), file.name != CONFIG
    task, language = fields.get("task", str), fields.get("language", str)
    if task is not None and task not in TASKS:
        raise fields.invalid("task", f"neither {TASKS[0]!r} nor {TASKS[1]!r}")
    ignored = [key for key, plain in _UNSUPPORTED.items() if content.get(key) not in plain]
    return GenerationSettings(
        file=file.name,
        suppress_tokens=fields.tokens("suppress_tokens"),
        begin_suppress_tokens=fields.tokens("begin_suppress_tokens"),
        language=None if language is None else _bare(language),
        task=task,
        max_initial_timestamp_index=fields.whole("max_initial_timestamp_index", 0),
        max_length=fields.whole("max_length", 1) if trained else None,
        return_timestamps=fields.get("return_timestamps", bool),
        is_multilingual=fields.get("is_multilingual", bool),
        lang_to_id=fields.named("lang_to_id"),
        task_to_id=fields.named("task_to_id"),
        eos_token_id=fields.token("eos_token_id") if trained else None,
        decoder_start_token_id=fields.token("decoder_start_token_id") if trained else None,
        no_timestamps_token_id=fields.token("no_timestamps_token_id"),
        prev_sot_token_id=fields.token("prev_sot_token_id"),
        alignment_heads=parse_head_pairs(content.get("alignment_heads"), dims),
        audio_window=own_audio_window(file, content),
        forced=fields.position_pairs("forced_decoder_ids"),
        ignored=tuple(Setting(k, str(content[k]), "not followed", followed=False) for k in ignored),
    )


TASK_TOKENS = tuple(f"<|{task}|>" for task in TASKS)
MARKS = {  # whisper's name: the setting that chooses it
    "<|endoftext|>": "eos_token_id",
    "<|startoftranscript|>": "decoder_start_token_id",
    "<|startoflm|>": None,
    "<|startofprev|>": "prev_sot_token_id",
    "<|nospeech|>": None,
    "<|notimestamps|>": "no_timestamps_token_id",
}


def chosen_tokens(settings: GenerationSettings) -> dict[str, int]:
    """The marks and tasks that the settings define, by whisper's names."""
    ids = {name: getattr(settings, key) for name, key in MARKS.items() if key is not None}
    ids |= {f"<|{task}|>": i for task, i in (settings.task_to_id or {}).items()}
    return {n: i for n, i in ids.items() if i is not None and (n in MARKS or n in TASK_TOKENS)}


def openai_vocabulary(dims: Dims, settings: GenerationSettings) -> Vocabulary | None:
    """openai-whisper's vocabulary with the model's settings; None if those name other tokens."""
    base = get_vocabulary(dims)
    whispers = get_tokenizer(dims)
    chosen = chosen_tokens(settings)
    if any(whispers.special_tokens[name] != i for name, i in chosen.items()):
        return None
    codes = {i: code for code, i in (settings.lang_to_id or {}).items()}
    if settings.lang_to_id is not None and base.languages and codes != base.languages:
        return None
    suppress = (settings.suppress_tokens, settings.begin_suppress_tokens)
    lists = [
        None if tokens is not None and {*tokens} == {*default} else tokens
        for tokens, default in zip(suppress, suppressed(whispers), strict=True)
    ]
    result = base
    if lists != [None, None]:
        result = replace(base, suppressed=lists[0], suppressed_first=lists[1])
    if settings.is_multilingual is False and base.languages:
        plain = type(whispers)(whispers.encoding, whispers.num_languages)
        result = replace(result, languages={}, tasks=TASKS[:1], make_tokenizer=lambda *_: plain)
    return result
