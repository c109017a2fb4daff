"""The cache forms of a model: from a preset, from single options, or from a calibrated file."""

from slimwhisper.cache.file import looks_like_file, read_header
from slimwhisper.cache.forms import PRESETS, Form, check_form, names_of
from slimwhisper.errors import CacheError, OptionError
from slimwhisper.text import did_you_mean, not_one_of

CACHE_DTYPES = ("fp8",)


def check_cache(cache: str) -> str:
    """The argument, if it is a preset's name or the path of a file. Raises `OptionError`."""
    if cache not in PRESETS and not looks_like_file(cache):
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
    check_cache(cache)
    given = {"cross_cache": cross_cache, "self_cache": self_cache, "cache_dtype": cache_dtype}
    cross_forms, self_forms = names_of("cross", exact=False), names_of("self", exact=False)
    if cache not in PRESETS:
        for option, value in given.items():
            if value is not None:
                raise OptionError(f"{option}: {cache} has both forms; leave {option} out")
        header = read_header(cache)
        try:
            cross = check_form(header.cross, (*cross_forms, "e8"))
            return cross, check_form(header.self_, (*self_forms, "x8"))
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
