"""Which pairs of caches `tradeoff` measures and `calibrate` searches: the ladders of the forms."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from slimwhisper.cache.forms import (
    FORMS,
    PRESETS,
    brief,
    canonical,
    check_cache,
    check_form,
    choose_forms,
    cross_names,
    self_names,
)
from slimwhisper.errors import OptionError
from slimwhisper.types import Dims

# parts and forms whose ladders are measured rung beside rung
TOGETHER = (("cross", "compact"), ("self", "keyformer_latent"))


class Pair(NamedTuple):
    """Caches of both parts, as canonical specs."""

    cross: str
    self_: str
    file: str | None = None  # of `calibrate`, which has what they learned

    @property
    def title(self) -> str:
        """Without the settings that are the defaults."""
        forms = f"{brief(self.cross)}+{brief(self.self_)}"
        return forms if self.file is None else f"{forms} of {Path(self.file).name}"


SLIM, SLIM8 = Pair(*PRESETS["slim"]), Pair("e8", "x8")  # the second in float8


def ladders(part: str, dims: Dims, name: str | None = None) -> list[list[str]]:
    """Canonical specs for "cross" or "self", the largest first, without repeats; of one form or of
    all. Raises ValueError.
    """
    found = []
    for form in FORMS.values():
        there = form.cross if part == "cross" else form.self_
        if name in (None, form.name) and form.ladder is not None and there is not None:
            for rungs in form.use("ladder")(dims, part):
                found.append(list(dict.fromkeys(canonical(f"{form.name}:{r}") for r in rungs)))
    return found


def beside_slim(part: str, spec: str) -> Pair:
    """A spec for one part, and slim's for the other."""
    return Pair(spec, SLIM.self_) if part == "cross" else Pair(SLIM.cross, spec)


def ladder_pairs(dims: Dims, name: str | None = None) -> list[Pair]:
    """Every rung beside slim's other part; of one form or of all."""
    return [
        beside_slim(part, spec)
        for part in ("cross", "self")
        for rungs in ladders(part, dims, name)
        for spec in rungs
    ]


def choose_pairs(specs: Sequence[str] | None, dims: Dims) -> list[Pair]:
    """The pairs of `--specs`; without: the presets, slim in float8, every rung, and some of two
    methods together. Raises OptionError.
    """
    if specs:
        return list(dict.fromkeys(pair for spec in specs for pair in parse_pairs(spec, dims)))
    pairs = [*(Pair(*forms) for forms in PRESETS.values()), SLIM8, *ladder_pairs(dims)]
    crossing, own = (ladders(part, dims, name) for part, name in TOGETHER)
    for rungs in product(crossing, own):
        pairs += (Pair(*forms) for forms in zip(*rungs, strict=False))
    return list(dict.fromkeys(pairs))


def parse_pairs(text: str, dims: Dims) -> list[Pair]:
    """Of a preset's name, `slim8` for slim in float8, `CROSS+SELF`, or a file of `calibrate`; all
    rungs of an approximate form's name.
    """
    if text in PRESETS:
        return [Pair(*PRESETS[text])]
    if text == "slim8":
        return [SLIM8]
    if rungs := ladder_pairs(dims, text):
        return rungs
    cross, plus, own = text.partition("+")
    try:
        if not plus or Path(text).is_file():
            return [Pair(*choose_forms(check_cache(text)), text)]
        names = (*cross_names(False), SLIM8.cross), (*self_names(False), SLIM8.self_)
        return [Pair(check_form(cross, names[0]), check_form(own, names[1]))]
    except OptionError as error:
        raise OptionError(
            f"specs: {error}; give a preset, slim8, an approximate form, CROSS+SELF such as e+x, "
            "or a file of calibrate"
        ) from None
