"""One small decoder for the tests of cache forms: its plans, and the papers' results for it."""

from functools import cache

import torch
from torch import Tensor

from slimwhisper.cache.base import DecodeStep, Rows, SelfLayer
from slimwhisper.cache.decoder_cache import CachePlan, CrossCache, DecoderCache, SelfCache
from slimwhisper.cache.fold import Activations, Attention, blocks_of, fold
from slimwhisper.cache.forms import parse_form as parse
from slimwhisper.research.forms.keyformer import gumbel
from tests.support import papers
from tests.support.checkpoints import random_state, tiny_dims

parse_form = cache(parse)
WIDTH, HEADS, FRAMES, LENGTH, LAYERS = 96, 3, 50, 32, 2  # heads no power of two
D_K = WIDTH // HEADS
CPU = torch.device("cpu")
DIMS = tiny_dims(
    width=WIDTH, heads=HEADS, text_layers=LAYERS, multilingual=False, n_text_ctx=LENGTH
)
STATE = random_state(DIMS, seed=0)
for name, tensor in STATE.items():  # head i's columns fall to 10^-i of the first: ranks differ
    if name.startswith("decoder") and name.endswith(("query.weight", "key.weight", "value.weight")):
        falls = [torch.logspace(0, -i, D_K) for i in range(HEADS)]
        STATE[name] = 2 * tensor * torch.cat(falls)[:, None]

WHOLE = [  # of every approximate form, with settings that leave nothing out
    *("zack:removal=0", "sparse:threshold=0", "sparq:r=all,k=all", "sparq_latent:r=all,k=all"),
    *("keyformer:budget=all", "keyformer_latent:budget=all", "compact:merge=1,float8=false"),
]


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


RECORDED = Activations(
    noise(FRAMES, WIDTH, seed=1),
    [noise(40, WIDTH, seed=2 + i) for i in range(LAYERS)],
    [noise(40, WIDTH, seed=8 + i) for i in range(LAYERS)],
)


def block(part: str, layer: int) -> Attention:
    attention = "cross_attn" if part == "cross" else "attn"
    return Attention.from_state(STATE, f"decoder.blocks.{layer}.{attention}.", HEADS)


def plain(part: str, layer: int) -> papers.PlainAttention:
    """A block for row vectors, x W, nothing folded."""
    prefix = f"decoder.blocks.{layer}.{'cross_attn' if part == 'cross' else 'attn'}."

    def get(name: str) -> Tensor:
        return STATE[prefix + name].double()

    w_q, w_k, w_v, w_o = (get(f"{name}.weight").T for name in ("query", "key", "value", "out"))
    b_q, b_v, b_o = (get(f"{name}.bias") for name in ("query", "value", "out"))
    return papers.PlainAttention(w_q, b_q, w_k, w_v, b_v, w_o, b_o, HEADS)


@cache
def plan(cross: str = "e", own: str = "x") -> CachePlan:
    """In float64, not rounded; also of forms that the guard would check."""
    layers = []
    for part, spec in (("cross", cross), ("self", own)):
        pairs, form = list(blocks_of(STATE, DIMS, part)), parse_form(spec)
        if form.learns:
            form = form.learn(part, [b for b, _ in pairs], RECORDED)
        layers.append([fold(b, form, context) for b, context in pairs])
    return CachePlan(*layers)


def ranks_of(part: str, spec: str) -> list[Tensor]:
    """The ranks [2, h] of zack's keys and values, by layer."""
    layers = plan(cross=spec).cross if part == "cross" else plan(own=spec).self_
    learned = layers[0].form.learned
    assert learned is not None
    return [layer["ranks"] for layer in learned]


def allocate(
    cross: str = "e",
    own: str = "x",
    slots: int = 3,
    group: int = 1,
    dtype: torch.dtype = torch.float64,
    device: torch.device = CPU,
) -> DecoderCache:
    folded = plan(cross, own).to(CPU, dtype)
    return caches(folded, slots, group=group, device=device)


