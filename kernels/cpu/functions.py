"""The functions in C: their names, arguments, and which of them a processor runs."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
VERSION = 5  # when a function's arguments change, raise it, and in usable.c, too
_SIGNATURES: dict[str, Sequence[Any]] = {
    "multiply_rows": (*[POINTER] * 7, *[LONG] * 3, *[INT] * 3),
    "multiply_head_rows": (*[POINTER] * 4, *[LONG] * 4, INT, INT),
    "multiply_heads_transposed": (*[POINTER] * 3, *[LONG] * 4, INT, INT),
    "attend_pages": (*[POINTER] * 10, *[LONG] * 11, FLOAT, INT),
    "latent_block": (*[POINTER] * 10, *[LONG] * 8, INT),
    "mlp": (*[POINTER] * 5, LONG, INT),
    "add_norm": (*[POINTER] * 9, *[LONG] * 4, INT),
}
# of float32, for both dtypes; with bfloat16 there is AVX-512
_FLOATS = {"choose_token": (*[POINTER] * 9, *[LONG] * 7, INT, INT)}
_ENCODER_ATTENTION = {"encoder_attention": (*[POINTER] * 5, *[LONG] * 6, FLOAT, INT, INT)}
_ENCODER_ROWS = (*[POINTER] * 7, LONG, LONG, INT)
_INTEGERS = {
    "multiply_integers": (*[POINTER] * 9, *[LONG] * 4, INT, INT),
    "encoder_rows_integers": _ENCODER_ROWS,
}
_X86 = _ENCODER_ATTENTION | {"encoder_rows": _ENCODER_ROWS} | _INTEGERS  # of float32
_X86 |= {"encoder_attention_integers": _ENCODER_ATTENTION["encoder_attention"]}
# of one variant in float32
NARROW = ("multiply_heads_transposed", "encoder_attention_integers")
_AVX512, _AVX512_VNNI, _AVX512_BF16 = 2, 3, 4  # what `usable` returns


def load_functions(
    path: Path, wide: bool, bfloat16: bool
) -> tuple[dict[str, Callable[..., None]], bool]:
    """The functions for float32 or bfloat16 by name, and whether they are those of AVX2.

    wide: with AVX-512, if the processor has it. Raises OSError if the library does not load or the
    processor cannot run it, AttributeError for an older library.
    """
    library = ctypes.CDLL(str(path))
    if (version := library.version()) != VERSION:
        raise AttributeError(f"functions of version {version}, not {VERSION}")
    usable = library.usable()
    if not usable or (bfloat16 and usable < _AVX512_BF16):
        raise OSError(f"the processor has no {'AVX512-BF16' if bfloat16 else 'AVX2'}")
    signatures = _SIGNATURES | _FLOATS
    if bfloat16:
        signatures |= _ENCODER_ATTENTION
    elif hasattr(library, "encoder_rows"):
        signatures |= _X86
    functions: dict[str, Callable[..., None]] = {}
    for name, types in signatures.items():
        least = _AVX512_VNNI if name in _INTEGERS else _AVX512
        suffix = "_wide" if wide and usable >= least and name not in NARROW else ""
        if bfloat16 and name not in _FLOATS:
            suffix = "_bf16"
        function = getattr(library, name + suffix)
        function.argtypes, function.restype = types, None
        functions[name] = function
    avx2 = hasattr(library, "encoder_rows") and not (wide and usable >= _AVX512)
    return functions, avx2
