"""OpenAI's tokenizer as the files of a Hugging Face folder."""

import json
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from slimwhisper.tokens.openai import special_tokens, spelled, text_tokens

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

END, START = "<|endoftext|>", "<|startoftranscript|>"
NO_TIMESTAMPS, FIRST_TIMESTAMP = "<|notimestamps|>", "<|0.00|>"
PLAIN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def merge_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens whose merge makes this one; None for a single byte, or if none does.

    Byte-pair encoding merges the neighbours of lowest rank first, so the last merge that leads to
    the token is found by encoding it with the tokens of lower rank.
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        found = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
        lowest = min(found)
        if lowest >= ranks[token]:
            return None
        i = found.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def tokenizer_files(tokenizer: "Tokenizer", n_text_ctx: int) -> dict[str, str]:
    """File name -> content: the tables, in the spellings that old and new `transformers` read."""
    texts = text_tokens(tokenizer)
    ranks = {token: i for i, token in enumerate(texts)}
    found = (merge_of(token, ranks) for token in texts)
    merges = [(spelled(a), spelled(b)) for a, b in filter(None, found)]
    special = special_tokens(tokenizer)
    vocabulary = {spelled(token): i for i, token in enumerate(texts)} | {END: special[END]}
    added = {token: i for token, i in special.items() if token != END}
    controls = [token for token, i in special.items() if i < special[FIRST_TIMESTAMP]]
    spellings = files("whisper.normalizers").joinpath("english.json").read_text(encoding="utf-8")
    return {
        "vocab.json": _compact(vocabulary),
        "merges.txt": "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]),
        "added_tokens.json": _pretty(added),
        "normalizer.json": spellings,
        "special_tokens_map.json": _pretty(_special_map(controls)),
        "tokenizer_config.json": _pretty(_configuration(special, controls, n_text_ctx)),
        "tokenizer.json": _compact(_fast(vocabulary, merges, special, controls)),
    }


def _special_map(controls: list[str]) -> dict[str, Any]:
    end = PLAIN | {"content": END}
    return {
        "additional_special_tokens": controls,
        "bos_token": end,
        "eos_token": end,
        "pad_token": END,
        "unk_token": end,
    }


def _configuration(special: dict[str, int], controls: list[str], n_text_ctx: int) -> dict[str, Any]:
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(i): PLAIN | {"content": token, "special": token in controls}
            for token, i in special.items()
        },
        "additional_special_tokens": controls,
        "bos_token": END,
        "clean_up_tokenization_spaces": False,  # whisper's texts are not cleaned up
        "eos_token": END,
        "errors": "replace",
        "model_max_length": n_text_ctx,
        "pad_token": END,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "tokenizer_class": "WhisperTokenizer",
        "unk_token": END,
    }


def _fast(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    special: dict[str, int],
    controls: list[str],
) -> dict[str, Any]:
    """tokenizer.json, the format of the package `tokenizers`."""
    begin = [START, NO_TIMESTAMPS]
    frame = [{"SpecialToken": {"id": token, "type_id": 0}} for token in [*begin, END]]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    bytes_["use_regex"] = True  # GPT-2's expression, which is whisper's
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, "special": token in controls} | PLAIN
            for token, i in special.items()
        ],
        "normalizer": None,
        "pre_tokenizer": bytes_,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*frame[:2], {"Sequence": {"id": "A", "type_id": 0}}, frame[2]],
            "pair": [
                *frame[:2],
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
                frame[2],
            ],
            "special_tokens": {
                token: {"id": token, "ids": [special[token]], "tokens": [token]}
                for token in [*begin, END]
            },
        },
        "decoder": bytes_,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [" ".join(pair) for pair in merges],
        },
    }


def _compact(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"


def _pretty(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
