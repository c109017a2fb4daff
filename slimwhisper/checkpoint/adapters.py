"""Adapters merged into a checkpoint's weights when it is loaded.

The result is the model that the adapter was trained as: each weight is computed in float64 and
rounded once, to float32. Whisper has one matrix for the tokens' embedding and the logits. An
adapter of the embedding alone does not change the logits' matrix, so then there are two.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from slimwhisper.checkpoint.adapter_files import Adapter
from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.formats.hugging_face import openai_name, tie_output
from slimwhisper.checkpoint.lora import Factors
from slimwhisper.checkpoint.validate import EMBEDDING, OUTPUT, check_numbers
from slimwhisper.errors import CheckpointError
from slimwhisper.types import Dims

_KEY = re.compile(
    r"(?P<module>.+?)\.(?P<part>"
    r"lora_A\.weight|lora_B\.(?:weight|bias)|lora_embedding_[AB]|lora_magnitude_vector(?:\.weight)?"
    r"|token_adapter\.trainable_tokens_delta|(?:base_layer\.|modules_to_save\.|original_module\.)?"
    r"(?:weight|bias))"
)
_ROWS = "token_adapter.trainable_tokens_delta"
_FOREIGN = "it is an adapter of another model"


@dataclass(frozen=True, slots=True)
class _Change:
    """What one adapter does to one module."""

    adapter: Adapter
    module: str  # transformers' name
    parts: dict[str, Tensor] = field(default_factory=dict)  # by PEFT's name in the module

    @property
    def weight(self) -> str:
        return openai_name(f"{self.module}.weight")

    @property
    def bias(self) -> str:
        return openai_name(f"{self.module}.bias")

    def given(self, kind: str) -> Tensor | None:
        """The "weight" or "bias", of its shape [...], that replaces the model's."""
        names = (kind, f"base_layer.{kind}", f"modules_to_save.{kind}")
        return next((self.parts[name] for name in names if name in self.parts), None)

    def is_listed(self, names: Sequence[str]) -> bool:
        return _is_listed(self.module, names)

    def wrong(self, what: str, remedy: str = _FOREIGN) -> CheckpointError:
        return problem(f"{self.adapter.file}: {self.module}: {what}; {remedy}")

    def factors(self) -> Factors | None:
        """Raises CheckpointError where one is missing, or they do not agree with the settings."""
        settings = self.adapter.settings
        embedding = self.weight == EMBEDDING
        a, b = (
            ("lora_embedding_A", "lora_embedding_B")
            if embedding
            else ("lora_A.weight", "lora_B.weight")
        )
        low_rank = [name for name in self.parts if name.startswith("lora_")]
        if not low_rank:
            return None
        missing = [n for n in (a, b) if n not in self.parts]
        if missing:
            raise self.wrong(f"has {low_rank[0]} and no {missing[0]}", "copy the adapter again")
        magnitude = self.parts.get("lora_magnitude_vector")
        if (magnitude is not None) != settings.dora:
            has = "has no" if magnitude is None else "has a"
            raise self.wrong(f"{has} magnitude, against use_dora in {settings.file.name}")
        rank, alpha = settings.of_module(self.module)
        found = Factors(
            self.parts[a], self.parts[b], alpha, settings.root, magnitude, embedding=embedding
        )
        if found.down.shape[0] != rank:
            raise self.wrong(
                f"has rank {found.down.shape[0]}, and {settings.file.name} says {rank}",
                "copy both files again",
            )
        return found


def merge_adapters(
    dims: Dims, state: Mapping[str, Tensor], adapters: Sequence[Adapter]
) -> tuple[Dims, dict[str, Tensor]]:
    """Merge adapters in order, each into the result of those before it.

    state: OpenAI's name -> tensor, matrices [out, in]; it stays as it is. Returns the dimensions,
    of which the vocabulary may have grown, and the new state; what was merged is float32, or
    float64 where it was before. Raises CheckpointError for tensors that do not fit.
    """
    merged = dict(state)
    groups: dict[str, list[list[_Change]]] = {}  # by weight, then by adapter
    for adapter in adapters:
        changes = _changes(adapter)
        _check_complete(adapter, changes, dims)
        own: dict[str, list[_Change]] = {}
        for change in changes:
            shared = change.weight in (EMBEDDING, OUTPUT)
            own.setdefault(OUTPUT if shared else change.weight, []).append(change)
        for weight, found in own.items():
            groups.setdefault(weight, []).append(found)
    for weight, in_order in groups.items():  # one weight at a time is in float64
        for found in in_order:
            if weight == OUTPUT:
                _merge_tokens(merged, found)
            else:
                _merge(merged, found[0])
        touched = {EMBEDDING, OUTPUT, in_order[0][0].weight, in_order[0][0].bias}
        for name in touched & merged.keys():
            merged[name] = _rounded(merged[name], state.get(name, state[EMBEDDING]))
    return replace(dims, n_vocab=merged[EMBEDDING].shape[0]), merged


def _rounded(tensor: Tensor, before: Tensor) -> Tensor:
    """tensor [...] float64 -> float32, unless it was float64 before."""
    wide = before.dtype == torch.float64
    return tensor if wide or tensor.dtype != torch.float64 else tensor.float()


def _changes(adapter: Adapter) -> list[_Change]:
    """By module. Raises CheckpointError for unknown tensors."""
    found: dict[str, _Change] = {}
    for name, tensor in adapter.tensors.items():
        match = _KEY.fullmatch(name)
        if match is None:
            raise problem(
                f"{adapter.file}: has unknown tensor {name}; LoRA and DoRA have none such"
            )
        check_numbers(f"{adapter.file}", name, tensor)
        module = match["module"]
        part = match["part"].replace("vector.weight", "vector")
        found.setdefault(module, _Change(adapter, module)).parts[part] = tensor
    return list(found.values())


