"""The tokens that `suppress_tokens` and `suppress_blank` forbid."""

from slimwhisper.errors import OptionError
from slimwhisper.tokens.vocabulary import Vocabulary

NUMERALS = "numerals"
NUMERAL_SIGNS = frozenset("%$£")  # besides digits; whisperX's choice


def suppressed_tokens(
    vocabulary: Vocabulary, option: str | tuple[int | str, ...] | None
) -> list[int]:
    """Tokens never sampled: those requested, and special tokens that only a prompt may contain.

    -1 in `option` means the model's list, or all symbols that are not spoken; "numerals", the
    tokens of `numerals`. None or "" suppresses nothing.
    """
    if option is None or option in ("", ()):
        return []
    entries = [e.strip() for e in option.split(",")] if isinstance(option, str) else list(option)
    try:
        ids = [int(e) for e in entries if e != NUMERALS]
    except (TypeError, ValueError):
        raise OptionError(
            f"suppress_tokens {option!r}: give token ids, -1 or {NUMERALS}, separated by commas"
        ) from None
    if any(not -1 <= t < vocabulary.size for t in ids):
        raise OptionError(f"suppress_tokens {option!r}: token ids are -1 to {vocabulary.size - 1}")
    tokens = [t for t in ids if t >= 0]
    if NUMERALS in entries:
        tokens += numerals(vocabulary)
    if -1 in ids and vocabulary.suppressed is not None:
        return [*tokens, *vocabulary.suppressed]
    t = vocabulary.tokenizer()
    if -1 in ids:
        tokens += t.non_speech_tokens
    prompts = (t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm, t.no_speech)
    return [*tokens, *(token for token in prompts if token is not None)]


def numerals(vocabulary: Vocabulary) -> list[int]:
    """The tokens of text with a digit, %, $ or £: without them, numbers are written as words,
    which can be aligned with what is spoken.
    """
    tokenizer = vocabulary.tokenizer()

    def has_numeral(token: int) -> bool:
        return any(c.isdecimal() or c in NUMERAL_SIGNS for c in tokenizer.decode([token]))

    return [token for ids in vocabulary.texts for token in ids if has_numeral(token)]


def suppressed_first_tokens(vocabulary: Vocabulary) -> list[int]:
    """Tokens that a text may not begin with: the model's list, or a space and the end."""
    if vocabulary.suppressed_first is not None:
        return list(vocabulary.suppressed_first)
    return [*vocabulary.tokenizer().encode(" "), vocabulary.eot]
