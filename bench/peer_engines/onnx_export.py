"""Whisper as two ONNX models, for the engines in `onnx_engines.py`.

The encoder: mel [n, mels, frames] -> the cross-attention's keys and values, [layers, n, frames / 2,
width] each. The decoder: tokens [n, t], self-attention's keys and values of the tokens before
[layers, n, p, width], the encoder's output, the number of tokens before [1] -> logits and the
self-attention's keys and values. Of sherpa-onnx: logits [n, t, vocabulary], and caches with places
for all text positions. Otherwise: the logits of the last token [n, 1, vocabulary], and caches that
grow: p is the number of tokens before.
"""

from base64 import b64encode
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import whisper
from torch import Tensor, nn
from whisper.tokenizer import Tokenizer, get_tokenizer

from peer_engines.case import Case, prompt
from slimwhisper.checkpoint.load import Checkpoint

CERTAIN = 1e4  # added to a logit
OPSET = 17


def save_onnx(checkpoint: Checkpoint, path: Path, case: Case, sherpa: bool = False) -> None:
    """A folder with encoder.onnx and decoder.onnx; for int8, their products with weights are
    quantised as they run, by onnxruntime.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path.mkdir()
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(checkpoint.dims)))
    names = model.state_dict().keys()
    model.load_state_dict({name: checkpoint.state[name].float() for name in names})
    model.eval()
    dims = model.dims
    steps = len(prompt(model.is_multilingual)) + (case.tokens or dims.n_text_ctx)
    decoder = FullDecoder(model, steps) if sherpa else GrowingDecoder(model)
    shape = (dims.n_text_layer, 2, dims.n_text_ctx if sherpa else 3, dims.n_text_state)
    mel = torch.zeros(2, dims.n_mels, 2 * dims.n_audio_ctx)
    export(Encoder(model), (mel,), path / "encoder.onnx", ENCODER_NAMES, ENCODER_AXES)
    past = (torch.zeros(shape), torch.zeros(shape))
    cross = Encoder(model)(mel)
    tokens, before = torch.zeros(2, 2, dtype=torch.long), torch.tensor([3])
    axes = dict(DECODER_AXES)
    if not sherpa:
        axes |= {name: {1: "n", 2: "before"} for name in DECODER_NAMES[0][1:3]}
        axes |= {name: {1: "n", 2: "after"} for name in DECODER_NAMES[1][1:]}
    export(decoder, (tokens, *past, *cross, before), path / "decoder.onnx", DECODER_NAMES, axes)
    add_settings(path / "encoder.onnx", sherpa_settings(model))
    if case.dtype == "int8":
        for file in (path / "encoder.onnx", path / "decoder.onnx"):
            quantize_dynamic(
                *(file, file), weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"]
            )
    vocabulary = tokenizer_of(model).encoding._mergeable_ranks
    save_tokens(vocabulary, path / "tokens.txt")


class Encoder(nn.Module):
    """Whisper's encoder for any number of frames, with the decoder's products of its output."""

    def __init__(self, model: whisper.model.Whisper) -> None:
        super().__init__()
        self.encoder, self.blocks = model.encoder, model.decoder.blocks

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        x = nn.functional.gelu(self.encoder.conv1(mel))
        x = nn.functional.gelu(self.encoder.conv2(x)).transpose(1, 2)
        x = x + self.encoder.positional_embedding[: x.shape[1]]
        for block in self.encoder.blocks:
            inner, y = block.attn, block.attn_ln(x)
            x = x + attended(inner, inner.query(y), inner.key(y), inner.value(y), None)
            x = x + block.mlp(block.mlp_ln(x))
        x = self.encoder.ln_post(x)
        keys = [block.cross_attn.key(x) for block in self.blocks]
        return torch.stack(keys), torch.stack([block.cross_attn.value(x) for block in self.blocks])


class Decoder(nn.Module):
    """What both forms of the decoder share."""

    mask: Tensor
    output: Tensor

    def __init__(self, model: whisper.model.Whisper) -> None:
        super().__init__()
        self.decoder, context = model.decoder, model.dims.n_text_ctx
        self.register_buffer("mask", torch.full((context, context), -torch.inf).triu(1))
        # the output matrix as of a linear layer: only such products are quantised
        self.register_buffer("output", self.decoder.token_embedding.weight.detach().T.contiguous())

    def layers(
        self, tokens: Tensor, keys: Tensor, values: Tensor, cross: tuple[Tensor, Tensor], at: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """keys, values: of the tokens before. Returns hidden states [n, t, width], and the keys and
        values of all tokens [layers, n, before + t, width].
        """
        start, end = at[0], at[0] + tokens.shape[1]
        positions = self.decoder.positional_embedding[start:end]
        x = self.decoder.token_embedding(tokens) + positions
        mask = self.mask[start:end, :end]
        all_keys, all_values = [], []
        for i, block in enumerate(self.decoder.blocks):
            y, inner = block.attn_ln(x), block.attn
            all_keys.append(torch.cat([keys[i], inner.key(y)], dim=1))
            all_values.append(torch.cat([values[i], inner.value(y)], dim=1))
            x = x + attended(inner, inner.query(y), all_keys[-1], all_values[-1], mask)
            y, inner = block.cross_attn_ln(x), block.cross_attn
            x = x + attended(inner, inner.query(y), cross[0][i], cross[1][i], None)
            x = x + block.mlp(block.mlp_ln(x))
        return self.decoder.ln(x), torch.stack(all_keys), torch.stack(all_values)


class GrowingDecoder(Decoder):
    """With caches of the tokens so far, and the logits of the last."""

    def forward(self, tokens: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values, cross_keys, cross_values, at = inputs
        x, keys, values = self.layers(tokens, keys, values, (cross_keys, cross_values), at)
        return x[:, -1:] @ self.output, keys, values


class FullDecoder(Decoder):
    """With caches of all text positions, as sherpa-onnx has them."""

    ends: Tensor
    end: Tensor

    def __init__(self, model: whisper.model.Whisper, steps: int) -> None:
        """steps: tokens, with the prompt's, after which the text ends."""
        super().__init__(model)
        ends = torch.zeros(model.dims.n_text_ctx, 1)
        ends[steps - 1 :] = CERTAIN
        self.register_buffer("ends", ends)
        end = torch.zeros(model.dims.n_vocab)
        end[tokenizer_of(model).eot] = 1
        self.register_buffer("end", end)

    def forward(self, tokens: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values, cross_keys, cross_values, at = inputs
        start, end = at[0], at[0] + tokens.shape[1]
        past = keys[:, :, :start], values[:, :, :start]
        x, new_keys, new_values = self.layers(tokens, *past, (cross_keys, cross_values), at)
        logits = x @ self.output + self.ends[start:end] * self.end
        keys = torch.cat([new_keys, keys[:, :, end:]], dim=2)
        return logits, keys, torch.cat([new_values, values[:, :, end:]], dim=2)


def attended(
    layer: whisper.model.MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
) -> Tensor:
    """Attention of q [n, t, width] to k and v [n, s, width], through the output matrix."""
    n, t, width = q.shape
    heads, size = layer.n_head, width // layer.n_head
    q, k, v = (x.view(n, -1, heads, size).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(2, 3) * size**-0.5
    weights = (scores if mask is None else scores + mask).softmax(-1)
    out: Tensor = layer.out((weights @ v).transpose(1, 2).reshape(n, t, width))
    return out


# -- files -----------------------------------------------------------------------------------------

ENCODER_NAMES = ["mel"], ["n_layer_cross_k", "n_layer_cross_v"]
ENCODER_AXES = {
    "mel": {0: "n", 2: "frames"},
    "n_layer_cross_k": {1: "n", 2: "positions"},
    "n_layer_cross_v": {1: "n", 2: "positions"},
}
DECODER_NAMES = (
    [
        *("tokens", "in_n_layer_self_k_cache", "in_n_layer_self_v_cache"),
        *("n_layer_cross_k", "n_layer_cross_v", "offset"),
    ],
    ["logits", "out_n_layer_self_k_cache", "out_n_layer_self_v_cache"],
)
DECODER_AXES = {
    "tokens": {0: "n", 1: "t"},
    "in_n_layer_self_k_cache": {1: "n"},
    "in_n_layer_self_v_cache": {1: "n"},
    "n_layer_cross_k": {1: "n", 2: "positions"},
    "n_layer_cross_v": {1: "n", 2: "positions"},
    "logits": {0: "n", 1: "t"},
    "out_n_layer_self_k_cache": {1: "n"},
    "out_n_layer_self_v_cache": {1: "n"},
}


def export(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    path: Path,
    names: tuple[list[str], list[str]],
    axes: dict[str, dict[int, str]],
) -> None:
    with torch.no_grad():
        torch.onnx.export(
            module,
            inputs,
            str(path),
            input_names=names[0],
            output_names=names[1],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )


def tokenizer_of(model: whisper.model.Whisper) -> Tokenizer:
    return get_tokenizer(
        model.is_multilingual, num_languages=model.num_languages, language="en", task="transcribe"
    )


def sherpa_settings(model: whisper.model.Whisper) -> dict[str, Any]:
    """What sherpa-onnx reads from the encoder's file."""
    tokenizer = tokenizer_of(model)
    many = ("sot_sequence", "all_language_tokens", "all_language_codes", "non_speech_tokens")
    single = ("sot", "eot", "no_speech", "transcribe", "translate", "no_timestamps")
    return {
        "model_type": "whisper-tiny",
        "version": "1",
        "maintainer": "k2-fsa",
        **asdict(model.dims),
        **{name: ",".join(map(str, getattr(tokenizer, name))) for name in many},
        **{name: getattr(tokenizer, name) for name in (*single, "sot_prev", "sot_lm")},
        "sot_index": 0,
        "blank_id": tokenizer.encode(" ")[0],
        "is_multilingual": int(model.is_multilingual),
    }


def add_settings(path: Path, settings: dict[str, Any]) -> None:
    import onnx

    model = onnx.load(str(path))
    for key, value in settings.items():
        model.metadata_props.add(key=key, value=str(value))
    onnx.save(model, str(path))


def save_tokens(vocabulary: dict[bytes, int], path: Path) -> None:
    """Lines of a token in base64 and its id. Parts of characters, which sherpa-onnx's Python cannot
    show, are written as escapes.
    """
    shown = ((token.decode(errors="backslashreplace"), n) for token, n in vocabulary.items())
    lines = (f"{b64encode(text.encode()).decode()} {n}\n" for text, n in shown)
    path.write_text("".join(lines))
