"""Reads the vocabulary of a Hugging Face folder from its tokenizer and its settings.

If the tokens are those of openai-whisper's table, that table is used, because it is faster.
Otherwise `tokenizers` reads the folder's files.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.checkpoint.errors import load_error
from slimwhisper.checkpoint.settings import GenerationSettings, Setting
from slimwhisper.checkpoint.tokenizer import TOKENIZER, Tokens, fast_tokenizer, read_tokens
from slimwhisper.options import TASKS
from slimwhisper.tokens.openai import is_openai_table, suppressed, with_new_names
from slimwhisper.tokens.vocabulary import (
    SIZES,
    TIMESTAMPS,
    Vocabulary,
    get_tokenizer,
    get_vocabulary,
    ranges_of,
)
from slimwhisper.types import Dims

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

_LANGUAGE = re.compile(r"<\|([a-z]{2,3}(?:[-_][A-Za-z]{2,8})?)\|>")
_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
_COPY = "copy the tokenizer of this model there"


def read_vocabulary(
    folder: Path, dims: Dims, settings: GenerationSettings
) -> tuple[Vocabulary, GenerationSettings]:
    """A folder's vocabulary, and the settings with the language and task that it forces.

    Raises CheckpointError.
    """
    tokens = read_tokens(folder)
    if tokens is None and dims.n_vocab not in SIZES:
        problem = f"there is no {TOKENIZER}, and {dims.n_vocab} tokens are not one of {SIZES}"
        raise load_error(f"{folder}: {problem}; {_COPY}")
    is_whispers = dims.n_vocab in SIZES and (tokens is None or _is_whispers(tokens, dims))
    vocabulary = openai_vocabulary(dims, settings) if is_whispers else None
    if vocabulary is None:
        if tokens is None:
            problem = f"its token ids are not Whisper's, and there is no {TOKENIZER}"
            raise load_error(f"{folder / settings.file}: {problem}; {_COPY}")
        vocabulary = _of_tokens(folder, dims, tokens, settings)
    return vocabulary, _with_forced(vocabulary, settings)


# -- openai-whisper's table ------------------------------------------------------------------------


def _is_whispers(tokens: Tokens, dims: Dims) -> bool:
    """Whether they are openai-whisper's, and none was added."""
    t = get_tokenizer(dims)
    added = (name for name, i in tokens.ids.items() if i > t.eot and name not in tokens.special)
    return all(map(_TIMESTAMP.fullmatch, added)) and is_openai_table(tokens.ids, t)


def openai_vocabulary(dims: Dims, settings: GenerationSettings) -> Vocabulary | None:
    """openai-whisper's vocabulary with the model's settings; None if those name other tokens."""
    base = get_vocabulary(dims)
    tasks = get_tokenizer(dims)
    chosen = {  # id in openai-whisper's table: in the settings
        base.eot: settings.eos_token_id,
        base.sot: settings.decoder_start_token_id,
        base.no_timestamps: settings.no_timestamps_token_id,
        base.sot_prev: settings.prev_sot_token_id,
    }
    if any(token not in (None, table_id) for table_id, token in chosen.items()):
        return None
    ids = settings.task_to_id or {}
    if any(ids.get(task, getattr(tasks, task)) != getattr(tasks, task) for task in TASKS):
        return None
    codes = {i: code for code, i in (settings.lang_to_id or {}).items()}
    if settings.lang_to_id is not None and base.languages and codes != base.languages:
        return None
    suppress = (settings.suppress_tokens, settings.begin_suppress_tokens)
    lists = [
        None if tokens is not None and {*tokens} == {*default} else tokens
        for tokens, default in zip(suppress, suppressed(tasks), strict=True)
    ]
    result = base
    if lists != [None, None]:
        result = replace(base, suppressed=lists[0], suppressed_first=lists[1])
    if settings.is_multilingual is False and base.languages:
        plain = replace(tasks, language=None, task=None)
        single: dict[str, Any] = {"languages": {}, "tasks": TASKS[:1]}
        result = replace(result, make_tokenizer=lambda *_: plain, **single)
    return result


# -- other tables ----------------------------------------------------------------------------------


