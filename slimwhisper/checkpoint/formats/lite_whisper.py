"""LiteASR's factored encoders (Kamahori et al., arXiv 2502.20583), in Hugging Face folders.

Their config.json has the model_type "lite-whisper" and the ranks r of each encoder layer's linear
maps, those that are factored: y = (x `weight1`) `weight2` + `bias`, [in, r] and [r, out], instead
of x `weight`^T + `bias`, [out, in]. All else is as in Whisper.
"""

from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import load_error
from slimwhisper.checkpoint.files import JSONFields
from slimwhisper.checkpoint.validate import FACTORS, factored_layers

LITE_WHISPER = "lite-whisper"
RANKS = "low_rank_config"
_LAYERS = {  # name in a layer's ranks: part of the tensors' names
    "q_proj": "attn.query",
    "k_proj": "attn.key",
    "v_proj": "attn.value",
    "out_proj": "attn.out",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}


def check_ranks(fields: JSONFields, layers: int, state: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless the encoder's factors have config.json's ranks.

    layers: of the encoder. state: OpenAI's name -> tensor.
    """
    ranks = fields.get(RANKS, list, [])
    if ranks and (len(ranks) != layers or not all(isinstance(r, dict) for r in ranks)):
        raise fields.invalid(RANKS, f"not a list of {layers} objects, one for each encoder layer")
    wanted = {
        f"encoder.blocks.{i}.{_LAYERS[key]}.": rank
        for i, named in enumerate(ranks)
        for key, rank in named.items()
        if key in _LAYERS
    }
    found = {
        layer: shape[1]
        for layer in factored_layers(state)
        if layer.startswith("encoder.blocks.")
        and len(shape := state.get(f"{layer}{FACTORS[0]}", torch.empty(0)).shape) == 2
    }
    for layer in sorted({*wanted, *found}):
        if wanted.get(layer) != found.get(layer):
            what = f"{RANKS} gives {layer[:-1]} {_rank(wanted.get(layer))}"
            remedy = "copy config.json and the weights from one model"
            has = f"the weights have {_rank(found.get(layer))}"
            raise load_error(f"{fields.file}: {what}, but {has}; {remedy}")


def _rank(rank: object) -> str:
    return "no rank" if rank is None else f"rank {rank!r:.40}"


def multiply_factors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with the product [out, in] in place of two factors.

    state: OpenAI's name -> tensor. Products are computed in float64 and rounded once, to float32,
    or stay float64.
    """
    layers = factored_layers(state)
    factors = set(chain.from_iterable((f"{layer}{f}" for f in FACTORS) for layer in layers))
    whole = {name: tensor for name, tensor in state.items() if name not in factors}
    for layer in sorted(layers):
        first, second = (state[f"{layer}{factor}"] for factor in FACTORS)
        product = (first.double() @ second.double()).T.contiguous()
        wide = torch.promote_types(torch.promote_types(first.dtype, second.dtype), torch.float32)
        whole[f"{layer}weight"] = product.to(wide)
    return whole
