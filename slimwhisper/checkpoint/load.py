"""A checkpoint as models are made of it, read from a file or a folder and checked; and the table of
readers, one for each format of checkpoints. With it come the model's own decoding settings, named
as in transformers' `GenerationConfig` (those that a model does not have are Whisper's), and the
heads of cross-attention that follow the audio, from which word timestamps are read.

`slimwhisper.formats` adds the readers for other programs' files, and finds a checkpoint by a name.
"""

import base64
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from slimwhisper.checkpoint import hugging_face
from slimwhisper.checkpoint.files import Contents, load_error, read_pickle, validate
from slimwhisper.errors import OptionError
from slimwhisper.tokens.vocabulary import SIZES, Vocabulary, get_vocabulary
from slimwhisper.types import POSITIONS_PER_SECOND, Dims

Heads = Mapping[int, Sequence[int]]  # decoder layer: its heads, both in order


def default_heads(dims: Dims) -> Heads:
    """All heads of the upper half of the layers, as in openai-whisper for unknown weights."""
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return {layer: range(dims.n_text_head) for layer in layers}


def parse_head_dump(dump: bytes, dims: Dims) -> Heads:
    """The heads of a dump in `whisper`'s format: base85 of gzipped booleans [layers, heads].

    Raises OptionError for an invalid dump, or for another model's.
    """
    try:
        flags = np.frombuffer(gzip.decompress(base64.b85decode(dump)), dtype=bool)
        pairs = np.argwhere(flags.reshape(dims.n_text_layer, dims.n_text_head)).tolist()
    except (ValueError, OSError, EOFError) as error:
        shape = f"{dims.n_text_layer} layers of {dims.n_text_head} heads"
        raise OptionError(f"alignment heads: not a dump for {shape}; give the model's") from error
    return heads_by_layer(pairs)


def head_pairs(heads: Heads) -> list[list[int]]:
    """The heads as files have them: [layer, head] each, in order."""
    return [[layer, head] for layer in sorted(heads) for head in heads[layer]]


def heads_by_layer(pairs: Sequence[Sequence[int]]) -> Heads:
    """The heads of pairs, [layer, head] each."""
    by_layer: dict[int, list[int]] = {}
    for layer, head in sorted((layer, head) for layer, head in pairs):
        by_layer.setdefault(layer, []).append(head)
    return by_layer


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a model, to be printed."""

    name: str
    value: str
    effect: str
    flag: str = ""  # of `slimwhisper transcribe`, which overrides it
    followed: bool = True

    def __str__(self) -> str:
        flag = f"; {self.flag} overrides it" if self.flag else ""
        return f"the model's {self.name}: {self.value} ({self.effect}{flag})"


def _shown(effect: str, flag: str = "") -> Any:
    """A field that is printed with its effect, and the flag of `transcribe` that overrides it."""
    return field(default=None, metadata={"effect": effect, "flag": flag})


_LATEST = "latest first timestamp, in steps of 20 ms"


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """A folder's settings for decoding; None: not set."""

    file: str = ""  # that the settings are from; empty: the folder has no such file
    suppress_tokens: tuple[int, ...] | None = _shown("never sampled", "--suppress_tokens")
    begin_suppress_tokens: tuple[int, ...] | None = _shown(
        "never sampled first", "--suppress_blank"
    )
    # a code or a name
    language: str | None = _shown("the language, instead of detecting it", "--language")
    task: str | None = _shown("the task", "--task")
    max_initial_timestamp_index: int | None = _shown(_LATEST, "--max_initial_timestamp")
    max_length: int | None = _shown("most tokens of a window", "--sample_len")
    return_timestamps: bool | None = _shown(
        "segments are cut at timestamps", "--without_timestamps"
    )
    is_multilingual: bool | None = _shown("languages and tasks are in the prompt or not")
    lang_to_id: Mapping[str, int] | None = _shown("their tokens")  # such as {"de": 50261}
    task_to_id: Mapping[str, int] | None = _shown("their tokens")  # such as {"transcribe": 50359}
    eos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    no_timestamps_token_id: int | None = _shown("timestamps follow it")
    prev_sot_token_id: int | None = None
    alignment_heads: Heads | None = _shown("attention heads for word timestamps")  # noqa: RUF009
    # of `AUDIO_WINDOWS`; slimwhisper's own, in either file
    audio_window: str | None = _shown("the length of windows", "--audio_window")
    forced: tuple[tuple[int, int | None], ...] = ()  # forced_decoder_ids: position, token
    ignored: tuple[Setting, ...] = ()  # cannot be followed

    def defaults(self, dims: Dims) -> dict[str, Any]:
        """The values for `Options` that it sets, for a model of these dimensions."""
        names = ("language", "task", "audio_window")
        defaults: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.max_initial_timestamp_index is not None:
            seconds = self.max_initial_timestamp_index / POSITIONS_PER_SECOND
            defaults["max_initial_timestamp"] = seconds
        if self.max_length is not None and self.max_length < dims.n_text_ctx // 2:
            defaults["sample_len"] = self.max_length
        return {name: value for name, value in defaults.items() if value is not None}

    def rows(self) -> Iterator[Setting]:
        """All its settings, in the order of docs/guides/models.md."""
        for row in fields(self):
            name, value, effect = row.name, getattr(self, row.name), row.metadata.get("effect")
            if effect is None or value is None or value == ():
                continue
            values = value if isinstance(value, tuple) else (value,)
            text = ", ".join(map(str, values))
            if name == "alignment_heads":
                text = str(sum(map(len, value.values())))
            elif isinstance(value, Mapping) or len(values) > 6:
                text = f"{len(value)} tokens"
            followed = name != "return_timestamps" or value
            done = effect if followed else f"not followed: {effect}"
            yield Setting(name, text, done, row.metadata["flag"], followed)
        yield from self.ignored


