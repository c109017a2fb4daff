"""The one table of settings that `tradeoff` sweeps and `calibrate` searches.

A LADDER is settings of one form for one part of the cache, from the most that is kept or read to
the least: the loss is expected to rise along it, the bytes to fall. A form without a row is not
swept; a row whose form is not in `FORMS` is not used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from slimwhisper.cache.forms import FORMS, PRESETS, canonical
from slimwhisper.types import Dims

Attention = Literal["cross", "self"]
PARTNERS = {"cross": PRESETS["slim"][1], "self": PRESETS["slim"][0]}  # the other part, exact
FLOAT8 = {"cross": "e8", "self": "x8"}


@dataclass(frozen=True, slots=True)
class Ladder:
    """One row."""

    form: str
    attention: Attention
    settings: Callable[[Dims], Sequence[str]]  # without the form's name
    name: str = ""  # where a form has several ladders for one part

    def specs(self, dims: Dims) -> list[str]:
        """Canonical specs, the largest first, without repeats. Raises ValueError."""
        words = [f"{self.form}:{text}".rstrip(":") for text in self.settings(dims)]
        return list(dict.fromkeys(canonical(spec) for spec in words))

    def pair(self, spec: str) -> tuple[str, str]:
        """(cross, self) of a spec and the exact form that is smallest for the other part."""
        partner = PARTNERS[self.attention]
        return (spec, partner) if self.attention == "cross" else (partner, spec)

    @property
    def title(self) -> str:
        return f"{self.attention} {self.form} {self.name}".rstrip()


def _share(of: int, parts: int) -> int:
    return max(1, of // parts)


def _sparq(attention: Attention, latent: bool) -> Callable[[Dims], Sequence[str]]:
    """r of a head's columns, or of the latent's; k of the frames or tokens; with the copy that
    makes reading less worth it.
    """

    def settings(dims: Dims) -> list[str]:
        width = dims.n_text_state // (1 if latent else dims.n_text_head)
        tokens = dims.n_audio_ctx if attention == "cross" else dims.n_text_ctx
        rungs = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 32))
        return [f"r={_share(width, r)},k={_share(tokens, k)},twice=true" for r, k in rungs]

    return settings


def _budget(attention: Attention, more: str = "") -> Callable[[Dims], Sequence[str]]:
    """So many of the frames or tokens are kept."""

    def settings(dims: Dims) -> list[str]:
        tokens = dims.n_audio_ctx if attention == "cross" else dims.n_text_ctx
        return [f"budget={max(8, tokens // parts)}{more}" for parts in (2, 4, 7, 10, 14, 20, 28)]

    return settings


def _each(name: str, *values: float, more: str = "") -> Callable[[Dims], Sequence[str]]:
    """One setting, whatever the model."""
    return lambda dims: [f"{name}={value:g}{more}" for value in values]


_MERGES = (0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05)


def _compact(rank: int, float8: bool) -> Callable[[Dims], Sequence[str]]:
    """Merged frames, with a fixed share of the rank."""
    more = f",float8={str(float8).lower()}"

    def settings(dims: Dims) -> list[str]:
        kept = dims.n_text_state // rank if rank > 1 else "all"
        return [f"merge={m:g},rank={kept}{more}" for m in _MERGES]

    return settings


def _ranks(float8: bool) -> Callable[[Dims], Sequence[str]]:
    """Nothing but the rank, in eighths of the width."""

    def settings(dims: Dims) -> list[str]:
        more = f",float8={str(float8).lower()}"
        ranks = [max(1, dims.n_text_state * n // 8) for n in (7, 6, 5, 4, 3, 2, 1)]
        return [f"merge=1,rank={rank}{more}" for rank in ranks]

    return settings


_KEEP = (0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.2)
_THRESHOLDS = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
_ROWS = (
    Ladder("e8", "cross", lambda dims: [""]),
    Ladder("x8", "self", lambda dims: [""]),
    Ladder("sparq", "cross", _sparq("cross", latent=False)),
    Ladder("sparq", "self", _sparq("self", latent=False)),
    Ladder("sparq_latent", "cross", _sparq("cross", latent=True)),
    Ladder("sparq_latent", "self", _sparq("self", latent=True)),
    Ladder("keyformer", "self", _budget("self")),
    Ladder("keyformer_latent", "self", _budget("self")),
    Ladder("keyformer_latent", "self", _budget("self", ",float8=true"), "float8"),
    Ladder("keyformer_latent", "self", _budget("self", ",recent=1,float8=true"), "window float8"),
    Ladder("evict", "cross", _budget("cross")),
    Ladder("evict", "cross", _budget("cross", ",float8=true"), "float8"),
    Ladder("zack", "cross", _each("keep", *_KEEP)),
    Ladder("zack", "self", _each("keep", *_KEEP)),
    Ladder("sparse", "cross", _each("threshold", *_THRESHOLDS)),
    Ladder("sparse", "self", _each("threshold", *_THRESHOLDS)),
    Ladder("compact", "cross", _compact(1, float8=False), "merge"),
    Ladder("compact", "cross", _ranks(float8=False), "rank"),
    Ladder("compact", "cross", _compact(1, float8=True), "merge float8"),
    Ladder("compact", "cross", _ranks(float8=True), "rank float8"),
    Ladder("compact", "cross", _compact(2, float8=True), "merge half float8"),
    Ladder("compact", "cross", _compact(4, float8=True), "merge quarter float8"),
    Ladder("compact", "self", _ranks(float8=False), "rank"),
    Ladder("compact", "self", _ranks(float8=True), "rank float8"),
)
# rows whose rungs are measured side by side, the first with the first and so on, by title
_TOGETHER = (
    ("cross e8", "self keyformer_latent float8"),
    ("cross compact merge float8", "self keyformer_latent float8"),
    ("cross compact merge half float8", "self keyformer_latent float8"),
    ("cross compact merge quarter float8", "self keyformer_latent float8"),
    ("cross compact merge float8", "self compact rank float8"),
    ("cross compact merge float8", "self keyformer_latent window float8"),
    ("cross compact merge half float8", "self keyformer_latent window float8"),
)


def ladders() -> list[Ladder]:
    """The rows whose form there is."""
    return [row for row in _ROWS if row.form in FORMS]


def ladder_pairs(dims: Dims, form: str | None = None) -> list[tuple[str, str]]:
    """(cross, self) of every rung beside slim's other part; of one form, or of all."""
    rows = [row for row in ladders() if form in (None, row.form)]
    return [row.pair(spec) for row in rows for spec in row.specs(dims)]


def together(dims: Dims) -> list[tuple[str, str]]:
    """(cross, self) of two methods at once; a ladder of one rung is beside each of the other."""
    specs = {row.title: row.specs(dims) for row in ladders()}
    pairs = []
    for cross, own in _TOGETHER:
        if cross in specs and own in specs:
            count = max(len(specs[cross]), len(specs[own]))
            rungs = (s if len(s) > 1 else s * count for s in (specs[cross], specs[own]))
            pairs += list(zip(*rungs, strict=False))
    return pairs


def default_pairs(dims: Dims) -> list[tuple[str, str]]:
    """(cross, self): the presets, slim in float8, every rung, and some of two methods together."""
    float8 = FLOAT8["cross"], FLOAT8["self"]
    pairs = [*PRESETS.values(), float8, *ladder_pairs(dims), *together(dims)]
    return list(dict.fromkeys(pairs))