def _check_complete(adapter: Adapter, changes: Sequence[_Change], dims: Dims) -> None:
    """Raise unless every module that the settings name as a target has its factors."""
    settings = adapter.settings
    have = {change.weight for change in changes}
    for module in _modules(dims):
        listed = _is_listed(module, settings.targets) and not module.endswith(settings.replaced)
        if listed and openai_name(f"{module}.weight") not in have:
            raise problem(
                f"{adapter.file}: misses {module}, a target in {settings.file.name}; it is "
                "incomplete, or an adapter of another model"
            )


def _modules(dims: Dims) -> Iterator[str]:
    """transformers' names of the linear maps and convolutions, without the logits'."""
    yield from ("model.encoder.conv1", "model.encoder.conv2")
    own = ("k_proj", "v_proj", "q_proj", "out_proj")
    for side, layers in (("encoder", dims.n_audio_layer), ("decoder", dims.n_text_layer)):
        kinds = ("self_attn", "encoder_attn") if side == "decoder" else ("self_attn",)
        parts = [f"{kind}.{part}" for kind in kinds for part in own]
        for layer in range(layers):
            yield from (f"model.{side}.layers.{layer}.{part}" for part in (*parts, "fc1", "fc2"))


def _is_listed(module: str, names: Sequence[str]) -> bool:
    """Whether a name, or the end of one, is the module's or that of a module around it."""
    return any(f".{name}." in f".{module}." for name in names)


def _merge(state: dict[str, Tensor], change: _Change) -> None:
    """Merge one module's change into its weight and bias, which become float64."""
    if change.weight not in state:
        raise change.wrong("the model has no such module")
    before = state[change.weight]
    if not all(part.endswith("bias") for part in change.parts):
        state[change.weight] = _weight(change, before)
    bias, added = change.given("bias"), change.parts.get("lora_B.bias")
    if bias is None and added is None:
        return
    known = state.get(change.bias)
    if known is None and not change.bias.endswith(".key.bias"):  # cancels, see `validate`
        raise change.wrong("the model has no bias there")
    shape = before.shape[:1]
    for tensor in (bias, added):
        if tensor is not None and tensor.shape != shape:
            raise change.wrong(f"has a bias of {list(tensor.shape)}, not {list(shape)}")
    first = bias if bias is not None else known
    total = torch.zeros(shape, dtype=torch.float64) if first is None else first.double()
    factors = change.factors()
    if added is not None and factors is not None:
        total = total + added.double() * factors.scaling
    state[change.bias] = total


def _merge_tokens(state: dict[str, Tensor], changes: Sequence[_Change]) -> None:
    """Merge what one adapter does to the token embedding and to the logits' matrix, [V, d]."""
    by_weight = {change.weight: change for change in changes}
    own, output = by_weight.get(EMBEDDING), by_weight.get(OUTPUT)
    tied = OUTPUT not in state
    settings = changes[0].adapter.settings
    for change in changes:
        if change.given("bias") is not None or "lora_B.bias" in change.parts:
            raise change.wrong("the model has no bias there")
    head = state[EMBEDDING] if tied else state[OUTPUT]
    if own is not None:
        given = own.given("weight")
        if given is not None and tied and not own.is_listed(settings.replaced):
            head = given  # a vocabulary that grew before the adapter was added: still one matrix
        state[EMBEDDING] = _weight(own, state[EMBEDDING])
        if tied and (settings.keep_tied or (_ROWS in own.parts and output is None)):
            head = state[EMBEDDING]
    if output is not None and not (tied and settings.keep_tied and own is not None):
        head = _weight(output, head)
    state[OUTPUT] = head
    tie_output(state)


def _weight(change: _Change, before: Tensor) -> Tensor:
    """before: the weight [...] -> float64, merged; of the vocabulary [V, d], V may change."""
    total, given = before.double(), change.given("weight")
    if given is not None:
        first = 1 if change.weight in (EMBEDDING, OUTPUT) else 0
        if given.ndim != total.ndim or given.shape[first:] != total.shape[first:]:
            raise change.wrong(f"has shape {list(given.shape)}, the model {list(total.shape)}")
        total = given.double()
    factors = change.factors()
    if factors is not None:
        if factors.shape != tuple(total.shape):
            pair = [list(factors.down.shape), list(factors.up.shape)]
            raise change.wrong(f"its factors {pair} do not fit the model's {list(total.shape)}")
        magnitude = factors.magnitude
        if magnitude is not None and magnitude.numel() != factors.up.shape[0]:
            raise change.wrong(f"a magnitude of {list(magnitude.shape)} does not fit")
        total = factors.merged(total)
    rows = change.parts.get(_ROWS)
    return total if rows is None else _with_rows(change, total, rows)


def _with_rows(change: _Change, weight: Tensor, rows: Tensor) -> Tensor:
    """weight [V, d] with the rows of some tokens replaced by `rows` [n, d]."""
    tokens = change.adapter.settings.tokens
    listed = next((tokens[name] for name in tokens if change.is_listed([name])), None)
    listed = listed if isinstance(listed, list) else []
    valid = all(type(token) is int and 0 <= token < len(weight) for token in listed)
    if not valid or weight.ndim != 2 or rows.shape != (len(listed), weight.shape[1]):
        raise change.wrong(f"rows of {list(rows.shape)} do not fit its trainable_token_indices")
    return weight.index_copy(0, torch.tensor(listed, dtype=torch.int64), rows.double())
