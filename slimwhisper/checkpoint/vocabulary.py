"""The vocabulary of a Hugging Face folder: its tokenizer's tokens, and what its settings say.

Where the tokens are those of openai-whisper's table, that table serves: it is faster. Otherwise
`tokenizers` reads the folder's files.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.settings import Setting, Settings
from slimwhisper.checkpoint.tokenizer import TOKENIZER, Tokens, fast_tokenizer, read_tokens
from slimwhisper.tokens.openai import OLD_NAMES, full_table, is_openai_table, suppressed
from slimwhisper.tokens.vocabulary import (
    SIZES,
    TASKS,
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
_STAMP = re.compile(r"<\|\d+\.\d\d\|>")


def read_vocabulary(folder: Path, dims: Dims, settings: Settings) -> tuple[Vocabulary, Settings]:
    """A folder's vocabulary, and the settings with what its `forced` tokens mean.

    Raises CheckpointError in one line.
    """
    tokens = read_tokens(folder)
    if tokens is None and dims.n_vocab not in SIZES:
        raise problem(
            f"{folder}: no {TOKENIZER}, and a vocabulary of {dims.n_vocab} is not one of Whisper's "
            f"own {SIZES}; copy the tokenizer's files there too"
        )
    own = dims.n_vocab in SIZES and (tokens is None or _is_whispers(tokens, dims))
    found = _whispers(dims, settings) if own else None
    if found is None:
        if tokens is None:
            raise problem(
                f"{folder / settings.file}: its token ids are not Whisper's, and there is no "
                f"{TOKENIZER}; copy the tokenizer's files there too"
            )
        found = _of_tokens(folder, dims, tokens, settings)
    return found, _with_forced(found, settings)


# -- openai-whisper's table ------------------------------------------------------------------------


def _is_whispers(tokens: Tokens, dims: Dims) -> bool:
    """Whether they are openai-whisper's, with all special tokens; timestamps may be left out."""
    t = get_tokenizer(dims)
    named = {OLD_NAMES.get(name, name) for name in tokens.ids}
    special = {name for name in t.special_tokens if not _STAMP.fullmatch(name)}
    return special <= named and is_openai_table(tokens.ids, full_table(t))


def _whispers(dims: Dims, settings: Settings) -> Vocabulary | None:
    """openai-whisper's vocabulary as the settings want it; None if they name other tokens."""
    base = get_vocabulary(dims)
    tasks = get_tokenizer(dims)
    wanted = {
        base.eot: settings.eos_token_id,
        base.sot: settings.decoder_start_token_id,
        base.no_timestamps: settings.no_timestamps_token_id,
        base.sot_prev: settings.prev_sot_token_id,
    }
    if any(given not in (None, ours) for ours, given in wanted.items()):
        return None
    for task, token in (settings.task_to_id or {}).items():
        if task in TASKS and token != getattr(tasks, task):
            return None
    codes = settings.lang_to_id
    if codes is not None and base.languages and {i: c for c, i in codes.items()} != base.languages:
        return None
    given = (settings.suppress_tokens, settings.begin_suppress_tokens)
    lists = [
        None if i is not None and {*i} == {*own} else i
        for i, own in zip(given, suppressed(tasks), strict=True)
    ]
    found = base
    if lists != [None, None]:
        found = replace(base, suppressed=lists[0], suppressed_first=lists[1])
    if settings.is_multilingual is False and base.languages:
        plain = replace(tasks, language=None, task=None)
        found = replace(
            found, languages={}, tasks=TASKS[:1], make_tokenizer=lambda language, task: plain
        )
    return found


# -- other tables ----------------------------------------------------------------------------------


def _of_tokens(folder: Path, dims: Dims, tokens: Tokens, settings: Settings) -> Vocabulary:
    ids = {OLD_NAMES.get(name, name): i for name, i in tokens.ids.items()}
    size = dims.n_vocab
    beyond = [name for name, i in ids.items() if not 0 <= i < size]
    if beyond:
        raise problem(
            f"{folder}: the tokenizer's token {beyond[0][:40]!r} is {ids[beyond[0]]}, and the "
            f"model has {size} tokens; copy the tokenizer of this model"
        )

    named = {  # as the settings say, else as the tokenizer does
        "<|endoftext|>": settings.eos_token_id,
        "<|startoftranscript|>": settings.decoder_start_token_id,
        "<|startoflm|>": None,
        "<|startofprev|>": settings.prev_sot_token_id,
        "<|nospeech|>": None,
        "<|notimestamps|>": settings.no_timestamps_token_id,
    }
    found = {name: ids.get(name) if i is None else i for name, i in named.items()}
    special = {name: i for name, i in found.items() if i is not None}
    for name in ("<|endoftext|>", "<|startoftranscript|>"):
        if name not in special:
            raise problem(
                f"{folder}: the tokenizer has no {name}, and no {settings.file} names it; copy the "
                "tokenizer of this model"
            )
    eot, sot = special["<|endoftext|>"], special["<|startoftranscript|>"]
    timestamps = _timestamps(ids, found["<|notimestamps|>"], size)
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
        raise problem(f"{folder}: the tokenizer has no token of text; copy it again")

    from slimwhisper.tokens.tokenizer import Encoding, FolderTokenizer

    # now, so that a damaged file is refused when the model is loaded
    encoding = Encoding(fast_tokenizer(folder, tokens), eot, size)

    @lru_cache(maxsize=256)
    def tokenizer(language: str | None, task: str) -> "Tokenizer":
        chosen = task if task in tasks else None
        return FolderTokenizer(encoding, special, texts, timestamps, languages, language, chosen)

    return Vocabulary(
        size=size,
        eot=eot,
        sot=sot,
        no_speech=found["<|nospeech|>"],
        no_timestamps=found["<|notimestamps|>"],
        timestamps=timestamps,
        languages=languages,
        texts=texts,
        make_tokenizer=tokenizer,
        tasks=tuple(tasks),
        sot_prev=found["<|startofprev|>"],
        suppressed=settings.suppress_tokens,
        suppressed_first=settings.begin_suppress_tokens,
    )


def _timestamps(ids: Mapping[str, int], no_timestamps: int | None, size: int) -> range:
    """By their names; where those are not in the file, as in older folders, behind
    <|notimestamps|>. Empty if there are none.
    """
    begin = ids.get("<|0.00|>")
    if begin is not None:
        count = 1
        while ids.get(f"<|{count * 0.02:.2f}|>") == begin + count:
            count += 1
        return range(begin, begin + count)
    if no_timestamps is not None and no_timestamps + 1 + TIMESTAMPS <= size:
        behind = range(no_timestamps + 1, no_timestamps + 1 + TIMESTAMPS)
        if not any(i in behind for i in ids.values()):
            return behind
    return range(size, size)


def _languages(
    ids: Mapping[str, int], sot: int, first_task: int, settings: Settings
) -> dict[int, str]:
    """Token -> code: those of the settings, else Whisper's codes and others between <|start...|>
    and the tasks.
    """
    from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES

    if settings.lang_to_id is not None:
        return {i: code for code, i in sorted(settings.lang_to_id.items(), key=lambda p: p[1])}
    found = {}
    for name, i in ids.items():
        code = _LANGUAGE.fullmatch(name)
        if code and (code[1] in LANGUAGES or sot < i < first_task):
            found[i] = code[1]
    return dict(sorted(found.items()))


def _with_forced(vocabulary: Vocabulary, settings: Settings) -> Settings:
    """What forced_decoder_ids mean: a language and a task. `language` and `task` go first, as in
    transformers; <|notimestamps|> is not followed, as segments are cut at timestamps.
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
