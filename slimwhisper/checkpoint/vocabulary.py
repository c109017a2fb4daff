"""Reads the vocabulary of a Hugging Face folder from its tokenizer (tokenizer.json, or the older
files that it replaced) and its settings.

If the tokens are those of openai-whisper's table, that table is used, because it is faster.
Otherwise `tokenizers` reads the folder's files.
"""

import json
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.checkpoint.files import inside, load_error, read_json_of, reading
from slimwhisper.checkpoint.settings import GenerationSettings, Setting
from slimwhisper.option_group import TASKS
from slimwhisper.tokens.vocabulary import (
    SIZES,
    Tokenizer,
    Vocabulary,
    get_tokenizer,
    get_vocabulary,
    is_openai_table,
    ranges_of,
    suppressed,
    with_new_names,
)
from slimwhisper.types import TIMESTAMPS, Dims

if TYPE_CHECKING:  # it takes a moment to import
    from tokenizers import Tokenizer as FastTokenizer


OTHER_TABLE = "its vocabulary is not OpenAI's; use the Hugging Face folder that it was made from"
TOKENIZER = "tokenizer.json"
# older folders have these instead; normalizer.json is for scoring texts, and is not needed
VOCABULARY, MERGES = "vocab.json", "merges.txt"
ADDED, SPECIAL = "added_tokens.json", "special_tokens_map.json"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a folder's files."""

    ids: Mapping[str, int]  # of all tokens, by name
    special: frozenset[str]  # no text
    # with these tokens as no text; raises Exception for files that do not fit together
    make: Callable[[Set[str]], "FastTokenizer"]


def read_tokens(folder: Path) -> Tokens | None:
    """None: the folder has no tokenizer. Raises CheckpointError."""
    content = read_json_of(folder, TOKENIZER)
    if content is None:
        return _read_older(folder)
    with reading(folder / TOKENIZER, "not a tokenizer file"):
        table, added = content["model"]["vocab"], content.get("added_tokens") or []
        if isinstance(table, list):  # of [name, score]
            table = {entry[0]: i for i, entry in enumerate(table)}
        ids = {str(name): int(i) for name, i in table.items()}
        ids |= {str(a["content"]): int(a["id"]) for a in added}
        special = frozenset(str(a["content"]) for a in added if a.get("special", False))

    def make(special: Set[str]) -> "FastTokenizer":
        from tokenizers import Tokenizer as FastTokenizer

        rows = [a | {"special": a["content"] in special} for a in added]
        return FastTokenizer.from_str(json.dumps(content | {"added_tokens": rows}))

    return Tokens(ids, special, make)


def _read_older(folder: Path) -> Tokens | None:
    table = read_json_of(folder, VOCABULARY)
    if table is None:
        return None
    merges_file = inside(folder, MERGES)
    if not merges_file.is_file():
        raise load_error(f"{folder}: has {VOCABULARY} but not {MERGES}; copy the tokenizer again")
    with reading(folder / VOCABULARY, f"this, {MERGES} or {ADDED} is damaged"):
        lines = merges_file.read_text(encoding="utf-8").split("\n")
        ids = {name: int(i) for name, i in table.items()}
        more = {n: int(i) for n, i in (read_json_of(folder, ADDED) or {}).items()}
    named = json.dumps(read_json_of(folder, SPECIAL) or {})
    every = ids | more
    special = {name for name in more if json.dumps(name) in named}
    special |= {name for name in every if re.fullmatch(r"<\|.*\|>", name)}

    def make(special: Set[str]) -> "FastTokenizer":
        from slimwhisper.tokens.tokenizer import byte_level_tokenizer

        pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        merges = [(first, second) for first, second in pairs]
        added = sorted(special | more.keys(), key=every.__getitem__)
        return byte_level_tokenizer(ids, merges, {name: name in special for name in added})

    return Tokens(every, frozenset(special), make)


def fast_tokenizer(folder: Path, tokens: Tokens, special: Set[str]) -> "FastTokenizer":
    """The tokenizer, with exactly the ids in the files. Raises CheckpointError.

    special: the tokens that are no text. In a text, their names are text all the same.
    """
    try:
        fast = tokens.make(special)
    except Exception as error:  # it raises plain Exceptions
        reason = " ".join(str(error).split())[:200]
        message = f"{folder}: the tokenizer cannot be read: {reason}; copy it again"
        raise load_error(message) from error
    fast.encode_special_tokens = True
    for name, i in tokens.ids.items():
        if fast.token_to_id(name) != i:
            what = f"{name[:40]!r} should have id {i}, but ids before it are missing"
            raise load_error(f"{folder}: the tokenizer's token {what}; save the tokenizer again")
    return fast


