"""The one table of cache forms, and the presets that users choose among.

A form is a way to keep a decoder's cache. A SPEC is its name, or its name with settings, such as
`sparq:r=16,k=128`; wherever a form is chosen, a spec may be given. To add one: a file in this
folder with its store (see `slimwhisper.cache.base`) and its folding of the weights, and a row in
`FORMS`. The flags, the guard, the reports and the tests read the table. Nothing here imports torch:
a row names its code, which is imported on first use.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from slimwhisper.cache.file import looks_like_file, read_header
from slimwhisper.cache.settings import describe_settings, parse_settings, split_spec
from slimwhisper.errors import CacheError, OptionError

Code = str | Callable[..., Any]  # a function or class, or its place: "module:name"


@dataclass(frozen=True, slots=True)
class Form:
    """One row: what a form keeps of a token, and the code that does it."""

    name: str
    kept: str  # what is kept of a token, in words
    fold: Code  # (Attention, Context) -> Folded
    cross: Code | None = None  # a `CrossLayer`; None: not for cross-attention
    self_: Code | None = None  # a `SelfLayer`; None: not for self-attention
    shared: bool = False  # all cross-attention layers read one store
    inverse: Literal["key", "value", "first_key"] | None = None  # the weight it inverts: guarded
    paged: bool = False  # its `self_` is a `PagedLayer` that takes pages of 16 tokens
    float8: str | None = None  # the form that keeps the same in float8
    listed: bool = True  # users choose it by name; False: through another option
    settings: Code | None = None  # its settings: see `slimwhisper.cache.settings`
    exact: bool = True  # False: attention is approximated, except with the settings `whole`
    whole: str = ""  # settings at which nothing is left out, if it is not exact
    learns: bool = False  # its fold looks at recorded activations
    # (Dims, "cross" or "self") -> lists of settings such as ["k=128", "k=64"], each from the most
    # that is kept or read to the least: what `tradeoff` measures and `calibrate` searches
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


_FOLD, _KV, _LATENT = (f"slimwhisper.cache.{name}" for name in ("fold", "kv", "latent"))
_CROSS, _SELF = f"{_LATENT}:LatentCross", f"{_LATENT}:LatentSelf"


def _approximate(
    name: str,
    kept: str,
    whole: str,
    settings: str,
    fold: str,
    cross: str | None,
    self_: str | None,
    ladder: str = "ladder",
    **more: Any,
) -> Form:
    """A row of `slimwhisper.cache.approximate`: its code is in one module there, whose name is the
    form's up to "_"; what is elsewhere is named with its module.
    """
    here = f"slimwhisper.cache.approximate.{name.partition('_')[0]}"

    def code(place: str) -> str:
        return place if ":" in place else f"{here}:{place}"

    return Form(
        name,
        kept,
        code(fold),
        cross and code(cross),
        self_ and code(self_),
        settings=code(settings),
        ladder=code(ladder),
        exact=False,
        whole=whole,
        **more,
    )


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form(
            "kv",
            "keys and values",
            f"{_FOLD}:fold_kv",
            f"{_KV}:KVCross",
            f"{_KV}:KVSelf",
            paged=True,
        ),
        Form("k", "keys", f"{_FOLD}:fold_k", _CROSS, _SELF, inverse="key", paged=True),
        Form("v", "values", f"{_FOLD}:fold_v", _CROSS, _SELF, inverse="value", paged=True),
        Form(
            "e",
            "the encoder's output",
            f"{_FOLD}:fold_latent",
            _CROSS,
            shared=True,
            float8="e8",
        ),
        Form(
            "x",
            "the layer-normed input",
            f"{_FOLD}:fold_latent",
            None,
            _SELF,
            paged=True,
            float8="x8",
        ),
        Form(
            "hybrid",
            "the first layer's keys",
            f"{_FOLD}:fold_hybrid",
            _CROSS,
            shared=True,
            inverse="first_key",
        ),
        Form(
            "e8",
            "the encoder's output in float8",
            f"{_FOLD}:fold_float8",
            _CROSS,
            shared=True,
            listed=False,
        ),
        Form(
            "x8",
            "the layer-normed input in float8",
            f"{_FOLD}:fold_float8",
            None,
            _SELF,
            paged=True,
            listed=False,
        ),
        _approximate(
            "zack",
            "keys and values, rotated and cut",
            "removal=0",
            "ZackSettings",
            "fold_zack",
            "ZackCross",
            "ZackSelf",
            learns=True,
        ),
        _approximate(
            "sparse",
            "keys and values",
            "threshold=0",
            "SparseSettings",
            f"{_FOLD}:fold_kv",
            "SparseCross",
            "SparseSelf",
        ),
        _approximate(
            "sparq",
            "keys and values, of which a step reads some",
            "r=all,k=all",
            "SparQ",
            f"{_FOLD}:fold_kv",
            "SparQCross",
            "SparQSelf",
        ),
        _approximate(
            "sparq_latent",
            "a latent, of which a step reads some",
            "r=all,k=all",
            "SparQLatent",
            f"{_FOLD}:fold_latent",
            "SparQCross",
            "SparQSelf",
            "ladder_latent",
            shared=True,
        ),
        _approximate(
            "keyformer",
            "keys and values of the tokens that matter",
            "budget=all",
            "KeyformerSettings",
            f"{_FOLD}:fold_kv",
            None,
            "KeyformerSelf",
        ),
        _approximate(
            "keyformer_latent",
            "the layer-normed input of the tokens that matter",
            "budget=all",
            "KeyformerLatentSettings",
            "fold_keyformer_latent",
            None,
            "KeyformerSelf",
            "ladder_latent",
        ),
        _approximate(
            "compact",
            "e or x, in float8; of e also few frames",
            "merge=1,float8=false",
            "Compact",
            "fold_compact",
            "CompactCross",
            _SELF,
            shared=True,
            paged=True,
        ),
    )
}
EXACT = {"cross": "e", "self": "x"}  # what replaces a rejected form, no larger
PRESETS = {  # name: (cross form, self form); the baseline comes first
    "baseline": ("kv", "kv"),
    "option1": ("k", "k"),
    "option2": ("e", "k"),
    "slim": ("e", "x"),
}
CACHE_DTYPES = ("fp8",)


def form_of(spec: str) -> Form:
    """The row of a spec, whatever its settings."""
    return FORMS[split_spec(spec)[0]]


@lru_cache(maxsize=1024)
def settings_of(spec: str) -> Any:
    """The settings of a spec, with the defaults for those that it does not name; None: the form
    has none. Raises ValueError, one line, for settings that make no sense.
    """
    form, values = form_of(spec), split_spec(spec)[1]
    if form.settings is None:
        if values:
            raise ValueError(f"{form.name} has no settings")
        return None
    return parse_settings(form.use("settings"), values)  # type: ignore[arg-type]


def canonical(spec: str) -> str:
    """The spec with all of its settings, in their order. Raises ValueError as `settings_of`."""
    settings = settings_of(spec)
    return spec if settings is None else f"{form_of(spec).name}:{describe_settings(settings)}"


def brief(spec: str) -> str:
    """The shortest spec that means the same: without the settings that are the defaults."""
    whole = canonical(spec)
    name, values = split_spec(whole)
    words = values.split(",") if values else []
    for word in reversed(tuple(words)):
        fewer = [other for other in words if other != word]
        with suppress(ValueError):  # some settings need others
            if canonical(f"{name}:{','.join(fewer)}") == whole:
                words = fewer
    return f"{name}:{','.join(words)}" if words else name


def register(form: Form) -> None:
    """Add your own form; its name then works wherever a form is chosen.

    Raises ValueError for a name that is taken.
    """
    if form.name in FORMS:
        raise ValueError(f"there is a cache form {form.name!r} already; give yours another name")
    FORMS[form.name] = form


def cross_names(exact: bool = True) -> tuple[str, ...]:
    """The forms that users may choose for the cross-attention; exact: without approximate ones."""
    return tuple(f.name for f in _listed(exact) if f.cross is not None)


def self_names(exact: bool = True) -> tuple[str, ...]:
    """The forms that users may choose for the self-attention; exact: without approximate ones."""
    return tuple(f.name for f in _listed(exact) if f.self_ is not None)


def _listed(exact: bool) -> list[Form]:
    return [f for f in FORMS.values() if f.listed and (f.exact or not exact)]


def check_form(spec: str, names: tuple[str, ...]) -> str:
    """The canonical form of a spec whose form must be one of `names`. Raises `OptionError`."""
    if split_spec(spec)[0] not in names:
        raise OptionError(f"{spec!r} is not one of {', '.join(names)}")
    try:
        return canonical(spec)
    except ValueError as error:
        raise OptionError(f"{spec!r}: {error}") from None


def check_cache(cache: str) -> str:
    """The same, if it is a preset's name or the path of a file. Raises `OptionError`."""
    if cache not in PRESETS and not looks_like_file(cache):
        raise OptionError(
            f"cache: {cache!r} is not one of {', '.join(PRESETS)}, nor a file that slimwhisper "
            "calibrate wrote"
        )
    return cache


