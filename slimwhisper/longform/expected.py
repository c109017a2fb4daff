"""The expected text of a recording: read from a file, and encoded as tokens."""

from pathlib import Path

from slimwhisper.errors import OptionError
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import Options

MAX_BYTES = 4 << 20  # 4 MiB: some 80 hours of speech
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
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise OptionError(
                f"expected: {path} has {size:,} bytes, more than {MAX_BYTES:,}; give a shorter text"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"expected: {path} cannot be read ({error.strerror}); give a text file, or a folder of "
            "NAME.txt"
        ) from None
    except UnicodeDecodeError:
        raise OptionError(f"expected: {path} is not UTF-8; save it as UTF-8") from None


def expected_tokens(vocabulary: Vocabulary, expected: str, hotwords: str | None) -> tuple[int, ...]:
    """The tokens of the expected text and the hot words, for drafts by lookup; (): no text."""
    words = " ".join(expected.split())
    if not words:
        return ()
    encode = vocabulary.tokenizer().encode
    tokens = list(encode(f" {words}"))
    if hotwords and hotwords.strip():
        tokens += encode(f" {hotwords.strip()}")
    return tuple(tokens)
