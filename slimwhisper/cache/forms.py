"""The table of cache forms, and the presets.

A form is a way to store a decoder's cache. A SPEC is its name, or its name with settings, such as
`sparq:r=16,k=128`; a spec may be given wherever a form is chosen. To add a form, write a file in
this folder with its store (see `slimwhisper.cache.base`) and its folding of the weights, and add a
row to `FORMS`, which the flags, the guard, the reports and the tests read. Nothing here imports
torch: a row names its code, which is imported on first use.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from slimwhisper.cache.settings import describe_settings, parse_settings, split_spec
from slimwhisper.errors import OptionError
from slimwhisper.text import not_one_of

Code = str | Callable[..., Any]  # a function or class, or "module:name"


@dataclass(frozen=True, slots=True)
class Form:
    """One row: what a form stores of a token, and its code."""

    name: str
    kept: str  # what is stored of a token, in words
    fold: Code  # (Attention, Context) -> Folded
    cross: Code | None = None  # a `CrossLayer`; None: not for cross-attention
    self_: Code | None = None  # a `SelfLayer`; None: not for self-attention
    shared: bool = False  # all cross-attention layers read one store
    inverse: Literal["key", "value", "first_key"] | None = None  # the weight to invert: guarded
    paged: bool = False  # its `self_` is a `PagedLayer` with pages of 16 tokens
    float8: str | None = None  # the same form in float8
    listed: bool = True  # users choose it by name; False: by another option
    settings: Code | None = None  # its settings: see `slimwhisper.cache.settings`
    exact: bool = True  # False: attention is approximated, except with the settings `whole`
    whole: str = ""  # settings that leave nothing out, of a form that is not exact
    learns: bool = False  # its fold needs recorded activations
    # (Dims, "cross" or "self") -> lists of settings such as ["k=128", "k=64"], from the largest
    # cache or reads to the smallest: what `tradeoff` measures and `calibrate` searches
    ladder: Code | None = None

    def use(
        self, part: Literal["fold", "cross", "self_", "settings", "ladder"]
    ) -> Callable[..., Any]:
        """The code of one of its parts."""
        code = getattr(self, part)
        assert code is not None, f"cache form {self.name!r} has no {part!r}"
        if isinstance(code, str):
            module, _, name = code.partition(":")
            code = getattr(import_module(module), name)
        return code


_FOLD, _KV, _LATENT = (f"slimwhisper.cache.{name}:" for name in ("fold", "kv", "latent"))
_CROSS, _SELF = f"{_LATENT}LatentCross", f"{_LATENT}LatentSelf"


def _approximate(
    *row: str | None, settings: str, whole: str, ladder: str = "ladder", **more: Any
) -> Form:
    """A row whose code is in one module of `slimwhisper.cache.approximate`, with the form's name up
    to "_"; code in other modules is named "module:name".
    """
    name, kept, *code = row
    assert name is not None and kept is not None
    module = f"slimwhisper.cache.approximate.{name.partition('_')[0]}"
    code = [c if c is None or ":" in c else f"{module}:{c}" for c in (*code, settings, ladder)]
    fold, cross, self_, settings_code, ladder_code = code
    assert fold is not None
    more |= {"settings": settings_code, "ladder": ladder_code, "exact": False, "whole": whole}
    return Form(name, kept, fold, cross, self_, **more)


# name, what is stored of a token, fold, cross, self
_ROWS = (
    Form("kv", "keys and values", f"{_FOLD}fold_kv", f"{_KV}KVCross", f"{_KV}KVSelf", paged=True),
    Form("k", "keys", f"{_FOLD}fold_k", _CROSS, _SELF, inverse="key", paged=True),
    Form("v", "values", f"{_FOLD}fold_v", _CROSS, _SELF, inverse="value", paged=True),
    Form("e", "the encoder's output", f"{_FOLD}fold_latent", _CROSS, shared=True, float8="e8"),
    Form(
        *("x", "the layer-normed input", f"{_FOLD}fold_latent", None, _SELF),
        paged=True,
        float8="x8",
    ),
    Form(
        *("hybrid", "the first layer's keys", f"{_FOLD}fold_hybrid", _CROSS),
        shared=True,
        inverse="first_key",
    ),
    Form(
        *("e8", "the encoder's output in float8", f"{_FOLD}fold_float8", _CROSS),
        shared=True,
        listed=False,
    ),
    Form(
        *("x8", "the layer-normed input in float8", f"{_FOLD}fold_float8", None, _SELF),
        paged=True,
        listed=False,
    ),
    _approximate(
        *("zack", "keys and values, rotated and cut", "fold_zack", "ZackCross", "ZackSelf"),
        settings="ZackSettings",
        whole="removal=0",
        learns=True,
    ),
    _approximate(
        *("sparse", "keys and values", f"{_FOLD}fold_kv", "SparseCross", "SparseSelf"),
        settings="SparseSettings",
        whole="threshold=0",
    ),
    _approximate(
        *("sparq", "keys and values, of which a step reads some"),
        *(f"{_FOLD}fold_kv", "SparQCross", "SparQSelf"),
        settings="SparQ",
        whole="r=all,k=all",
    ),
    _approximate(
        *("sparq_latent", "a latent, of which a step reads some"),
        *(f"{_FOLD}fold_latent", "SparQCross", "SparQSelf"),
        settings="SparQLatent",
        whole="r=all,k=all",
        ladder="ladder_latent",
        shared=True,
    ),
    _approximate(
        *("keyformer", "keys and values of the tokens that matter"),
        *(f"{_FOLD}fold_kv", None, "KeyformerSelf"),
        settings="KeyformerSettings",
        whole="budget=all",
    ),
    _approximate(
        *("keyformer_latent", "the layer-normed input of the tokens that matter"),
        *("fold_keyformer_latent", None, "KeyformerSelf"),
        settings="KeyformerLatentSettings",
        whole="budget=all",
        ladder="ladder_latent",
    ),
    _approximate(
        *("compact", "e or x, in float8; of e also few frames"),
        *("fold_compact", "CompactCross", _SELF),
        settings="Compact",
        whole="merge=1,float8=false",
        shared=True,
        paged=True,
    ),
)
FORMS: dict[str, Form] = {form.name: form for form in _ROWS}
EXACT = {"cross": "e", "self": "x"}  # what replaces a rejected form, no larger
PRESETS = {  # name: (cross form, self form); the baseline comes first
    "baseline": ("kv", "kv"),
    "option1": ("k", "k"),
    "option2": ("e", "k"),
    "slim": ("e", "x"),
}


def form_of(spec: str) -> Form:
    """The row of a spec's form."""
    return FORMS[split_spec(spec)[0]]


