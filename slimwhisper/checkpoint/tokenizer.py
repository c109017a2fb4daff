"""Reads a folder's tokenizer: tokenizer.json, or the older files that it replaced."""

import json
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slimwhisper.checkpoint.errors import load_error
from slimwhisper.checkpoint.files import inside, read_json_of, reading

if TYPE_CHECKING:  # it takes a moment to import
    from tokenizers import Tokenizer as FastTokenizer

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
        from slimwhisper.tokens.byte_level import byte_level_tokenizer

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
