"""Hugging Face folders of tiny random models, with any vocabulary and any settings.

table = whisper_table(51_865, added=(" Zwiebelkuchen",))
folder = hf_folder(tmp_path / "model", table, generation={"language": "de"})
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from slimwhisper.tokens.vocabulary import get_tokenizer
from slimwhisper.types import TIMESTAMPS, Dims
from tests.support.checkpoints import State, hf_config, random_state, save_hf, tiny_dims

STAMPS = tuple(f"<|{i * 0.02:.2f}|>" for i in range(TIMESTAMPS))
BYTES = tuple(f"<0x{i:02X}>" for i in range(256))
TASKS = ("<|translate|>", "<|transcribe|>")
MARKS = ("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [b for b in range(256) if b not in PLAIN]
CHARACTERS = {b: chr(b) for b in PLAIN} | {b: chr(256 + n) for n, b in enumerate(OTHERS)}  # by byte
TEXT = (
    "the quick brown fox jumps over the lazy dog, and then it sleeps",
    "pack my box with five dozen liquor jugs; how vexingly quick daft zebras jump!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich",
)


def visible(data: bytes) -> str:
    """Bytes as byte-level tokenizers write them in their files."""
    return "".join(map(CHARACTERS.__getitem__, data))


@dataclass(frozen=True)
class Table:
    """The tokens of a vocabulary in the order of their ids, and the size of the embedding."""

    text: tuple[str, ...]  # as in vocab.json
    special: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    added: tuple[str, ...] = ()  # behind them all: text that a fine-tune added
    size: int = 0  # more than there are tokens: padded; 0: not
    first: bool = False  # special tokens go before the text
    pieces: bool = False  # as SentencePiece: a space is "▁", bytes without a piece are "<0x00>"

    @cached_property
    def ids(self) -> dict[str, int]:
        parts = (self.special, self.text) if self.first else (self.text, self.special)
        return {name: i for i, name in enumerate((*parts[0], *parts[1], *self.added))}

    @property
    def n_vocab(self) -> int:
        return self.size or len(self.ids)

    def content(self) -> dict[str, Any]:
        """tokenizer.json's, as `tokenizers` writes it. Timestamps are no special tokens there."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        ids, special = self.ids, {*self.special}.difference(STAMPS)
        vocab = {name: ids[name] for name in (*self.special * self.first, *self.text)}
        affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
        model = models.BPE(vocab, list(self.merges), byte_fallback=self.pieces, **affixes)
        tokenizer = Tokenizer(model)
        if self.pieces:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
            parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
            tokenizer.decoder = decoders.Sequence(parts)
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
        more = sorted((*self.special, *self.added), key=ids.__getitem__)
        tokenizer.add_tokens([AddedToken(n, special=n in special, normalized=False) for n in more])
        written: dict[str, Any] = json.loads(tokenizer.to_str())
        assert all(ids[token["content"]] == token["id"] for token in written["added_tokens"])
        return written

    def save(self, folder: Path) -> None:
        """tokenizer.json, and the little that transformers reads beside it."""
        (folder / "tokenizer.json").write_text(json.dumps(self.content()), encoding="utf-8")
        named = ("eos_token", "bos_token", "unk_token", "pad_token")
        about: dict[str, Any] = dict.fromkeys(named, "<|endoftext|>")
        about["tokenizer_class"] = "PreTrainedTokenizerFast" if self.pieces else "WhisperTokenizer"
        about["clean_up_tokenization_spaces"] = False
        (folder / "tokenizer_config.json").write_text(json.dumps(about))

    def save_older(self, folder: Path) -> None:
        """The files of before tokenizer.json. Only where special tokens come behind the text."""
        ids = self.ids
        (folder / "vocab.json").write_text(json.dumps({n: ids[n] for n in self.text}))
        merges = "".join(f"{a} {b}\n" for a, b in self.merges)
        (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
        more = {n: i for n, i in ids.items() if n not in self.text}
        (folder / "added_tokens.json").write_text(json.dumps(more))
        special = [name for name in self.special if name not in STAMPS]
        named = {"eos_token": "<|endoftext|>", "additional_special_tokens": special}
        (folder / "special_tokens_map.json").write_text(json.dumps(named))


@lru_cache(maxsize=4)
def whisper_table(n_vocab: int = 51_865, **changes: Any) -> Table:
    """openai-whisper's own tokens, in its order, without merges; `changes` of the `Table`."""
    dims = replace(tiny_dims(), n_vocab=n_vocab)
    tokenizer = get_tokenizer(dims)
    encoding, special = tokenizer.encoding, tokenizer.special_tokens
    text = tuple(visible(encoding.decode_single_token_bytes(i)) for i in range(tokenizer.eot))
    return replace(Table(text, tuple(sorted(special, key=special.__getitem__))), **changes)


@lru_cache(maxsize=4)
def trained_table(
    *,
    languages: tuple[str, ...] = ("en", "de", "xx"),
    tasks: tuple[str, ...] = TASKS,
    marks: tuple[str, ...] = MARKS,
    stamps: int = TIMESTAMPS,
    pieces: bool = False,
    **changes: Any,
) -> Table:
    """A byte-level BPE that `tokenizers` learned from a few lines, with special tokens behind.

    With `pieces`, one of SentencePiece's kind.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    if pieces:
        split, alphabet = pre_tokenizers.Metaspace(prepend_scheme="never"), []
    else:
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learned, unsplit = Tokenizer(models.BPE(byte_fallback=pieces)), list(BYTES) * pieces
    learned.pre_tokenizer = split
    trainer = trainers.BpeTrainer(
        vocab_size=320 + len(unsplit),
        initial_alphabet=alphabet,
        special_tokens=unsplit,
        show_progress=False,
    )
    learned.train_from_iterator(TEXT, trainer)
    model = json.loads(learned.to_str())["model"]
    text = tuple(sorted(model["vocab"], key=model["vocab"].__getitem__))
    codes = tuple(f"<|{code}|>" for code in languages)
    special = ("<|endoftext|>", "<|startoftranscript|>", *codes, *tasks, *marks, *STAMPS[:stamps])
    merges = tuple((a, b) for a, b in model["merges"])
    return replace(Table(text, special, merges, pieces=pieces), **changes)


def generation_of(table: Table) -> dict[str, Any]:
    """generation_config.json as Whisper's folders have it, for these tokens."""
    ids, eot = table.ids, table.ids.get("<|endoftext|>")
    eot_too = ("eos_token_id", "bos_token_id", "pad_token_id")
    tokens = dict.fromkeys(eot_too, eot) | {
        "decoder_start_token_id": ids.get("<|startoftranscript|>"),
        "no_timestamps_token_id": ids.get("<|notimestamps|>"),
        "prev_sot_token_id": ids.get("<|startofprev|>"),
    }
    codes = [n for n in table.special if "<|" == n[:2] and n[2:-2].isalpha() and len(n) <= 7]
    tasks = {n[2:-2]: ids[n] for n in TASKS if n in ids}
    languages = {n: ids[n] for n in codes if n not in (*TASKS, *MARKS)}
    multilingual: dict[str, Any] = {"is_multilingual": bool(languages)}
    multilingual |= {"lang_to_id": languages} if languages else {}
    multilingual |= {"task_to_id": tasks} if tasks else {}
    return {k: v for k, v in tokens.items() if v is not None} | multilingual


def dims_of(table: Table, **changes: Any) -> Dims:
    dims = tiny_dims(width=32, audio_layers=1, text_layers=1, n_text_ctx=64)
    return replace(dims, n_vocab=table.n_vocab, **changes)


def weights_of(table: Table, dims: Dims) -> State:
    """Random weights whose greedy texts differ from window to window, and end."""
    # `random_state` knows Whisper's vocabulary
    state = random_state(replace(dims, n_vocab=tiny_dims().n_vocab), seed=0)
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(dims.n_vocab, dims.n_text_state, generator=generator)
    embedding[table.ids["<|endoftext|>"]] *= 1.8
    embedding[[table.ids[n] for n in STAMPS if n in table.ids]] *= 1.1
    state["decoder.token_embedding.weight"] = embedding
    return state


def hf_folder(
    folder: Path,
    table: Table,
    *,
    generation: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    preprocessor: Mapping[str, Any] | None = None,
    dims: Dims | None = None,
    older: bool = False,
    without: Sequence[str] = (),
) -> Path:
    """A folder as `save_pretrained` writes it. Entries of None are left out of the files.

    generation, config, preprocessor: changes of these files. older: the tokenizer in the files of
    before tokenizer.json. without: names of files that are removed again.
    """
    dims = dims or dims_of(table)
    save_hf(folder, dims, weights_of(table, dims))
    (table.save_older if older else table.save)(folder)
    ids = generation_of(table)
    tokens = ("decoder_start_token_id", "eos_token_id", "bos_token_id", "pad_token_id")
    widths = {f"{side}_ffn_dim": 4 * dims.n_text_state for side in ("encoder", "decoder")}
    base = hf_config(dims) | {k: ids[k] for k in tokens} | widths | {"max_length": None}
    audio = {"feature_size": dims.n_mels, "hop_length": 160, "chunk_length": 30, "n_fft": 400}
    audio |= {"sampling_rate": 16_000, "feature_extractor_type": "WhisperFeatureExtractor"}
    for name, content, changes in (
        ("config.json", base, config),
        ("generation_config.json", ids, generation),
        ("preprocessor_config.json", audio, preprocessor),
    ):
        kept = {k: v for k, v in (content | dict(changes or {})).items() if v is not None}
        (folder / name).write_text(json.dumps(kept))
    for name in without:
        (folder / name).unlink()
    return folder