@lru_cache(maxsize=1024)
def settings_of(spec: str) -> Any:
    """The settings of a spec, with defaults for the others; None: the form has no settings. Raises
    ValueError, one line, for invalid settings.
    """
    form, values = form_of(spec), split_spec(spec)[1]
    if form.settings is None:
        if values:
            raise ValueError(f"{form.name} has no settings")
        return None
    return parse_settings(form.use("settings"), values)  # type: ignore[arg-type]


def canonical(spec: str) -> str:
    """The spec with all settings, in their order. Raises ValueError as `settings_of`."""
    settings = settings_of(spec)
    return spec if settings is None else f"{form_of(spec).name}:{describe_settings(settings)}"


def brief(spec: str) -> str:
    """The shortest spec with the same meaning, without settings that have their default."""
    full = canonical(spec)
    name, values = split_spec(full)
    pairs = values.split(",") if values else []
    for pair in reversed(tuple(pairs)):
        others = [other for other in pairs if other != pair]
        with suppress(ValueError):  # some settings need others
            if canonical(f"{name}:{','.join(others)}") == full:
                pairs = others
    return f"{name}:{','.join(pairs)}" if pairs else name


def register(form: Form) -> None:
    """Add a form, which users can then choose by its name. Raises ValueError for a taken name."""
    if form.name in FORMS:
        raise ValueError(f"there is already a cache form {form.name!r}; choose another name")
    FORMS[form.name] = form


def cross_names(exact: bool = True) -> tuple[str, ...]:
    """The forms that users may choose for cross-attention; exact: without approximate ones."""
    return tuple(f.name for f in _listed(exact) if f.cross is not None)


def self_names(exact: bool = True) -> tuple[str, ...]:
    """The forms that users may choose for self-attention; exact: without approximate ones."""
    return tuple(f.name for f in _listed(exact) if f.self_ is not None)


def _listed(exact: bool) -> list[Form]:
    return [f for f in FORMS.values() if f.listed and (f.exact or not exact)]


def check_form(spec: str, names: tuple[str, ...]) -> str:
    """The canonical spec; its form must be one of `names`. Raises `OptionError`."""
    if split_spec(spec)[0] not in names:
        raise OptionError(not_one_of(spec, names))
    try:
        return canonical(spec)
    except ValueError as error:
        raise OptionError(f"{spec!r}: {error}") from None