_LANGUAGE = re.compile(r"<\|([a-z]{2,3}(?:[-_][A-Za-z]{2,8})?)\|>")
_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
_TASKS = tuple(f"<|{task}|>" for task in TASKS)
_MARKS = {  # whisper's name: the setting that chooses it
    "<|endoftext|>": "eos_token_id",
    "<|startoftranscript|>": "decoder_start_token_id",
    "<|startoflm|>": None,
    "<|startofprev|>": "prev_sot_token_id",
    "<|nospeech|>": None,
    "<|notimestamps|>": "no_timestamps_token_id",
}
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
    whispers = get_tokenizer(dims)
    chosen = _chosen_by(settings)
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
        single: dict[str, Any] = {"languages": {}, "tasks": TASKS[:1]}
        result = replace(result, make_tokenizer=lambda *_: plain, **single)
    return result


# -- other tables ----------------------------------------------------------------------------------


def _chosen_by(settings: GenerationSettings) -> dict[str, int]:
    """The marks and tasks that the settings define, by whisper's names."""
    ids = {name: getattr(settings, key) for name, key in _MARKS.items() if key is not None}
    ids |= {f"<|{task}|>": i for task, i in (settings.task_to_id or {}).items()}
    return {n: i for n, i in ids.items() if i is not None and (n in _MARKS or n in _TASKS)}


def _of_tokens(
    folder: Path, dims: Dims, tokens: Tokens, settings: GenerationSettings
) -> Vocabulary:
    ids, size = with_new_names(tokens.ids), dims.n_vocab
    if too_large := [name for name, i in ids.items() if not 0 <= i < size]:
        what = f"the tokenizer's token {too_large[0][:40]!r} has id {ids[too_large[0]]}"
        raise load_error(f"{folder}: {what}, but the model has {size} tokens; {_COPY}")
    chosen = {name: ids[name] for name in (*_MARKS, *_TASKS) if name in ids}
    chosen |= _chosen_by(settings)
    for name in ("<|endoftext|>", "<|startoftranscript|>"):
        if name not in chosen:
            sources = f"neither the tokenizer nor {settings.file or 'a settings file'}"
            raise load_error(f"{folder}: {sources} defines {name}; {_COPY}")
    timestamps = _timestamps(ids, chosen.get("<|notimestamps|>"), size)
    languages = _languages(ids, chosen, size, settings)
    special = {**chosen, **{f"<|{code}|>": i for i, code in languages.items()}}
    if settings.is_multilingual is False:
        languages, special = {}, {name: i for name, i in chosen.items() if name in _MARKS}
    tasks = tuple(task for task in TASKS if f"<|{task}|>" in special)
    core = {*special.values(), *timestamps}
    texts = ranges_of(i for n, i in tokens.ids.items() if n not in tokens.special and i not in core)
    if not texts:
        raise load_error(f"{folder}: the tokenizer has no text tokens; copy it again")

    from slimwhisper.tokens.tokenizer import FolderEncoding, FolderTokenizer

    # read it now, so that a damaged file is refused when the model is loaded
    no_text = {name for name, i in tokens.ids.items() if not any(i in part for part in texts)}
    eot = special["<|endoftext|>"]
    encoding = FolderEncoding(fast_tokenizer(folder, tokens, no_text), eot, size)

    @lru_cache(maxsize=256)
    def tokenizer(language: str | None, task: str) -> Tokenizer:
        chosen = task if task in tasks else None
        return FolderTokenizer(encoding, special, texts, timestamps, languages, language, chosen)

    return Vocabulary(
        size=size,
        eot=eot,
        sot=special["<|startoftranscript|>"],
        no_speech=special.get("<|nospeech|>"),
        no_timestamps=special.get("<|notimestamps|>"),
        timestamps=timestamps,
        languages=languages,
        texts=texts,
        make_tokenizer=tokenizer,
        tasks=tasks,
        sot_prev=special.get("<|startofprev|>"),
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
    ids: Mapping[str, int], special: Mapping[str, int], size: int, settings: GenerationSettings
) -> dict[int, str]:
    """Token -> code: those of the settings, else Whisper's codes and others between <|start...|>
    and the tasks.
    """
    from slimwhisper.tokens.languages import LANGUAGES

    if settings.lang_to_id is not None:
        return {i: code for code, i in sorted(settings.lang_to_id.items(), key=lambda p: p[1])}
    first_task = min((special[name] for name in _TASKS if name in special), default=size)
    between = range(special["<|startoftranscript|>"] + 1, first_task)
    named = {i: match[1] for name, i in ids.items() if (match := _LANGUAGE.fullmatch(name))}
    return {i: code for i, code in sorted(named.items()) if code in LANGUAGES or i in between}


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