def _of_tokens(
    folder: Path, dims: Dims, tokens: Tokens, settings: GenerationSettings
) -> Vocabulary:
    ids = with_new_names(tokens.ids)
    size = dims.n_vocab
    too_large = [name for name, i in ids.items() if not 0 <= i < size]
    if too_large:
        what = f"the tokenizer's token {too_large[0][:40]!r} has id {ids[too_large[0]]}"
        raise load_error(f"{folder}: {what}, but the model has {size} tokens; {_COPY}")

    named = {  # by the settings, else by the tokenizer
        "<|endoftext|>": settings.eos_token_id,
        "<|startoftranscript|>": settings.decoder_start_token_id,
        "<|startoflm|>": None,
        "<|startofprev|>": settings.prev_sot_token_id,
        "<|nospeech|>": None,
        "<|notimestamps|>": settings.no_timestamps_token_id,
    }
    ids_by_name = {name: ids.get(name) if i is None else i for name, i in named.items()}
    special = {name: i for name, i in ids_by_name.items() if i is not None}
    for name in ("<|endoftext|>", "<|startoftranscript|>"):
        if name not in special:
            sources = f"neither the tokenizer nor {settings.file or 'a settings file'}"
            raise load_error(f"{folder}: {sources} defines {name}; {_COPY}")
    eot, sot = special["<|endoftext|>"], special["<|startoftranscript|>"]
    timestamps = _timestamps(ids, ids_by_name["<|notimestamps|>"], size)
    named_tasks = {task: ids[f"<|{task}|>"] for task in TASKS if f"<|{task}|>" in ids}
    tasks = named_tasks | {k: i for k, i in (settings.task_to_id or {}).items() if k in TASKS}
    languages = _languages(ids, sot, min(tasks.values(), default=size), settings)
    if settings.is_multilingual is False:
        languages, tasks = {}, {}
    special |= {f"<|{name}|>": i for name, i in tasks.items()}
    special |= {f"<|{code}|>": i for i, code in languages.items()}
    core = {*special.values(), *timestamps}
    texts = ranges_of(i for n, i in tokens.ids.items() if n not in tokens.special and i not in core)
    if not texts:
        raise load_error(f"{folder}: the tokenizer has no text tokens; copy it again")

    from slimwhisper.tokens.tokenizer import FolderEncoding, FolderTokenizer

    # read it now, so that a damaged file is refused when the model is loaded
    no_text = {name for name, i in tokens.ids.items() if not any(i in part for part in texts)}
    encoding = FolderEncoding(fast_tokenizer(folder, tokens, no_text), eot, size)

    @lru_cache(maxsize=256)
    def tokenizer(language: str | None, task: str) -> "Tokenizer":
        chosen = task if task in tasks else None
        return FolderTokenizer(encoding, special, texts, timestamps, languages, language, chosen)

    return Vocabulary(
        size=size,
        eot=eot,
        sot=sot,
        no_speech=ids_by_name["<|nospeech|>"],
        no_timestamps=ids_by_name["<|notimestamps|>"],
        timestamps=timestamps,
        languages=languages,
        texts=texts,
        make_tokenizer=tokenizer,
        tasks=tuple(tasks),
        sot_prev=ids_by_name["<|startofprev|>"],
        suppressed=settings.suppress_tokens,
        suppressed_first=settings.begin_suppress_tokens,
    )


def _timestamps(ids: Mapping[str, int], no_timestamps: int | None, size: int) -> range:
    """The timestamps by their names, or, in older folders, which do not name them, those after
    <|notimestamps|>. Empty if there are none.
    """
    begin = ids.get("<|0.00|>")
    if begin is not None:
        count = 1
        while ids.get(f"<|{count * 0.02:.2f}|>") == begin + count:
            count += 1
        return range(begin, begin + count)
    if no_timestamps is not None and no_timestamps + 1 + TIMESTAMPS <= size:
        following = range(no_timestamps + 1, no_timestamps + 1 + TIMESTAMPS)
        if not any(i in following for i in ids.values()):
            return following
    return range(size, size)


def _languages(
    ids: Mapping[str, int], sot: int, first_task: int, settings: GenerationSettings
) -> dict[int, str]:
    """Token -> code: those of the settings, else Whisper's codes and others between <|start...|>
    and the tasks.
    """
    from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES

    if settings.lang_to_id is not None:
        return {i: code for code, i in sorted(settings.lang_to_id.items(), key=lambda p: p[1])}
    languages = {}
    for name, i in ids.items():
        code = _LANGUAGE.fullmatch(name)
        if code and (code[1] in LANGUAGES or sot < i < first_task):
            languages[i] = code[1]
    return dict(sorted(languages.items()))


def _with_forced(vocabulary: Vocabulary, settings: GenerationSettings) -> GenerationSettings:
    """The settings with the language and task that forced_decoder_ids mean. `language` and `task`
    have priority, as in transformers; <|notimestamps|> is ignored, as segments are cut at
    timestamps.
    """
    if settings.language is not None or settings.task is not None:
        return settings
    tokenizer = vocabulary.tokenizer()
    tasks = {getattr(tokenizer, task): task for task in vocabulary.tasks}
    changes: dict[str, Any] = {}
    for _, token in settings.forced:
        if token in vocabulary.languages:
            changes["language"] = vocabulary.languages[token]
        elif token is not None and token in tasks:
            changes["task"] = tasks[token]
        elif token not in (None, vocabulary.no_timestamps):
            row = Setting("forced_decoder_ids", str(token), "not followed", followed=False)
            changes["ignored"] = (*settings.ignored, row)
    return replace(settings, **changes)
