"""The files of a folder's tokenizer: tokenizer.json, or those of before it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import inside, read_json_of

TOKENIZER = "tokenizer.json"
# older folders have these instead; normalizer.json is for scoring texts, and is not needed
VOCABULARY, MERGES, ADDED, SPECIAL = (
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a folder's files."""

    content: Mapping[str, Any]  # of tokenizer.json, or the same made of the older files
    ids: Mapping[str, int]  # of all tokens, by name
    special: frozenset[str]  # no text


def has_tokenizer(folder: Path) -> bool:
    return (folder / TOKENIZER).is_file() or (folder / VOCABULARY).is_file()


def read_tokens(folder: Path) -> Tokens | None:
    """None: the folder has no tokenizer. Raises CheckpointError in one line."""
    content = read_json_of(folder, TOKENIZER)
    if content is not None:
        file = folder / TOKENIZER
        try:
            table, added = content["model"]["vocab"], content.get("added_tokens") or []
            if isinstance(table, list):  # of [name, score]
                table = {entry[0]: i for i, entry in enumerate(table)}
            ids = {str(name): int(i) for name, i in table.items()}
            ids |= {str(a["content"]): int(a["id"]) for a in added}
            special = frozenset(str(a["content"]) for a in added if a.get("special", False))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise problem(f"{file}: not a tokenizer's file; copy it again") from error
        return Tokens(content, ids, special)
    table = read_json_of(folder, VOCABULARY)
    if table is None:
        return None
    merges_file = inside(folder, MERGES)
    if not merges_file.is_file():
        raise problem(f"{folder}: {VOCABULARY} without {MERGES}; copy the tokenizer's files again")
    try:
        lines = merges_file.read_text(encoding="utf-8").split("\n")
        ids = {name: int(i) for name, i in table.items()}
        more = {n: int(i) for n, i in (read_json_of(folder, ADDED) or {}).items()}
    except (OSError, TypeError, ValueError) as error:
        files = f"{VOCABULARY}, {MERGES} or {ADDED}"
        raise problem(f"{folder}: {files} is damaged; copy them again") from error
    named = json.dumps(read_json_of(folder, SPECIAL) or {})
    listed = {name for name in more if json.dumps(name) in named}
    marked = listed.union(name for name in ids | more if re.fullmatch(r"<\|.*\|>", name))
    merges = [line for line in lines if line and not line.startswith("#version")]
    added = [(i, name) for name, i in (ids | more).items() if name in more or name in marked]
    content = _as_tokenizer_json(ids, merges, sorted(added), marked)
    return Tokens(content, ids | more, frozenset(marked))


def _as_tokenizer_json(
    ids: dict[str, int], merges: list[str], added: list[tuple[int, str]], special: set[str]
) -> dict[str, Any]:
    """A byte-level BPE tokenizer, as transformers makes one of the older files."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": name, "special": name in special} | flags for i, name in added
        ],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": None,
        "decoder": level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": merges},
    }


def fast_tokenizer(folder: Path, tokens: Tokens) -> Any:
    """The `tokenizers.Tokenizer`, with just the ids that the files give."""
    from tokenizers import Tokenizer as FastTokenizer

    try:
        fast = FastTokenizer.from_str(json.dumps(tokens.content))
    except Exception as error:  # it raises plain Exceptions
        reason = " ".join(str(error).split())[:200]
        raise problem(f"{folder}: the tokenizer cannot be read: {reason}; copy it again") from error
    for name, i in tokens.ids.items():
        if fast.token_to_id(name) != i:
            raise problem(
                f"{folder}: the tokenizer's token {name[:40]!r} should be {i}, and the tokens "
                "before it leave a gap; save the tokenizer again"
            )
    return fast
