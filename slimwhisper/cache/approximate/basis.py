"""The best few columns for what attention reads: one basis for all layers that share a latent.

A latent e [d] is kept as z = P (e - mean) [r] and read as e' = mean + D z. What is lost, e - e',
changes a layer's output, to first order and where attention is even, through its heads' scores and
through their values by the expected squares

    keys     sum over heads i of  v_i E|q_i A_i (e - e')|^2 / d_k
    values   sum over heads i of  E|B_i W_O,i (e - e')|^2

with folded queries q_i A_i, folded values B_i W_O,i, and v_i = E|B_i W_O,i (e - mean)|^2, which is
how much the output follows a score. Each of the two is taken relative to what it is where all is
lost, e' = mean: so all layers count alike, and in each layer keys as much as values. (As they are,
keys would count several times as much; but large changes of scores saturate in the softmax.) The
total is E (e - e')^T W (e - e') for one positive matrix W, so the best P and D of each rank are
known (Eckart and Young 1936): with U the eigenvectors of W^1/2 Cov(e) W^1/2, largest first,

    P = U_r^T W^1/2          D = W^-1/2 U_r

The columns of D are orthonormal where W is the identity: a rotation, as in ZACK, which takes the
singular vectors of stacked queries and keys. The basis of a higher rank begins with that of a
lower one. The mean adds one number to all of a query's scores, and a constant to the output.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slimwhisper.cache.fold import Attention

# of W's mean eigenvalue, added to all of them: at full rank D P is the identity to 1e-10
RIDGE = 1e-6


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [d] and covariance [d, d] of samples x [n, d], in float64.

    The covariance is drawn to its diagonal, as by a prior of d samples with independent columns: a
    few tokens span few directions, and others will come.
    """
    n, d = x.shape
    wide = x.double()
    mean = wide.mean(dim=0)
    found = (wide - mean).T @ (wide - mean) / n
    prior = d / (d + n)
    return mean, (1 - prior) * found + prior * found.diagonal().diag()


def importance(block: Attention, asking: Tensor, covariance: Tensor) -> Tensor:
    """A layer's part of W [d, d]: its trace with the covariance is 2, of keys 1 and of values 1.

    asking [n, d]: what its queries are made of; covariance [d, d]: of the latent.
    """

    def by_head(weight: Tensor) -> Tensor:
        """[d, d] -> [h, d_k, d]."""
        return weight.double().unflatten(0, (block.heads, -1))

    query, key, value = map(by_head, (block.query, block.key, block.value))
    mean, spread = moments(asking)
    middle = query @ mean + block.query_bias.double().unflatten(0, (block.heads, -1))
    asked = query @ spread @ query.transpose(1, 2) + middle[:, :, None] * middle[:, None]
    out = by_head(block.out.T)
    answered = out @ out.transpose(1, 2)  # [h, d_k, d_k], as `asked`
    follows = (answered * (value @ covariance @ value.transpose(1, 2))).sum(dim=(1, 2))  # v_i
    of_keys = key.flatten(0, 1).T @ (asked * follows[:, None, None] @ key).flatten(0, 1)
    of_values = value.flatten(0, 1).T @ (answered @ value).flatten(0, 1)
    return of_keys / (of_keys * covariance).sum() + of_values / (of_values * covariance).sum()


def learn_basis(
    blocks: Sequence[Attention], asking: Sequence[Tensor], latents: Tensor, rank: int
) -> dict[str, Tensor]:
    """The basis of a latent that `blocks` read, from recorded activations.

    Arguments:
        blocks: the attention blocks that share the latent.
        asking: per block, [n, d], what its queries are made of.
        latents: [m, d], samples of the latent.
        rank: r, 1 to d.
    Returns:
        in float64, mean [d], rounded, encode [r, d] (P), decode [d, r] (D), and scales [r], the
        root mean squares of the columns kept. Their squares sum to d at full rank.
    """
    mean, covariance = moments(latents)
    layers = [importance(b, x, covariance) for b, x in zip(blocks, asking, strict=True)]
    weight = torch.stack(layers).sum(dim=0)
    d = len(weight)
    weight.diagonal().add_(RIDGE * weight.diagonal().mean())
    weight *= d / (weight * covariance).sum()
    values, vectors = torch.linalg.eigh(weight)
    root = vectors * values.sqrt() @ vectors.T
    inverse = vectors / values.sqrt() @ vectors.T
    energies, turned = torch.linalg.eigh(root @ covariance @ root)
    chosen = turned.flip(1)[:, :rank]
    return {
        "mean": mean.bfloat16().double(),  # as every dtype holds it; the output's bias has the same
        "encode": chosen.T @ root,
        "decode": inverse @ chosen,
        "scales": energies.flip(0)[:rank].clamp(min=1e-12).sqrt(),
    }
