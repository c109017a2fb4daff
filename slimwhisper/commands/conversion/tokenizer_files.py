"""Makes the tokenizer files of a Hugging Face folder from OpenAI's tokenizer."""

import json
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tokenizers import processors

from slimwhisper.tokens.byte_level import byte_level_tokenizer
from slimwhisper.tokens.openai import special_tokens, spelled, text_tokens

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

END, START = "<|endoftext|>", "<|startoftranscript|>"
NO_TIMESTAMPS, FIRST_TIMESTAMP = "<|notimestamps|>", "<|0.00|>"
PLAIN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
ENDS = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), END)


def merge_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens whose merge makes this one; None for a single byte, or if none does.

    Byte-pair encoding merges the neighbours of lowest rank first, so the last merge that leads to
    the token is found by encoding it with the tokens of lower rank.
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pair_ranks = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
        lowest = min(pair_ranks)
        if lowest >= ranks[token]:
            return None
        i = pair_ranks.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def tokenizer_files(tokenizer: "Tokenizer", n_text_ctx: int) -> dict[str, str]:
    """File name -> content: the tables, in the formats that old and new `transformers` read."""
    texts = text_tokens(tokenizer)
    ranks = {token: i for i, token in enumerate(texts)}
    pairs = (merge_of(token, ranks) for token in texts)
    merges = [(spelled(a), spelled(b)) for a, b in filter(None, pairs)]
    special = special_tokens(tokenizer)
    vocabulary = {spelled(token): i for i, token in enumerate(texts)} | {END: special[END]}
    controls = [token for token, i in special.items() if i < special[FIRST_TIMESTAMP]]
    fast = byte_level_tokenizer(vocabulary, merges, {t: t in controls for t in special})
    fast.post_processor = processors.TemplateProcessing(
        single=f"{START} {NO_TIMESTAMPS} $A {END}",
        pair=f"{START} {NO_TIMESTAMPS} $A $B:1 {END}",
        special_tokens=[(token, special[token]) for token in (START, NO_TIMESTAMPS, END)],
    )
    added = {i: PLAIN | {"content": t, "special": t in controls} for t, i in special.items()}
    configuration = ENDS | {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": controls,
        "clean_up_tokenization_spaces": False,  # whisper's texts are not cleaned up
        "errors": "replace",
        "model_max_length": n_text_ctx,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "tokenizer_class": "WhisperTokenizer",
    }
    spellings = files("whisper.normalizers").joinpath("english.json").read_text(encoding="utf-8")
    return {
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False),
        "merges.txt": "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]),
        "added_tokens.json": _pretty({t: i for t, i in special.items() if t != END}),
        "normalizer.json": spellings,
        "special_tokens_map.json": _pretty(ENDS | {"additional_special_tokens": controls}),
        "tokenizer_config.json": _pretty(configuration),
        "tokenizer.json": fast.to_str(),
    }


def _pretty(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
