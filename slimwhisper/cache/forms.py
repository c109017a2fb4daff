"""The table of cache forms, the presets, and the choice of a model's two forms.

A form is a way to store a decoder's cache: a class whose attributes say what it stores, and whose
fields are its settings. A SPEC is its name, or its name with settings, such as `sparq:r=16,k=128`;
`parse_form` makes the form of it. To add one, write a subclass of `Form`, and `register` it: the
flags, the guard, the reports and the tests read the table. Nothing here imports torch, nor
`slimwhisper.research`, but for `research`.

Every exact form but `kv` is latent attention (docs/internals/caches.md): each token has a latent Z
= X P, head i's query is mapped to q_i A_i and scored against Z, and the weighted sum of Z is mapped
back by B_i.

    form    P      A_i           B_i          source
    x, e    1      W_K,i^T       W_V,i        slim attention (arXiv 2503.05840), option 2
    k       W_K    unit block i  W_KV,i       option 1, W_KV = W_K^-1 W_V
    v       W_V    W_VK,i^T      unit block i the alternative, W_VK = W_V^-1 W_K
    hybrid  W_K,1  W_K,new,i^T   W_V,new,i    end of section 6, W_new = W_K,1^-1 W; layer 1: k
    x8, e8  1/S    S W_K,i^T     S W_V,i      as x and e, for a latent that is rounded to float8

The source X of `x8` and `e8` is the output of a layer norm, n G + B. They store (X - B) / S with
column scales S of about |G|, so that all columns have a similar range; B adds the same number to
all scores, and B W_V goes into the output bias.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, get_type_hints

from slimwhisper.errors import CacheError, OptionError
from slimwhisper.text import did_you_mean, not_one_of
from slimwhisper.types import Dims

if TYPE_CHECKING:  # the command line starts without torch
    from slimwhisper.cache.base import CrossLayer, SelfLayer
    from slimwhisper.cache.fold import Attention, Context, Folded
    from slimwhisper.cache.guard import Activations

CACHE_DTYPES = ("fp8",)
SUFFIX = ".safetensors"  # of the files that `slimwhisper calibrate` writes
ALL = "all"  # how None is written in a spec


@dataclass(frozen=True)
class Form:
    """A form with its settings, its other fields: of the types int, float, bool, str, or one of the
    first two or None, all with defaults. `__post_init__` raises ValueError, which says what is
    valid. `str` gives the spec with all settings, in their order.
    """

    name: ClassVar[str]
    attentions: ClassVar[Sequence[str]] = ("cross", "self")  # that it is for
    shared: ClassVar[bool] = False  # all cross-attention layers read one store
    # the weight to invert: the guard measures such forms
    inverse: ClassVar[Literal["key", "value", "first_key"] | None] = None
    in_float8: ClassVar["type[Form] | None"] = None  # the same form in float8
    rounds: ClassVar[bool] = False  # its latent to float8
    exact: ClassVar[bool] = True  # False: attention is approximated, or may be
    # by layer and name, what it has learned; it is no setting, and forms are equal without it
    learned: Sequence[Mapping[str, Any]] | None = field(
        default=None, repr=False, compare=False, kw_only=True
    )

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """The weights of a block, moved to where this form needs them; not yet rounded."""
        raise NotImplementedError(self.name)

    @property
    def tensors(self) -> Sequence[str]:
        """The names of what it learns for each layer, if it does."""
        return ()

    @property
    def learns(self) -> bool:
        """Whether its fold needs what `learn` would find."""
        return bool(self.tensors) and self.learned is None

    def learn(
        self, attention: str, blocks: "Sequence[Attention]", activations: "Activations"
    ) -> Self:
        """The same form with what it learned for all layers of "cross" or "self" attention: if not
        otherwise, the mean over tokens of each layer's input, [d].
        """
        return replace(self, learned=[{"mean": x.mean(dim=0)} for x in activations.self_inputs])

    @property
    def cross(self) -> "type[CrossLayer]":
        """The class of its cross-attention."""
        from slimwhisper.cache.latent import LatentCross

        return LatentCross

    @property
    def self_(self) -> "type[SelfLayer]":
        """The class of its self-attention."""
        from slimwhisper.cache.latent import LatentSelf

        return LatentSelf

    @classmethod
    def ladder(cls, dims: Dims, part: str) -> list[list[str]]:
        """Lists of settings for "cross" or "self", such as ["k=128", "k=64"], from the largest
        cache or reads to the smallest: what `tradeoff` measures and `calibrate` searches.
        """
        return []

    def require(self, holds: bool, name: str, valid: str) -> None:
        """Raise ValueError, with what is valid, unless a setting is."""
        if not holds:
            raise ValueError(f"{name}={getattr(self, name)}: give {valid}")

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings, by name."""
        return {name: getattr(self, name) for name in _settings_of(type(self))}

    def __str__(self) -> str:
        return _spec(self.name, self.settings)


