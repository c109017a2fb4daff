"""The table of cache forms, the presets, and the choice of a model's two forms.

A form is a way to store a decoder's cache: a class whose attributes say what it stores, and whose
fields are its settings. A spec is its name, or its name with settings, such as `sparq:r=16,k=128`;
`parse_form` makes the form of it. To add a form, write a subclass of `Form`, and `register` it: the
flags, the exactness check, the reports and the tests read the table. Nothing here imports torch,
nor `slimwhisper.research`, except the function `research`.

Every exact form but `kv` is latent attention (docs/internals/caches.md): each token has a latent Z
= X P, the query q_i of head i is mapped to q_i A_i and scored against Z, and the weighted sum of Z
is mapped back by B_i.

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
    from slimwhisper.cache.fold import Activations, Attention, Context, Folded

CACHE_DTYPES = ("fp8",)
SUFFIX = ".safetensors"  # of the files that `slimwhisper calibrate` writes
ALL = "all"  # how None is written in a spec


@dataclass(frozen=True)
class Form:
    """A way to store a decoder's cache, with its settings.

    A subclass has its settings as fields, of the types int, float, bool, str, or one of the first
    two or None, all with defaults. Its `__post_init__` raises ValueError for invalid settings, and
    says what is valid. `str` gives the spec with all settings, in the order of the fields.

    Attributes:
        name: The name of the form.
        attentions: The attentions that it is for: "cross", the audio, and "self", the text.
        shared: Whether all layers of cross-attention read one store.
        inverse: The weight that it inverts: "key", "value" or "first_key". The exactness check
            measures such forms. None means that it inverts none.
        in_float8: The same form in float8, if there is one.
        rounds: Whether it rounds its latent to float8.
        exact: Whether it computes the same attention. False means that attention is approximated,
            or may be.
        learned: What it has learned, by layer and name. This is no setting, and forms are equal
            without it.
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
        """Move the weights of an attention block to where this form needs them.

        They are not rounded yet.

        Args:
            block: The weights of the block.
            context: What the form may need besides: the layer, the norm before it, and all blocks.

        Returns:
            The moved weights.

        Raises:
            NotImplementedError: When a subclass does not have this method.
        """
        raise NotImplementedError(self.name)

    @property
    def tensors(self) -> Sequence[str]:
        """The names of what it learns for each layer, if it learns."""
        return ()

    @property
    def learns(self) -> bool:
        """Whether its `fold` needs what `learn` would find."""
        return bool(self.tensors) and self.learned is None

    @property
    def guarded(self) -> bool:
        """Whether the guard has to make its plan: it inverts a weight, or learns."""
        return self.inverse is not None or self.learns

    def learn(
        self, attention: str, blocks: "Sequence[Attention]", activations: "Activations"
    ) -> Self:
        """Learn from recorded activations.

        By default this is the mean over tokens of each layer's input, [d].

        Args:
            attention: "cross" or "self".
            blocks: The weights of the attention blocks of all layers.
            activations: The recorded activations.

        Returns:
            The same form with what it learned for all layers.
        """
        return replace(self, learned=[{"mean": x.mean(dim=0)} for x in activations.self_inputs])

    @property
    def cross(self) -> "type[CrossLayer]":
        """The class of its cross-attention. By default it is `LatentCross`."""
        from slimwhisper.cache.latent import LatentCross

        return LatentCross

    @property
    def self_(self) -> "type[SelfLayer]":
        """The class of its self-attention. By default it is `LatentSelf`."""
        from slimwhisper.cache.latent import LatentSelf

        return LatentSelf

    @classmethod
    def ladder(cls, dims: Dims, part: str) -> list[list[str]]:
        """List the settings that `tradeoff` measures and `calibrate` searches.

        Args:
            dims: The dimensions of the model.
            part: "cross" or "self".

        Returns:
            Lists of settings such as ["k=128", "k=64"], from the largest cache or reads to the
                smallest.
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
        """Return the spec with all settings."""
        return _spec(self.name, self.settings)


class KV(Form):
    """The keys and values of every token, which is the baseline."""

    name = "kv"

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """Fold nothing."""
        return block.folded(self, project=block.key, values=block.value)

    @property
    def cross(self) -> "type[CrossLayer]":
        """The class of its cross-attention, `KVCross`."""
        from slimwhisper.cache.kv import KVCross

        return KVCross

    @property
    def self_(self) -> "type[SelfLayer]":
        """The class of its self-attention, `KVSelf`."""
        from slimwhisper.cache.kv import KVSelf

        return KVSelf


class K(Form):
    """The keys. Values are rebuilt by W_KV = W_K^-1 W_V."""

    name, inverse = "k", "key"

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """Move the weights of the value behind the inverse of the key's."""
        return block.folded(self, project=block.key, value_map=block.solve(block.key, block.value))


