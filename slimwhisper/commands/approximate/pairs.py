"""Which pairs of caches `tradeoff` measures and `calibrate` searches: the ladders of the forms."""

from collections.abc import Sequence
from itertools import product

from slimwhisper.cache.forms import FORMS, PRESETS, Form, canonical
from slimwhisper.types import Dims

SLIM8 = ("e8", "x8")  # slim in float8
TOGETHER = ("compact", "keyformer_latent")  # forms whose ladders are measured rung beside rung


def ladders(part: str, dims: Dims, name: str | None = None) -> list[list[str]]:
    """Canonical specs for "cross" or "self", the largest first, without repeats; of one form or of
    all. Raises ValueError.
    """
    chosen: Sequence[Form] = [f for f in FORMS.values() if name in (None, f.name)]
    found = []
    for form in chosen:
        if form.ladder is not None and (form.cross if part == "cross" else form.self_) is not None:
            for rungs in form.use("ladder")(dims, part):
                found.append(list(dict.fromkeys(canonical(f"{form.name}:{r}") for r in rungs)))
    return found


def beside_slim(part: str, spec: str) -> tuple[str, str]:
    """(cross, self) of a spec for one part, and slim's for the other."""
    return (spec, PRESETS["slim"][1]) if part == "cross" else (PRESETS["slim"][0], spec)


def ladder_pairs(dims: Dims, name: str | None = None) -> list[tuple[str, str]]:
    """(cross, self) of every rung beside slim's other part; of one form or of all."""
    return [
        beside_slim(part, spec)
        for part in ("cross", "self")
        for rungs in ladders(part, dims, name)
        for spec in rungs
    ]


def default_pairs(dims: Dims) -> list[tuple[str, str]]:
    """(cross, self): the presets, slim in float8, every rung, and some of two methods together."""
    pairs = [*PRESETS.values(), SLIM8, *ladder_pairs(dims)]
    every = (
        ladders(part, dims, name) for part, name in zip(("cross", "self"), TOGETHER, strict=True)
    )
    for cross, own in product(*every):
        pairs += zip(cross, own, strict=False)
    return list(dict.fromkeys(pairs))