class KV(Form):
    """Keys and values of every token, the baseline."""

    name = "kv"

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """Nothing is folded."""
        return block.folded(self, project=block.key, values=block.value)

    @property
    def cross(self) -> "type[CrossLayer]":
        from slimwhisper.cache.kv import KVCross

        return KVCross

    @property
    def self_(self) -> "type[SelfLayer]":
        from slimwhisper.cache.kv import KVSelf

        return KVSelf


class K(Form):
    """Keys. Values are rebuilt by W_KV = W_K^-1 W_V."""

    name, inverse = "k", "key"

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        value_map = block.solve(block.key, block.value)
        return block.folded(self, project=block.key, value_map=value_map)


class V(Form):
    """Values. Keys are rebuilt by W_VK = W_V^-1 W_K."""

    name, inverse = "v", "value"

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        key_map = block.solve(block.value, block.key)
        return block.folded(self, project=block.value, key_map=key_map)


class E8(Form):
    """The encoder's output in float8."""

    name, attentions, shared, rounds = "e8", ("cross",), True, True

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """Column scales and the norm's bias, or the mean, go into the weights."""
        assert context.norm is not None
        weight, bias = (t.double() for t in context.norm)
        # a nearly constant column would store only rounding errors
        column_scales = weight.abs().maximum(bias.abs() / 64).clamp(min=1e-6)
        if self.learned is not None:
            bias = self.learned[context.layer]["mean"].double()
        return block.folded(
            self,
            key_map=block.by_head(block.key * column_scales),
            value_map=block.by_head(block.value * column_scales),
            out_bias=block.out_bias + block.out.double() @ (block.value.double() @ bias),
            column_scales=column_scales,
            offset=bias,
        )


class X8(E8):
    """The layer-normed input in float8, without its mean over the tokens of a text: some columns
    are nearly constant and large, so their rounding alone would change the scores.
    """

    name, attentions, shared = "x8", ("self",), False

    @property
    def tensors(self) -> Sequence[str]:
        return ("mean",)


class E(Form):
    """The encoder's output."""

    name, attentions, shared, in_float8 = "e", ("cross",), True, E8

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """W_K goes to the query side, W_V to the output side."""
        key_map, value_map = block.by_head(block.key), block.by_head(block.value)
        return block.folded(self, key_map=key_map, value_map=value_map)


class X(E):
    """The layer-normed input."""

    name, attentions, shared, in_float8 = "x", ("self",), False, X8


class Hybrid(Form):
    """The first layer's keys, from which all layers rebuild their keys and values."""

    name, attentions, shared, inverse = "hybrid", ("cross",), True, "first_key"

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """In the first layer this is `k`, without a key map."""
        first = context.blocks[0].key
        key_map = block.solve(first, block.key) if context.layer else None
        value_map = block.solve(first, block.value)
        return block.folded(self, project=first, key_map=key_map, value_map=value_map)


FORMS: dict[str, type[Form]] = {f.name: f for f in (KV, K, V, E, X, Hybrid, E8, X8)}
EXACT: dict[str, Form] = {"cross": E(), "self": X()}  # what replaces a rejected form, no larger
PRESETS = {  # name: (cross form, self form); the baseline comes first
    "baseline": ("kv", "kv"),
    "option1": ("k", "k"),
    "option2": ("e", "k"),
    "slim": ("e", "x"),
}


def research(module: str = "") -> Any:
    """A module of `slimwhisper.research`, which has the approximate forms, and the files that hold
    what they learned: imported when one is named, and known to the core in this place alone.
    """
    return import_module(f"slimwhisper.research{module}")


def register(form: type[Form]) -> None:
    """Add a form, which users can then choose by its name. Raises ValueError for a taken name."""
    if form.name in FORMS:
        raise ValueError(f"there is already a cache form {form.name!r}; choose another name")
    FORMS[form.name] = form


def all_forms() -> dict[str, type[Form]]:
    """The whole table, by name."""
    research(".forms")  # registers them
    return FORMS


def names_of(attention: str, exact: bool = True) -> tuple[str, ...]:
    """The forms that users may choose for "cross" or "self"; exact: without approximate ones."""
    named = {f.name: f.attentions for f in FORMS.values() if f.exact and not f.rounds}
    if not exact:  # those of the package are not imported yet
        named |= research().ATTENTIONS
        named |= {f.name: f.attentions for f in FORMS.values()}
    return tuple(name for name, attentions in named.items() if attention in attentions)


