"""Writers of faster-whisper's and whisper.cpp's formats, from the formats' descriptions."""

import json
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from whisper.audio import mel_filters
from whisper.tokenizer import get_tokenizer

from slimwhisper.types import Dims
from tests.support.hf_folders import visible

CT2_TYPES = {torch.float32: 0, torch.int8: 1, torch.int16: 2, torch.float16: 4, torch.bfloat16: 5}
GGML_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}

State = Mapping[str, Tensor]


def tokenizer_of(dims: Dims):  # type: ignore[no-untyped-def]
    """openai-whisper's, for one of OpenAI's three vocabularies."""
    languages = 100 if dims.n_vocab == 51_866 else 99
    return get_tokenizer(dims.n_vocab != 51_864, num_languages=languages)


@cache
def texts_of(dims: Dims) -> list[bytes]:
    tokenizer = tokenizer_of(dims)
    return [tokenizer.encoding.decode_single_token_bytes(i) for i in range(tokenizer.eot)]


def tokens_of(dims: Dims) -> list[str]:
    """The vocabulary as CTranslate2's converter writes it, by the rule of GPT-2's own encoder."""
    tokenizer = tokenizer_of(dims)
    found = [visible(text) for text in texts_of(dims)]
    special = sorted(tokenizer.special_tokens.items(), key=lambda item: item[1])
    return found + [name for name, _ in special]


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def ct2_variables(dims: Dims, state: State) -> dict[str, Tensor]:
    """CTranslate2's variables of a Whisper model: QKV of self-attention is one matrix."""
    found: dict[str, Tensor] = {
        "encoder/num_heads": torch.tensor(dims.n_audio_head, dtype=torch.int16),
        "decoder/num_heads": torch.tensor(dims.n_text_head, dtype=torch.int16),
        "decoder/scale_embeddings": torch.tensor(0, dtype=torch.int8),
        "decoder/embeddings/weight": state["decoder.token_embedding.weight"],
    }

    def norm(theirs: str, ours: str) -> None:
        found[f"{theirs}/layer_norm/gamma"] = state[f"{ours}.weight"]
        found[f"{theirs}/layer_norm/beta"] = state[f"{ours}.bias"]

    def linear(theirs: str, *ours: str) -> None:
        weights = [state[f"{name}.weight"] for name in ours]
        zeros = torch.zeros(len(weights[0])).to(weights[0])
        biases = [state.get(f"{name}.bias", zeros) for name in ours]
        found[f"{theirs}/weight"], found[f"{theirs}/bias"] = torch.cat(weights), torch.cat(biases)

    def attention(theirs: str, ours: str, groups: tuple[tuple[str, ...], ...]) -> None:
        norm(theirs, f"{ours}_ln")
        for i, group in enumerate(groups):
            linear(f"{theirs}/linear_{i}", *(f"{ours}.{part}" for part in group))

    for side, layers in (("encoder", dims.n_audio_layer), ("decoder", dims.n_text_layer)):
        found[f"{side}/position_encodings/encodings"] = state[f"{side}.positional_embedding"]
        norm(side, "encoder.ln_post" if side == "encoder" else "decoder.ln")
        for i in range(layers):
            theirs, ours = f"{side}/layer_{i}", f"{side}.blocks.{i}"
            groups: tuple[tuple[str, ...], ...] = (("query", "key", "value"), ("out",))
            attention(f"{theirs}/self_attention", f"{ours}.attn", groups)
            if side == "decoder":
                groups = (("query",), ("key", "value"), ("out",))
                attention(f"{theirs}/attention", f"{ours}.cross_attn", groups)
            norm(f"{theirs}/ffn", f"{ours}.mlp_ln")
            linear(f"{theirs}/ffn/linear_0", f"{ours}.mlp.0")
            linear(f"{theirs}/ffn/linear_1", f"{ours}.mlp.2")
    for name in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            found[f"encoder/{name}/{kind}"] = state[f"encoder.{name}.{kind}"]
    return found


def save_ct2(
    folder: Path,
    variables: Mapping[str, Tensor],
    tokens: list[str],
    aliases: Mapping[str, str] | None = None,
    version: int = 6,
    kind: str = "WhisperSpec",
) -> Path:
    """A folder with model.bin, config.json and vocabulary.json."""

    def string(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    if aliases is None:
        aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    parts = [struct.pack("<I", version), string(kind), struct.pack("<I", 3)]
    parts.append(struct.pack("<I", len(variables)))
    for name, tensor in sorted(variables.items()):
        parts += [string(name), struct.pack("<B", tensor.dim())]
        parts += [struct.pack("<I", n) for n in tensor.shape]
        data = raw(tensor)
        parts += [struct.pack("<BI", CT2_TYPES[tensor.dtype], len(data)), data]
    parts.append(struct.pack("<I", len(aliases)))
    for alias, name in aliases.items():
        parts += [string(alias), string(name)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bin").write_bytes(b"".join(parts))
    (folder / "config.json").write_text(json.dumps({"alignment_heads": [[0, 0]], "lang_ids": []}))
    (folder / "vocabulary.json").write_text(json.dumps(tokens))
    return folder


def ggml_bytes(dims: Dims, state: State, *, file_type: int = 1, tokens: int | None = None) -> bytes:
    """A ggml file; tensors in their dtypes. tokens: how many of the vocabulary, for damage."""
    filters = mel_filters("cpu", dims.n_mels).numpy()
    numbers = (
        *(dims.n_vocab, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head),
        *(dims.n_audio_layer, dims.n_text_ctx, dims.n_text_state, dims.n_text_head),
        *(dims.n_text_layer, dims.n_mels, file_type),
    )
    parts = [struct.pack("<12i", 0x67676D6C, *numbers)]
    parts += [struct.pack("<2i", *filters.shape), filters.astype("<f4").tobytes()]
    texts = texts_of(dims)[:tokens]
    parts.append(struct.pack("<i", len(texts)))
    parts += [struct.pack("<i", len(text)) + text for text in texts]
    for name, tensor in state.items():
        parts.append(ggml_tensor(name, tensor))
    return b"".join(parts)


def ggml_tensor(name: str, tensor: Tensor, kind: int | None = None) -> bytes:
    """One tensor: dimensions from the fastest, biases of convolutions as [n, 1]."""
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        tensor = tensor[:, None]
    kind = GGML_TYPES[tensor.dtype] if kind is None else kind
    head = struct.pack("<3i", tensor.dim(), len(name), kind)
    return head + np.array(tensor.shape[::-1], "<i4").tobytes() + name.encode() + raw(tensor)
