"""Names, times, sizes and errors in messages."""

import re
import unicodedata
from typing import TextIO

WIDTH = 24  # characters of a shortened name
# what turns the direction of the text after it, so that a name may look like another one
DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:00`."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def shown(text: object) -> str:
    """`text` on one line: as escapes, control characters, line ends, changes of direction
    and bytes that are not UTF-8.
    """
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in DIRECTIONS
        else c
        for c in str(text)
    )


def printable(text: str, stream: TextIO) -> str:
    """Replace what the stream's encoding lacks by question marks, as whisper does."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def shorten(name: str) -> str:
    """A long name without its middle; its end distinguishes the parts of a series."""
    if len(name) <= WIDTH:
        return name
    return f"{name[: WIDTH // 2 - 1]}…{name[-WIDTH // 2 :]}"


def one_line(error: BaseException, kind: bool = False) -> str:
    """An exception's message without the error number; `kind`: preceded by the type's name."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return f"{type(error).__name__}: {text[:300]}" if kind else text


UNITS = ("B", "kB", "MB", "GB", "TB")


def parse_size(text: str) -> int:
    """Bytes: "6GB", "512 MB", or a number alone. Raises ValueError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?B)?\s*", text)
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 512MB or 6GB")
    return round(float(found[1]) * 1000 ** UNITS.index(found[2] or "B"))


def human_size(count: float) -> str:
    """Bytes in decimal units: 40.5 MB, 319 MB, 3.1 GB."""
    amount, unit = float(count), "B"
    for larger in UNITS[1:]:
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:,.0f} {unit}" if amount >= 99.95 or unit == "B" else f"{amount:.1f} {unit}"