def parse_form(spec: str | Form) -> Form:
    """The form that a spec means, with defaults for the settings that it leaves out; a form stays
    as it is. Raises ValueError, one line, for an unknown form or invalid settings.
    """
    if isinstance(spec, Form):
        return spec
    name, _, text = spec.partition(":")
    form = FORMS.get(name) or all_forms().get(name)
    if form is None:
        raise ValueError(f"unknown cache form {name!r}")
    hints, known = get_type_hints(form) if text else {}, _settings_of(form)
    if text and not known:
        raise ValueError(f"{name} has no settings")
    values: dict[str, Any] = {}
    for pair in text.split(",") if text else ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key not in known or not equals:
            example = str(form()).partition(":")[2]
            raise ValueError(f"{pair.strip()!r} is not a setting; give for example {example}")
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = _value(key, value, hints[key])
    return form(**values)


def brief(spec: str | Form) -> str:
    """The shortest spec with the same meaning, without settings that have their default."""
    form = parse_form(spec)
    settings = form.settings
    for name in reversed(form.settings):
        others = {other: value for other, value in settings.items() if other != name}
        with suppress(ValueError):  # some settings need others
            settings = others if type(form)(**others) == form else settings
    return _spec(form.name, settings)


def check_form(spec: str, names: Sequence[str]) -> Form:
    """The form of a spec; it must be one of `names`. Raises `OptionError`."""
    if spec.partition(":")[0] not in names:
        raise OptionError(not_one_of(spec, names))
    try:
        return parse_form(spec)
    except ValueError as error:
        raise OptionError(f"{spec!r}: {error}") from None


def check_cache(cache: str) -> str:
    """The argument, if it is a preset's name or the path of a file. Raises `OptionError`."""
    if cache not in PRESETS and not (cache.endswith(SUFFIX) or Path(cache).is_file()):
        known = f"{', '.join(PRESETS)}, and not a file from slimwhisper calibrate"
        raise OptionError(f"cache: {cache!r} is not one of {known}{did_you_mean(cache, PRESETS)}")
    return cache


def choose_forms(
    cache: str = "slim",
    cross_cache: str | None = None,
    self_cache: str | None = None,
    cache_dtype: str | None = None,
) -> tuple[Form, Form]:
    """The forms for cross- and self-attention of a preset; `cross_cache` and `self_cache`, specs,
    replace either one.

    cache: a preset, or the path of a file from `calibrate`, which has both forms. cache_dtype:
    "fp8" for a float8 latent, with forms that have one. Raises `OptionError` for an unknown name or
    setting, or for forms without a float8 latent; `CacheError` for a file.
    """
    given = {"cross_cache": cross_cache, "self_cache": self_cache, "cache_dtype": cache_dtype}
    cross_forms, self_forms = names_of("cross", exact=False), names_of("self", exact=False)
    if check_cache(cache) not in PRESETS:
        for option, value in given.items():
            if value is not None:
                raise OptionError(f"{option}: {cache} has both forms; leave {option} out")
        header = research(".cache_file").read_header(cache)
        try:
            return check_form(header.cross, cross_forms), check_form(header.self_, self_forms)
        except OptionError as error:
            again = "run slimwhisper calibrate again"
            raise CacheError(f"{header.path.name}: {error}; {again}") from None
    if cache_dtype not in (None, *CACHE_DTYPES):
        raise OptionError(f"cache_dtype: {not_one_of(cache_dtype, CACHE_DTYPES)}")
    try:
        option = "cross_cache"
        cross = check_form(PRESETS[cache][0] if cross_cache is None else cross_cache, cross_forms)
        option = "self_cache"
        self_ = check_form(PRESETS[cache][1] if self_cache is None else self_cache, self_forms)
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from None
    if cache_dtype is None:
        return cross, self_
    if cross.in_float8 is None or self_.in_float8 is None:
        raise OptionError(
            f"cache_dtype: fp8 is for cross-attention form 'e' and self-attention form 'x' "
            f"(cache slim), not '{cross}' and '{self_}'"
        )
    return cross.in_float8(), self_.in_float8()


def _settings_of(form: type[Form]) -> list[str]:
    """The names of a form's settings."""
    return [f.name for f in fields(form) if f.compare]


def _value(name: str, text: str, hint: Any) -> Any:
    """The value of a setting of this type."""
    kinds = get_args(hint) or (hint,)  # int | None -> (int, NoneType)
    if text == ALL and type(None) in kinds:
        return None
    if kinds[0] is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name}={text} is neither true nor false")
        return text.lower() == "true"
    try:
        return kinds[0](text)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}[kinds[0]]
        or_all = f" or {ALL}" if type(None) in kinds else ""
        raise ValueError(f"{name}={text} is not {kind}{or_all}") from None


def _spec(name: str, settings: Mapping[str, Any]) -> str:
    """The form of this name with these settings, as users write it."""
    written = {True: "true", False: "false", None: ALL}
    pairs = [
        f"{key}={written[v] if v is None or isinstance(v, bool) else v}"
        for key, v in settings.items()
    ]
    return f"{name}:{','.join(pairs)}" if pairs else name