def _forms_of_file(path: str) -> tuple[str, str]:
    """(cross spec, self spec) of a file that `calibrate` wrote. Raises `CacheError`."""
    header = read_header(path)
    cross = tuple(f.name for f in FORMS.values() if f.cross is not None)
    own = tuple(f.name for f in FORMS.values() if f.self_ is not None)
    try:
        return check_form(header.cross, cross), check_form(header.self_, own)
    except OptionError as error:
        raise CacheError(f"{header.path.name}: {error}; run slimwhisper calibrate again") from None


def choose_forms(
    cache: str = "slim",
    cross_cache: str | None = None,
    self_cache: str | None = None,
    cache_dtype: str | None = None,
) -> tuple[str, str]:
    """(cross spec, self spec) of a preset; `cross_cache` and `self_cache` replace either one.

    cache: a preset, or the path of a file that `calibrate` wrote, which says everything.
    cache_dtype: "fp8" for a float8 latent, with forms that have one. Raises `OptionError` for an
    unknown name or setting, or for forms without a float8 latent; `CacheError` for a file.
    """
    check_cache(cache)
    if cache not in PRESETS:
        others = {"cross_cache": cross_cache, "self_cache": self_cache, "cache_dtype": cache_dtype}
        for option, value in others.items():
            if value is not None:
                raise OptionError(f"{option}: {cache} says both forms; leave {option} out")
        return _forms_of_file(cache)
    known: Mapping[str, tuple[str | None, tuple[str, ...]]] = {
        "cache_dtype": (cache_dtype, CACHE_DTYPES),
    }
    for option, (value, names) in known.items():
        if value is not None and value not in names:
            raise OptionError(f"{option}: {value!r} is not one of {', '.join(names)}")
    forms: dict[str, tuple[str | None, tuple[str, ...]]] = {
        "cross_cache": (cross_cache, cross_names(exact=False)),
        "self_cache": (self_cache, self_names(exact=False)),
    }
    chosen = list(PRESETS[cache])
    for i, (option, (spec, names)) in enumerate(forms.items()):
        if spec is not None:
            try:
                chosen[i] = check_form(spec, names)
            except OptionError as error:
                raise OptionError(f"{option}: {error}") from None
    cross, self_ = chosen
    if cache_dtype == "fp8":
        rounded = form_of(cross).float8, form_of(self_).float8
        if rounded[0] is None or rounded[1] is None:
            raise OptionError(
                f"cache_dtype: fp8 is for cross-attention form 'e' and self-attention form 'x' "
                f"(cache slim), not {cross!r} and {self_!r}"
            )
        return rounded[0], rounded[1]
    return cross, self_