def caches(
    folded: CachePlan,
    slots: int,
    frames: int = FRAMES,
    length: int = LENGTH,
    group: int = 1,
    device: torch.device | None = None,
) -> DecoderCache:
    own = SelfCache(folded, slots * group, length, device)
    return DecoderCache(CrossCache(folded, slots, frames, device), own)


def serves(spec: str, part: str) -> bool:
    """Whether a form is for this attention."""
    return part in parse_form(spec).attentions


@cache
def rotations(spec: str, part: str, layer: int) -> papers.Rotations:
    """R and R_v of every head, cut to the ranks that the product chose."""
    sizes = ranks_of(part, spec)[layer].long().tolist()
    queries, source = RECORDED.query_inputs(part, layer), RECORDED.source(part, layer)
    heads = papers.decompose(plain(part, layer), queries.double(), source.double())
    return [(k[0][:, :r], v[0][:, :r_v]) for (k, v), r, r_v in zip(heads, *sizes, strict=True)]


def is_exact(spec: str) -> bool:
    """Whether nothing is left out; then a form gives what keys and values give."""
    return spec in WHOLE or parse_form(spec).exact


def cross_reference(spec: str, layer: int, x: Tensor, source: Tensor) -> Tensor:
    """x [T, d] over a window [p, d] -> [T, d]; T = 1 is a step."""
    p, settings, name = plain("cross", layer), parse_form(spec), spec.partition(":")[0]
    if is_exact(spec):
        return papers.attend(p, x, source)
    if name == "zack":
        return papers.attend(p, x, source, rotations=rotations(spec, "cross", layer))
    if name == "compact":
        return papers.attend(p, x, papers.merged(source, settings.groups(len(source))))
    if len(x) > 1:
        return papers.attend(p, x, source)
    if name == "sparse":
        return papers.attend_sparse(p, x[0], source, settings.threshold)[0][None]
    attend = papers.attend_sparq if name == "sparq" else papers.attend_sparq_latent
    return attend(p, x[0], source, settings, False)[None]


def self_reference(spec: str, layer: int, text: Tensor, prompt: int) -> Tensor:
    """A text [n, d] of which the first `prompt` tokens come at once -> [n, d]."""
    p, settings, name = plain("self", layer), parse_form(spec), spec.partition(":")[0]
    if is_exact(spec):
        return papers.attend(p, text, text, causal=True)
    if name == "zack":
        return papers.attend(p, text, text, True, rotations(spec, "self", layer))
    if name.startswith("keyformer"):
        zeta = gumbel(settings.seed, layer, HEADS, LENGTH).double()
        by_head = "latent" not in spec
        return papers.decode_keyformer(p, text, prompt, settings, zeta, LENGTH, by_head)

    def attend(x: Tensor, source: Tensor) -> Tensor:
        if name == "sparse":
            return papers.attend_sparse(p, x, source, settings.threshold)[0]
        form = papers.attend_sparq if name == "sparq" else papers.attend_sparq_latent
        return form(p, x, source, settings, True)

    dense = papers.attend(p, text[:prompt], text[:prompt], causal=True)
    steps = [attend(text[t], text[: t + 1]) for t in range(prompt, len(text))]
    return torch.stack([*dense, *steps])


def self_step(layer: SelfLayer, x: Tensor, step: DecodeStep) -> Tensor:
    """Keep each row's token, as a decoder's norm does, then attend: x [R, 1, d] -> [R, 1, d]."""
    place = layer.cache_write(step)
    if place is not None:
        place.write(x[:, 0])
    return layer.step(x, step)


def run_text(layer: SelfLayer, text: Tensor, prompt: int) -> Tensor:
    """[n, d] -> [n, d]: its beginning as a prompt, the rest step by step."""
    results = [layer.prefill(text[None, :prompt], Rows(*torch.zeros(2, 1, dtype=torch.int64)))[0]]
    for n in range(prompt, len(text)):
        step = DecodeStep.at(Rows.block(1), torch.tensor([n]), n + 1, True, text.dtype)
        results.append(self_step(layer, text[None, n : n + 1], step)[0])
    return torch.cat(results)
