"""PyTorch's back end of `Kernels`, which runs every call."""

from torch import Tensor

from slimwhisper.kernels.cpu.library import Library, multiply_heads
from slimwhisper.kernels.heads import head_attention
from slimwhisper.kernels.latent import Latent
from slimwhisper.kernels.norm import add_norm
from slimwhisper.kernels.reads import Reads


class ByTorch:
    """The operations as `Kernels` describes them, without kernels of our own."""

    path = "torch"
    add_norm = staticmethod(add_norm)

    def __init__(self, library: Library | None) -> None:
        self.library = library  # for the maps of the heads

    def latent(
        self, queries: Tensor, latent: Latent, scale: float, reads: Reads, maps: Tensor | None
    ) -> Tensor:
        """As `Kernels.latent`. The queries go through `scaled_dot_product_attention` as the queries
        of one head, so that the latent is read once; per-head products would read it h times.
        """
        windows = reads.windows(len(latent))
        if reads.block_table is not None:
            latent = Latent(*(reads.gathered(t, 1) for t in latent.tensors()))
        elif reads.slots is not None:
            latent = latent[reads.slots]
        values = latent.dequantized(queries.dtype)[:, None]
        grouped = queries.reshape(windows, 1, -1, queries.shape[-1])
        bias = None if reads.bias is None else reads.bias().view(windows, 1, -1, values.shape[2])
        if bias is not None and bias.shape[2] > 1:  # of each row: for all its heads
            bias = bias.repeat_interleave(grouped.shape[2] // bias.shape[2], dim=2)
        if reads.position_bias is not None:
            slots = slice(None) if reads.slots is None else reads.slots
            position_bias = reads.position_bias[slots][:, None, None].to(queries.dtype)
            bias = position_bias if bias is None else bias + position_bias
        output = head_attention(grouped, values, values, bias, scale=scale).view(queries.shape)
        return output if maps is None else multiply_heads(self.library, output, maps, True)

    def heads(self, queries: Tensor, keys: Tensor, values: Tensor, reads: Reads) -> Tensor:
        """As `Kernels.heads`."""
        windows = reads.windows(len(keys))
        if reads.slots is not None:
            keys, values = keys[reads.slots], values[reads.slots]
        if reads.block_table is not None:
            keys, values = reads.gathered(keys, 2), reads.gathered(values, 2)
        mask = None if reads.bias is None else reads.bias().view(windows, 1, -1, keys.shape[2])
        grouped = queries.unflatten(0, (windows, -1)).transpose(1, 2)
        output = head_attention(grouped, keys, values, mask)
        return output.transpose(1, 2).reshape(queries.shape)
