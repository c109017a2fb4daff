"""Knows the cross-attention heads that follow the audio, from which word timestamps are read."""

import base64
import gzip
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slimwhisper.checkpoint.names import ALIGNMENT_DUMPS
from slimwhisper.errors import OptionError
from slimwhisper.types import Dims

Heads = Mapping[int, Sequence[int]]  # decoder layer: its heads, both in order


def default_heads(dims: Dims) -> Heads:
    """All heads of the upper half of the layers, as in openai-whisper for unknown weights."""
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return {layer: range(dims.n_text_head) for layer in layers}


def official_heads(name: str, dims: Dims) -> Heads | None:
    """The heads that OpenAI found for one of its checkpoints; None for other names."""
    dump = ALIGNMENT_DUMPS.get(name)
    return None if dump is None else parse_head_dump(dump, dims)


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
    return _by_layer(pairs)


def parse_head_pairs(pairs: Any, dims: Dims) -> Heads | None:
    """The heads of a folder's "alignment_heads", [layer, head] each; None if they are not valid."""
    try:
        valid = [(int(layer), int(head)) for layer, head in pairs]
    except (ValueError, TypeError, OverflowError):
        return None
    layers, heads = range(dims.n_text_layer), range(dims.n_text_head)
    if not valid or any(layer not in layers or head not in heads for layer, head in valid):
        return None
    return _by_layer(valid)


def head_pairs(heads: Heads) -> list[list[int]]:
    """The heads as files have them: [layer, head] each, in order."""
    return [[layer, head] for layer in sorted(heads) for head in heads[layer]]


def _by_layer(pairs: Sequence[Sequence[int]]) -> Heads:
    by_layer: dict[int, list[int]] = {}
    for layer, head in sorted((layer, head) for layer, head in pairs):
        by_layer.setdefault(layer, []).append(head)
    return by_layer
