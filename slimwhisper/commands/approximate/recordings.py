"""Finds the recordings to measure on and their reference texts, as words."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from slimwhisper.audio.formats import Selection, is_hidden
from slimwhisper.errors import AudioError
from slimwhisper.text import error_line, escape_line

# written without spaces: their letters are compared, as in the Whisper paper (appendix C)
UNSPACED = ("zh", "ja", "th", "lo", "my", "yue")


class SourceRecording(NamedTuple):
    """A recording."""

    path: Path
    reference: str | None  # what was said, from the `.txt` beside it; None: there is none


def find_recordings(arguments: Sequence[str]) -> list[SourceRecording]:
    """The recordings that files and folders (searched recursively) name, each once, sorted within
    a folder. Raises AudioError, also where there are none.
    """
    paths: dict[Path, None] = {}
    takes = Selection().takes
    for argument in arguments:
        top = Path(argument)
        if top.is_dir():
            visible = (
                p for p in top.rglob("*") if not any(map(is_hidden, p.relative_to(top).parts[:-1]))
            )
            every = sorted(p for p in visible if takes(str(p)))
            if not every:
                raise AudioError(f"{escape_line(top)}: has no audio or video files; check the path")
            paths |= dict.fromkeys(every)
        elif top.is_file():
            paths[top] = None
        else:
            raise AudioError(f"{escape_line(top)}: no such file; check the path")
    return [SourceRecording(path, _reference(path.with_suffix(".txt"))) for path in paths]


def _reference(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read as UTF-8 text ({error_line(error)})"
        raise AudioError(f"{escape_line(path)}: {what}; fix or remove it") from error


def words_of(text: str, language: str) -> list[str]:
    """A text's words without case and punctuation, by `whisper.normalizers`' basic normalizer.

    Not the English one: it would write "one two three" as "123", so that one wrong digit would
    count as much as three.
    """
    from whisper.normalizers import BasicTextNormalizer

    return BasicTextNormalizer(split_letters=language in UNSPACED)(text).split()
