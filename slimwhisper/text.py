"""Formats names, times, sizes and errors for messages."""

import codecs
import re
import sys
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TextIO

# change the direction of the text after them, so that a name may look like another one
DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
NO_TEXT = frozenset(map(chr, {*range(32), 127} - set(b"\a\b\t\n\f\r\x1b")))  # as for file(1)


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:00`."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def format_timestamp(
    seconds: float, always_include_hours: bool = False, decimal_marker: str = "."
) -> str:
    """Seconds -> "01:02.345", or "01:02:03.456" from an hour on."""
    assert seconds >= 0, "non-negative timestamp expected"
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    prefix = f"{hours:02d}:" if always_include_hours or hours else ""
    whole, rest = divmod(milliseconds, 1000)
    return f"{prefix}{minutes:02d}:{whole:02d}{decimal_marker}{rest:03d}"


def escape_line(text: object) -> str:
    """`text` on one line, with escapes in place of control characters, line ends, changes of
    direction and bytes that are not UTF-8.
    """
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in DIRECTIONS
        else c
        for c in str(text)
    )


def text_encoding(head: bytes) -> str | None:
    """The encoding of a text that begins with these bytes; None: they are no text.

    UTF-8, also with bytes that are not (names of files may have any), or UTF-16, by its mark or
    because at least half of it is Latin.
    """
    marked = [name for mark, name in MARKS.items() if head.startswith(mark)]
    for name in marked or ("utf-8", "utf-16-le", "utf-16-be"):
        decoder = codecs.getincrementaldecoder(name)("strict" if "16" in name else "replace")
        try:
            text = decoder.decode(head)  # the last character may be cut
        except UnicodeDecodeError:
            continue
        latin = sum(c < "\u0100" for c in text)
        if NO_TEXT.isdisjoint(text) and (marked or name == "utf-8" or 2 * latin >= len(text)):
            return name
    return None


def replace_unencodable(text: str, stream: TextIO | None) -> str:
    """Replace characters that the stream cannot encode with question marks, as whisper does."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


class StreamError(Exception):
    """Standard output cannot be written, which a command's result goes to."""


class SafeStream:
    """Writes to a standard stream, and does nothing where there is none, or once it fails: it is
    closed, its disk is full, or nobody reads its pipe.
    """

    def __init__(self, name: Literal["stdout", "stderr"], *, required: bool = False) -> None:
        """name: as in `sys`, now. required: raise StreamError once it fails."""
        self._stream: TextIO | None = getattr(sys, name)
        self._required = required

    def write(self, text: str) -> int:
        """Write text, with question marks for what the stream cannot encode."""
        self._call("write", replace_unencodable(text, self._stream))
        return len(text)

    def flush(self) -> None:
        """Write what waits."""
        self._call("flush")

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _call(self, method: str, *arguments: str) -> None:
        if self._stream is None:
            return
        try:
            getattr(self._stream, method)(*arguments)
        except (OSError, ValueError) as error:  # ValueError: it is closed
            self._stream = None
            if self._required:
                raise StreamError(error_line(error)) from error


def error_line(error: BaseException, kind: bool = False) -> str:
    """An exception's message without its errno; with `kind`, after the name of its type."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return f"{type(error).__name__}: {text[:300]}" if kind else text


def did_you_mean(word: object, names: Iterable[str], prefix: str = "") -> str:
    """ "; did you mean transcribe?" for the name that a word is nearest to; else "". All of them
    begin with the prefix.
    """
    bare = [name.removeprefix(prefix) for name in names]
    near = get_close_matches(str(word).lower().removeprefix(prefix), bare, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def not_one_of(word: object, names: Iterable[str], sign: str = "") -> str:
    """ "'text' is not one of txt, vtt; did you mean txt?"."""
    names = list(names)
    return f"{word!r} is not one of{sign} {', '.join(names)}{did_you_mean(word, names)}"


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra. It names each package, so it also works
    where slimwhisper was not installed from a package index, or the tree, where it was not at all.
    """
    from packaging.requirements import Requirement  # comes with huggingface_hub

    try:
        requirements = metadata.requires("slimwhisper") or ()
    except metadata.PackageNotFoundError:
        return f"pip install '{Path(__file__).parents[1]}[{extra}]'"
    packages = []
    for text in requirements:
        requirement = Requirement(text)
        marker, requirement.marker = requirement.marker, None
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            packages.append(f"'{requirement}'")
    return f"pip install {' '.join(packages)}"


UNITS = ("B", "kB", "MB", "GB", "TB")


def parse_size(text: str) -> int:
    """Bytes: "6GB", "512 MB", or a number alone. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?B)?\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 512MB or 6GB")
    return round(float(match[1]) * 1000 ** UNITS.index(match[2] or "B"))


def human_size(count: float) -> str:
    """Bytes in decimal units: 40.5 MB, 319 MB, 3.1 GB."""
    amount, unit = float(count), "B"
    for larger in UNITS[1:]:
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:,.0f} {unit}" if amount >= 99.95 or unit == "B" else f"{amount:.1f} {unit}"
