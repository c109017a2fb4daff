"""What the kernels of a GPU do, in PyTorch, from the very arguments of their launches.

For the pretend device: `WORK[kernel](arguments)` writes into the same buffers. The kernels
themselves are tested in tests/kernels.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slimwhisper.engine.filters import apply_timestamp_rules, log_probability
from slimwhisper.kernels.attention import FP8, CacheWrite, Latent, Reads, add_norm
from slimwhisper.kernels.gpu.combine import PartialSums
from slimwhisper.types import SpecialTokens
from tests.support.attention import combine_reference, heads_reference, latent_reference

Arguments = dict[str, Any]  # of a launch, by the kernel's names


def _reads(a: Arguments) -> Reads:
    return Reads(
        a["slots"] if a["has_slots"] else None,
        a["lengths"] if a["lengths_per_window"] else None,
        None,
        a["block_table"] if a["PAGE"] else None,
        a["positions"],
        a["bias"] if a.get("HAS_BIAS") else None,
    )


def _write(output: Tensor, a: Arguments) -> None:
    """output [N, h, d]: the result, or the first part of several, the others being empty."""
    if a["splits"] == 1 and "out" in a:
        a["out"].copy_(output)
        return
    a["sums"].fill_(float("nan"))  # an empty part's sum is never written
    a["sums"][:, 0] = output.flatten(0, 1)
    a["stats"][:, :, 0] = float("-inf")
    a["stats"][:, :, 1] = 0
    a["stats"][:, 0] = 1.0


def split_latent(a: Arguments) -> None:
    _attend(a, Latent(a["latent"]), _reads(a))


def _attend(a: Arguments, latent: Latent, reads: Reads) -> None:
    scale = a["scale_log2"] / math.log2(math.e)
    _write(latent_reference(a["queries"].float(), latent, scale, reads), a)


def hopper_latent(a: Arguments) -> None:
    """a: a launch's variant, buffers and numbers."""
    numbers, variant = a["numbers"], a["variant"]
    queries, values, factors, slots, block_table, lengths, sums, stats, out = a["buffers"]
    heads, group, positions, splits = numbers[-4:]
    assert queries.shape[1] == heads and len(queries) == a["grid"][0] * group
    reads = Reads(
        slots if len(slots) else None,
        lengths if len(lengths) else None,
        None,
        block_table if variant.page else None,
        positions,
    )
    launched = {"queries": queries, "scale_log2": numbers[8], "splits": splits}
    stored = {"sums": sums, "stats": stats}
    if variant.cluster:
        assert variant.cluster == splits
        stored, launched["splits"] = {"out": out}, 1
    _attend({**launched, **stored}, Latent(values, factors), reads)


def split_heads(a: Arguments) -> None:
    _write(heads_reference(a["queries"], a["keys"], a["values"], _reads(a)), a)


def combine(a: Arguments) -> None:
    combine_reference(PartialSums(a["sums"], a["stats"]), a["out"])


def combine_mapped(a: Arguments) -> None:
    maps, out = a["maps"], a["out"]
    whole = torch.empty((*out.shape[:2], maps.shape[2]), dtype=torch.float32)
    combine_reference(PartialSums(a["sums"], a["stats"]), whole)
    mixed = whole.to(maps.dtype).transpose(0, 1)
    out.copy_(torch.bmm(mixed, maps.transpose(1, 2)).transpose(0, 1))


def add_norm_(a: Arguments) -> None:
    write = None
    if a["HAS_WRITE"]:
        latent = Latent(a["cache"])
        column_scales = offset = None
        if a["FP8"]:
            latent = Latent(a["cache"].view(FP8), a["factors"])
            column_scales, offset = a["column_scales"], a["offset"]
        write = CacheWrite(latent, a["ids"], a["positions"], column_scales, offset)
    addend = a["addend"].clone() if a["HAS_ADDEND"] else None
    shift = a["shift"] if a["HAS_SHIFT"] else None
    total, normed = add_norm(a["x"], addend, a["weight"], a["bias"], write, shift)
    a["normed"].copy_(normed)
    if addend is not None:
        a["total"].copy_(total)


def choose_token(a: Arguments) -> None:
    logits = a["logits"].clone()
    flags = (a["enabled"].bool(), a["initial_limit"], a["last"].bool(), a["before_last"].bool())
    if a["RULES"]:
        state = *flags, a["latest"], a["count"]
        size, stamps = a["size"], range(a["begin"], a["end"])
        texts = tuple(r for r in (range(a["eot"]), range(stamps.stop, size)) if r)
        vocabulary = SpecialTokens(size, a["eot"], 0, a["no_timestamps"], stamps, {}, texts)
        apply_timestamp_rules(logits, state, vocabulary)
    tokens = logits.argmax(dim=-1)
    a["tokens"].copy_(tokens)
    a["logprobs"].copy_(log_probability(logits, tokens))


WORK: dict[str, Callable[[Arguments], None]] = {
    "split_latent": split_latent,
    "hopper_latent": hopper_latent,
    "split_heads": split_heads,
    "combine": combine,
    "combine_mapped": combine_mapped,
    "add_norm": add_norm_,
    "choose_token": choose_token,
}
