"""Mel spectrogram -> encoder output E, which is the slim cache of the audio."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.heads import encoder_attention
from slimwhisper.kernels.linear import Weight, at_least_float32, linear, pack, packed_width
from slimwhisper.model.layers import MLP, LayerNorm, Linear, Residual, Source
from slimwhisper.types import Dims


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Over three positions, and GELU. It rounds to bfloat16 where the model computes so, or in
    int8, on a CPU that multiplies bfloat16 fast: then it is a product with packed weights.
    """

    weight: Weight  # [out, in, 3], or for products [out, 3 in]
    bias: Tensor
    stride: int

    @staticmethod
    def read(source: Source, stride: int) -> "_Convolution":
        weight, bias = source.tensor("weight"), source.tensor("bias")
        if source.int8 or source.dtype == torch.bfloat16:
            matrix = weight.transpose(1, 2).flatten(1).bfloat16()
            if packed_width(matrix) is not None:
                return _Convolution(pack(matrix), bias.bfloat16(), stride)
        return _Convolution(weight, bias, stride)

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, T, in] -> [B, T / stride, out]."""
        if isinstance(self.weight, Tensor):
            channels = x.transpose(1, 2)
            y = F.conv1d(channels, self.weight, self.bias, stride=self.stride, padding=1)
            return F.gelu(y).transpose(1, 2)
        windows = F.pad(x.bfloat16(), (0, 0, 1, 1)).unfold(1, 3, self.stride)  # [B, T, in, 3]
        return linear(windows.transpose(2, 3).flatten(2), self.weight, self.bias, gelu=True)


@dataclass(frozen=True, slots=True)
class _EncoderBlock:
    norm: LayerNorm
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    heads: int
    mlp: MLP
    rounded: bool  # attention in bfloat16

    @staticmethod
    def read(source: Source, heads: int) -> "_EncoderBlock":
        attn = source / "attn"
        return _EncoderBlock(
            LayerNorm.read(source / "attn_ln"),
            Linear.read(attn / "query"),
            Linear.read(attn / "key", bias=False),  # a key bias cancels in the softmax
            Linear.read(attn / "value"),
            Linear.read(attn / "out"),
            heads,
            MLP.read(source),
            source.int8 and torch.cpu.get_capabilities().get("avx512_bf16", False),
        )

    def __call__(self, x: Residual) -> None:
        """Add to x, [B, p, d]."""
        normed = x.normed(self.norm)
        q, k, v = (
            project(normed).unflatten(-1, (self.heads, -1))
            for project in (self.query, self.key, self.value)
        )
        x.add(self.out(encoder_attention(q, k, v, self.rounded).flatten(2)))
        x.add(self.mlp(x.normed(self.mlp.norm)))


class Encoder:
    """Two convolutions, n_audio_layer transformer blocks, a layer norm; stateless."""

    def __init__(
        self,
        state: Mapping[str, Tensor],
        dims: Dims,
        device: torch.device,
        dtype: torch.dtype,
        int8: bool = False,
        kernels: Kernels | None = None,
    ) -> None:
        """state: OpenAI's names; matrices [out, in], convolutions [out, in, 3]. int8: the weights
        of linear maps, on a CPU in float32; see `kernels.linear.quantize`. On a CPU that multiplies
        bfloat16 twice as fast as float32, convolutions and attention are then in bfloat16. kernels:
        to share those of a model.
        """
        self.kernels = kernels or Kernels(device, dtype)
        source = Source(state, "encoder.", device, dtype, int8)
        self.dims, self.device, self.dtype = dims, device, dtype
        self.conv1 = _Convolution.read(source / "conv1", stride=1)
        self.conv2 = _Convolution.read(source / "conv2", stride=2)
        self.positions = source.tensor("positional_embedding", at_least_float32(dtype))
        blocks = source / "blocks"
        self.blocks = [
            _EncoderBlock.read(blocks / str(i), dims.n_audio_head)
            for i in range(dims.n_audio_layer)
        ]
        self.norm = LayerNorm.read(source / "ln_post")

    def shortened(self, dims: Dims) -> "Encoder":
        """The same weights for fewer positions, the first `dims.n_audio_ctx`."""
        other = copy(self)
        other.dims, other.positions = dims, self.positions[: dims.n_audio_ctx]
        return other

    @torch.inference_mode()
    def __call__(self, mel: Tensor) -> Tensor:
        """mel [B, n_mels, 2 q] of any floating dtype -> E [B, q, d] in the model's dtype.

        q: p, or less: a window as long as its audio. Its E is not the same.
        """
        mels, most, (_, given, frames) = self.dims.n_mels, 2 * self.dims.n_audio_ctx, mel.shape
        fits = given == mels and frames <= most and frames % 2 == 0
        assert fits, f"mel of shape {tuple(mel.shape)}, not [B, {mels}, up to {most}]"
        x = self.conv2(self.conv1(mel.to(self.device, self.dtype).transpose(1, 2)))
        # contiguous: the sum would keep a transposed layout, which makes every layer slower
        x = (x + self.positions[: x.shape[1]]).to(self.dtype).contiguous()
        stream = Residual(x, self.kernels)
        for block in self.blocks:
            block(stream)
        return stream.normed(self.norm)
