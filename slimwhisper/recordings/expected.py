"""The expected text of a recording: read from a file, and encoded as tokens."""

from pathlib import Path

from slimwhisper.forced_alignment.script import read_text
from slimwhisper.tokens.prompts import prompt_tokens
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import Options

SUFFIX = ".txt"


def read_expected(options: Options, name: str) -> str:
    """The expected text of a recording; "" if there is none. Raises OptionError.

    name: the recording's, without suffix; in a folder of texts, NAME.txt is its text.
    """
    if options.expected is None:
        return ""
    path = Path(options.expected)
    if path.is_dir():
        path = path / f"{Path(name).name}{SUFFIX}"
        if not path.is_file():
            return ""
    return read_text(path, f"expected: {path}", f"give a text file, or a folder of NAME{SUFFIX}")


def expected_tokens(vocabulary: Vocabulary, expected: str, hotwords: str | None) -> tuple[int, ...]:
    """The tokens of the expected text and the hot words, for drafts by lookup; (): no text."""
    words = " ".join(expected.split())
    if not words:
        return ()
    tokenizer = vocabulary.tokenizer()
    return (*prompt_tokens(tokenizer, words), *prompt_tokens(tokenizer, (hotwords or "").strip()))
