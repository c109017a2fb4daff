"""The cache forms of a model: from a preset, from single options, or from a calibrated file."""

from slimwhisper.cache.file import looks_like_file, read_header
from slimwhisper.cache.forms import FORMS, PRESETS, check_form, cross_names, form_of, self_names
from slimwhisper.errors import CacheError, OptionError
from slimwhisper.text import did_you_mean, not_one_of

CACHE_DTYPES = ("fp8",)


def check_cache(cache: str) -> str:
    """The argument, if it is a preset's name or the path of a file. Raises `OptionError`."""
    if cache not in PRESETS and not looks_like_file(cache):
        known = f"{', '.join(PRESETS)}, and not a file from slimwhisper calibrate"
        raise OptionError(f"cache: {cache!r} is not one of {known}{did_you_mean(cache, PRESETS)}")
    return cache


def _forms_of_file(path: str) -> tuple[str, str]:
    """(cross spec, self spec) of a file that `calibrate` wrote. Raises `CacheError`."""
    header = read_header(path)
    cross = tuple(f.name for f in FORMS.values() if f.cross is not None)
    self_ = tuple(f.name for f in FORMS.values() if f.self_ is not None)
    try:
        return check_form(header.cross, cross), check_form(header.self_, self_)
    except OptionError as error:
        raise CacheError(f"{header.path.name}: {error}; run slimwhisper calibrate again") from None


def choose_forms(
    cache: str = "slim",
    cross_cache: str | None = None,
    self_cache: str | None = None,
    cache_dtype: str | None = None,
) -> tuple[str, str]:
    """(cross spec, self spec) of a preset; `cross_cache` and `self_cache` replace either one.

    cache: a preset, or the path of a file from `calibrate`, which has both forms. cache_dtype:
    "fp8" for a float8 latent, with forms that have one. Raises `OptionError` for an unknown name or
    setting, or for forms without a float8 latent; `CacheError` for a file.
    """
    check_cache(cache)
    if cache not in PRESETS:
        others = {"cross_cache": cross_cache, "self_cache": self_cache, "cache_dtype": cache_dtype}
        for option, value in others.items():
            if value is not None:
                raise OptionError(f"{option}: {cache} has both forms; leave {option} out")
        return _forms_of_file(cache)
    if cache_dtype not in (None, *CACHE_DTYPES):
        raise OptionError(f"cache_dtype: {not_one_of(cache_dtype, CACHE_DTYPES)}")
    cross, self_ = PRESETS[cache]
    try:
        option = "cross_cache"
        cross = check_form(cross if cross_cache is None else cross_cache, cross_names(exact=False))
        option = "self_cache"
        self_ = check_form(self_ if self_cache is None else self_cache, self_names(exact=False))
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from None
    if cache_dtype is None:
        return cross, self_
    cross8, self8 = form_of(cross).float8, form_of(self_).float8
    if cross8 is None or self8 is None:
        raise OptionError(
            f"cache_dtype: fp8 is for cross-attention form 'e' and self-attention form 'x' "
            f"(cache slim), not {cross!r} and {self_!r}"
        )
    return cross8, self8