DEFAULT_SETTINGS = GenerationSettings()  # of a model without settings of its own


class Reader(Protocol):
    """What reads one format of checkpoints.

    A new format is an object with these methods, or a module with these functions, that is added by
    `register`.
    """

    def detect(self, path: Path) -> bool:
        """Return whether a file or a folder is in this format, by its content.

        Args:
            path: The file or the folder.

        Returns:
            Whether it is.
        """

    def read(self, path: Path) -> Contents:
        """Read a checkpoint. What is in it is checked later.

        Args:
            path: The file or the folder.

        Returns:
            The content.

        Raises:
            CheckpointError: When it cannot be read, or is in a variant of the format that is not
                supported.
        """


class OpenAI:
    """The `Reader` of OpenAI's .pt files."""

    def detect(self, path: Path) -> bool:
        """Whether it is a file; `read` says what is wrong with one in no other format."""
        return path.is_file()

    def read(self, path: Path) -> Contents:
        """{"dims", "model_state_dict"}: name -> tensor, matrices [out, in], mapped if possible; and
        the settings that stand beside them, which openai-whisper does not read: "audio_window", and
        "generation_config", as a folder's file of this name.
        """
        found = read_pickle(path)
        content = found if isinstance(found, dict) else {}
        dims, state = content.get("dims"), content.get("model_state_dict")
        names = [f.name for f in fields(Dims)]
        if not isinstance(dims, dict) or not isinstance(state, dict):
            missing = "no 'dims' and 'model_state_dict'"
            what = f"not an OpenAI Whisper checkpoint ({missing})"
            raise load_error(f"{path}: {what}; give one, or a folder")
        if set(dims) != set(names) or not all(type(v) is int for v in dims.values()):
            raise load_error(f"{path}: its 'dims' are not the ten whole numbers {', '.join(names)}")
        kept = content.get("generation_config", {})
        if not isinstance(kept, dict):
            raise load_error(f"{path}: its 'generation_config' is no dictionary; leave it out")
        return Contents(Dims(**dims), state, {"audio_window": content.get("audio_window")} | kept)


# the first that detects it reads; the last two detect any folder, and any file
READERS: list[Reader] = [hugging_face, OpenAI()]


def register(reader: Reader) -> None:
    """Add a format, which is tried before the others.

    Args:
        reader: The reader.
    """
    READERS.insert(0, reader)


def read(path: Path) -> Contents:
    """Read a checkpoint in any of the formats.

    Args:
        path: The file or the folder.

    Returns:
        The content.

    Raises:
        CheckpointError: When it cannot be read, or is in none of the formats.
    """
    for reader in READERS:
        if reader.detect(path):
            return reader.read(path)
    raise load_error(f"{path}: not a regular file; give a .pt file or a Hugging Face folder")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint.

    It has the tensors of `files.expected_shapes`. There may also be biases of keys, which change
    nothing, and `proj_out.weight`, [V, d], if the matrix of the logits is not the embedding of the
    tokens.

    Attributes:
        name: The model's name, followed by its adapter's name.
        dims: The dimensions of the model.
        state: The tensors by OpenAI's names, on the CPU and in the file's dtype. What an adapter
            changed is float32.
        alignment_heads: The heads that the times of words are read from, by their layer. None means
            `default_heads`.
        vocabulary: The vocabulary. None means that of the dimensions, `get_vocabulary`.
        settings: The settings for decoding that came with the model.
        folder: The Hugging Face folder that it was read from, if it was.
    """

    name: str
    dims: Dims
    state: Mapping[str, Tensor]
    alignment_heads: Heads | None = None
    vocabulary: Vocabulary | None = None
    settings: GenerationSettings = DEFAULT_SETTINGS
    folder: Path | None = None

    @property
    def tokens(self) -> Vocabulary:
        """The vocabulary of the model."""
        return self.vocabulary or get_vocabulary(self.dims)


def read_checkpoint(path: Path, label: str) -> Contents:
    """Read a checkpoint in any of the formats, and check its tensors.

    `slimwhisper.formats` reads the settings and the vocabulary.

    Args:
        path: The file or the folder.
        label: The name of the checkpoint, in messages.

    Returns:
        The content.

    Raises:
        CheckpointError: When it cannot be read, or is not a complete Whisper model.
        OSError: When the file or the folder is not readable.
    """
    found = read(path)
    size = found.dims.n_vocab
    if not path.is_dir() and size not in SIZES:
        what = f"{size} tokens is not one of Whisper's own {SIZES}"
        raise load_error(f"{label}: a vocabulary of {what}; give a folder with its tokenizer")
    validate(label, found.dims, found.state)
    return replace(found, state={name: t.detach() for name, t in found.state.items()})
