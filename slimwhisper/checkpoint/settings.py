"""A model's own decoding settings; and the cross-attention heads that follow the audio, from which
word timestamps are read.

Names and meanings are those of transformers' `GenerationConfig`. Settings that a model does not
have are Whisper's.
"""

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from slimwhisper.errors import OptionError
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

    def rows(self) -> list[Setting]:
        """All its settings, in the order of docs/guides/models.md."""
        rows = []
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
            rows.append(Setting(name, text, done, row.metadata["flag"], followed))
        return [*rows, *self.ignored]


DEFAULT_SETTINGS = GenerationSettings()  # of a model without settings of its own