class V(Form):
    """The values. Keys are rebuilt by W_VK = W_V^-1 W_K."""

    name, inverse = "v", "value"

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """Move the weights of the key behind the inverse of the value's."""
        return block.folded(self, project=block.value, key_map=block.solve(block.value, block.key))


class E8(Form):
    """The encoder's output in float8."""

    name, attentions, shared, rounds = "e8", ("cross",), True, True

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """Move the column scales and the bias of the norm, or the mean, into the weights."""
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
    """The layer-normed input in float8, without its mean over the tokens of a text.

    Some columns are nearly constant and large, so their rounding alone would change the scores.
    """

    name, attentions, shared = "x8", ("self",), False
    tensors = ("mean",)  # that it learns


class E(Form):
    """The encoder's output."""

    name, attentions, shared, in_float8 = "e", ("cross",), True, E8

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """Move W_K to the side of the query, and W_V to that of the output."""
        key_map, value_map = block.by_head(block.key), block.by_head(block.value)
        return block.folded(self, key_map=key_map, value_map=value_map)


class X(E):
    """The layer-normed input."""

    name, attentions, shared, in_float8 = "x", ("self",), False, X8


class Hybrid(Form):
    """The keys of the first layer, from which all layers rebuild their keys and values."""

    name, attentions, shared, inverse = "hybrid", ("cross",), True, "first_key"

    def fold(self, block: "Attention", context: "Context") -> "Folded":
        """Move the weights behind the inverse of the first layer's key weights.

        That layer is `k`.
        """
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
OVERRIDES = ("cross_cache", "self_cache", "cache_dtype")  # options that change a preset's caches


def research(module: str = "") -> Any:
    """Import a module of `slimwhisper.research`, such as ".forms"; "" means the package itself.

    It has the approximate forms, and the files that hold what they learned. It is imported when one
    of them is named, and the core knows of it in this place alone.
    """
    return import_module(f"slimwhisper.research{module}")


def register(form: type[Form]) -> None:
    """Add a form, which users can then choose by its name.

    Args:
        form: The class of the form.

    Raises:
        ValueError: When there is a form with this name already.
    """
    if form.name in FORMS:
        raise ValueError(f"there is already a cache form {form.name!r}; choose another name")
    FORMS[form.name] = form


def all_forms() -> dict[str, type[Form]]:
    """Return the whole table by name, with the approximate forms.

    Returns:
        The forms.
    """
    research(".forms")  # registers them
    return FORMS


def names_of(attention: str, exact: bool = True) -> tuple[str, ...]:
    """List the forms that users may choose.

    Args:
        attention: "cross" or "self".
        exact: Whether to leave the approximate forms out. The default is True.

    Returns:
        The names of the forms.
    """
    named = {f.name: f.attentions for f in FORMS.values() if f.exact and not f.rounds}
    if not exact:  # those of the package are not imported yet
        named |= research().ATTENTIONS
        named |= {f.name: f.attentions for f in FORMS.values()}
    return tuple(name for name, attentions in named.items() if attention in attentions)


def parse_form(spec: str | Form) -> Form:
    """Make the form that a spec means.

    Settings that the spec leaves out have their defaults.

    Args:
        spec: The spec. A form is returned as it is.

    Returns:
        The form.

    Raises:
        ValueError: When the form is unknown, or a setting is invalid. The message is one line.
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
    """Write the shortest spec with the same meaning, without settings that have their default."""
    form = parse_form(spec)
    settings = form.settings
    for name in reversed(form.settings):
        others = {other: value for other, value in settings.items() if other != name}
        with suppress(ValueError):  # some settings need others
            settings = others if type(form)(**others) == form else settings
    return _spec(form.name, settings)


def check_form(spec: str, names: Sequence[str]) -> Form:
    """Make the form of a spec, which must be one of `names`. Other specs raise OptionError."""
    if spec.partition(":")[0] not in names:
        raise OptionError(not_one_of(spec, names))
    try:
        return parse_form(spec)
    except ValueError as error:
        raise OptionError(f"{spec!r}: {error}") from None


def check_cache(cache: str) -> str:
    """Return a value that is the name of a preset or the path of a file.

    Other values raise OptionError.
    """
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
    """Choose the forms of the cross- and self-attention of a model.

    Args:
        cache: A preset, or the path of a file from `calibrate`, which has both forms.
        cross_cache: A spec that replaces the preset's form of the cross-attention.
        self_cache: A spec that replaces the preset's form of the self-attention.
        cache_dtype: "fp8" for a latent in float8. Both forms must have one.

    Returns:
        The form of the cross-attention.
        The form of the self-attention.

    Raises:
        OptionError: When a name or a setting is unknown, or a form has no latent in float8.
        CacheError: When a file cannot be used.
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
