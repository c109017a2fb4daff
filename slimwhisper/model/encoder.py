"""Mel spectrogram -> encoder output E, which is the slim cache of the audio."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slimwhisper.kernels.blocks import BlockWeights, encoder_attention, encoder_rows, reads_tiles
from slimwhisper.kernels.cpu.library import intercepted
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.kernels.linear import Matrix, at_least_float32, half_on_gpu, pack, packed_width
from slimwhisper.model.layers import MLP, LayerNorm, Linear, Residual, Source
from slimwhisper.types import Dims

LEAST_FRAMES = 384  # with fewer, oneDNN's convolutions in float32 have other bits


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Over three positions, and GELU. It is a product with a matrix on a GPU in half precision, and
    in bfloat16 where the model computes so, or in int8, on a CPU that multiplies bfloat16 fast.
    """

    weight: Tensor | Matrix  # [out, in, 3], or for products [out, 3 in]
    bias: Tensor
    stride: int

    @staticmethod
    def read(source: Source, stride: int) -> "_Convolution":
        weight, bias = source.tensor("weight"), source.tensor("bias")
        half = half_on_gpu(weight)
        if half or source.int8 or source.dtype == torch.bfloat16:
            matrix = weight.transpose(1, 2).flatten(1).to(weight.dtype if half else torch.bfloat16)
            if half or packed_width(matrix) is not None:
                return _Convolution(pack(matrix), bias.to(matrix.dtype), stride)
        return _Convolution(weight, bias, stride)

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, T, in] -> [B, T / stride, out]."""
        if isinstance(self.weight, Tensor):
            y = F.conv1d(x.transpose(1, 2), self.weight, self.bias, stride=self.stride, padding=1)
            return F.gelu(y).transpose(1, 2)
        padded = F.pad(x.to(self.bias.dtype), (0, 0, 1, 1))
        windows = padded.unfold(1, 3, self.stride)  # [B, T, in, 3]
        return self.weight.multiply(windows.transpose(2, 3).flatten(2), self.bias, None, True)


def _until_silence(frames: Tensor) -> int:
    """How many of the frames [B, T, n_mels] to convolve: those with sound, and some of the silence
    after them. The others' results are like the last but one of these. T itself unless they are on
    a CPU, as elsewhere the host would wait for the answer.
    """
    count, last = frames.shape[1], frames[:, -1:]
    if frames.device.type != "cpu" or count <= LEAST_FRAMES or intercepted():
        return count
    changes = (frames != last).any(2).any(0).nonzero()
    heard = int(changes[-1]) + 1 if len(changes) else 0
    return min(max(heard + heard % 2 + 6, LEAST_FRAMES), count)


@dataclass(frozen=True, slots=True)
class _EncoderBlock:
    norm: LayerNorm
    projections: Sequence[Linear]  # query, key and value, or the three in one product
    out: Linear
    heads: int
    mlp: MLP
    rounded: bool  # attention in bfloat16, where C has it

    @staticmethod
    def read(source: Source, heads: int) -> "_EncoderBlock":
        attn, (norm, divided) = source / "attn", LayerNorm.read_even(source / "attn_ln")
        query, value = (Linear.read(attn / n, divided=divided) for n in ("query", "value"))
        key = Linear.read(attn / "key", False, divided)  # a key bias cancels in the softmax
        projections = Linear.joined(query, key, value)
        out = Linear.read(attn / "out")
        return _EncoderBlock(norm, projections, out, heads, MLP.read(source), source.int8)

    def __call__(self, x: Residual) -> None:
        """Add to x, [B, p, d]."""
        normed = x.normed(self.norm)
        parts = [projection(normed) for projection in self.projections]
        x.add_product(self.attend(*(parts if len(parts) > 1 else parts[0].chunk(3, -1))), self.out)
        x.add_mlp(self.mlp)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, p, d] each -> [B, p, d], before the output's projection."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (query, key, value))
        return encoder_attention(q, k, v, self.rounded).flatten(2)

    def weights(self) -> BlockWeights:
        """There are several parts of an MLP for oneDNN alone."""
        layers = *self.projections, self.out, *self.mlp.parts[0]
        return BlockWeights(self.norm, self.mlp.norm, *layers)


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
        on_cpu = device.type == "cpu"
        tiled = on_cpu and not int8 and reads_tiles(dims.n_audio_state, dtype)
        source = Source(state, "encoder.", device, dtype, int8=int8, tiled=tiled)
        self.dims, self.device, self.dtype = dims, device, dtype
        self.conv1 = _Convolution.read(source / "conv1", stride=1)
        self.conv2 = _Convolution.read(source / "conv2", stride=2)
        self.positions = source.tensor("positional_embedding", at_least_float32(dtype))
        blocks = (source / "blocks" / str(i) for i in range(dims.n_audio_layer))
        self.blocks = [_EncoderBlock.read(block, dims.n_audio_head) for block in blocks]
        self.norm = LayerNorm.read(source / "ln_post")
        self.rows = encoder_rows([b.weights() for b in self.blocks], self.norm) if on_cpu else []

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
        mels, most, (_, bins, given) = self.dims.n_mels, 2 * self.dims.n_audio_ctx, mel.shape
        fits = bins == mels and given <= most and given % 2 == 0
        assert fits, f"mel of shape {tuple(mel.shape)}, not [B, {mels}, up to {most}]"
        x = self._convolve(mel.to(self.device, self.dtype).transpose(1, 2))
        # contiguous: the sum would keep a transposed layout, which makes every layer slower
        out = torch.empty(x.shape, dtype=self.dtype, device=self.device)
        x = torch.add(x, self.positions[: x.shape[1]], out=out)  # rounded once
        if self.rows and not intercepted():
            operands = self.rows[0](x, None)  # the blocks and the last norm, in C
            for block, rows in zip(self.blocks, self.rows[1:], strict=True):
                operands = rows(x, block.attend(*operands))
            return operands[0]
        stream = Residual(x, self.kernels)
        for block in self.blocks:
            block(stream)
        return stream.normed(self.norm)

    def _convolve(self, frames: Tensor) -> Tensor:
        """[B, T, n_mels] -> [B, T / 2, d]; silence at the end is convolved once."""
        heard = _until_silence(frames)
        x = self.conv2(self.conv1(frames[:, :heard]))
        silent = (frames.shape[1] - heard) // 2
        if not silent:
            return x
        return torch.cat([x[:, :-1], x[:, -2:-1].expand(-1, silent, -1), x[:, -1:]], dim=1)
