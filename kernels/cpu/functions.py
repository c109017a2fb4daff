"""The functions in C: their names, arguments, and which of them a processor runs."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
# rename a function when its arguments change, so that an older library does not load
_SIGNATURES: dict[str, Sequence[Any]] = {
    "multiply_rows": (*[_POINTER] * 7, *[_LONG] * 3, _INT, _INT),
    "multiply_head_rows": (*[_POINTER] * 4, *[_LONG] * 4, _INT),
    "multiply_heads_transposed": (*[_POINTER] * 3, *[_LONG] * 4, _INT),
    "attend_pages": (*[_POINTER] * 10, *[_LONG] * 11, _FLOAT, _INT),
    "latent_block": (*[_POINTER] * 10, *[_LONG] * 8, _INT),
    "mlp": (*[_POINTER] * 5, _LONG, _INT),
    "add_norm": (*[_POINTER] * 9, *[_LONG] * 4, _INT),
}
# of float32, for both dtypes
_FLOATS = {"choose_token": (*[_POINTER] * 9, *[_LONG] * 7, _INT, _INT)}
NARROW = ("multiply_heads_transposed",)  # not compiled for AVX-512
_AVX512_ALONE = {"encoder_attention": (*[_POINTER] * 5, *[_LONG] * 6, _FLOAT, _INT, _INT)}
_INTEGERS = {"multiply_integers": (*[_POINTER] * 9, *[_LONG] * 4, _INT, _INT)}
_AVX512, _AVX512_VNNI, _AVX512_BF16 = 2, 3, 4  # what `usable` returns


def load_functions(
    path: Path, wide: bool, bfloat16: bool
) -> tuple[dict[str, Callable[..., None]], bool]:
    """The functions for float32 or bfloat16 by name, and whether they run on several threads.

    wide: with AVX-512, if the processor has it. Raises OSError if the library does not load or the
    processor cannot run it, AttributeError for an older library.
    """
    library = ctypes.CDLL(str(path))
    usable = library.usable()
    if not usable or (bfloat16 and usable < _AVX512_BF16):
        raise OSError(f"the processor has no {'AVX512-BF16' if bfloat16 else 'AVX2'}")
    widened = wide and usable >= _AVX512
    signatures = _SIGNATURES | _FLOATS
    if bfloat16 or widened:
        signatures |= _AVX512_ALONE
    if not bfloat16 and wide and usable >= _AVX512_VNNI:
        signatures |= _INTEGERS
    functions: dict[str, Callable[..., None]] = {}
    for name, types in signatures.items():
        suffix = ""
        if name not in _INTEGERS:
            has_wide = widened and name not in NARROW
            suffix = "_wide" if has_wide else ""
            if bfloat16:
                suffix = "_wide" if name in _FLOATS else "_bf16"
        function = getattr(library, name + suffix)
        function.argtypes, function.restype = types, None
        functions[name] = function
    return functions, bool(library.has_threads())
