"""Phrases that Whisper invents over silence, noise and music, by language.

They come from subtitles in its training data: credits of their authors, and the last words of
videos. Whisper detects a language in silence too, so all lists are compared with every text.

Sources, read in 2026:
- Barański et al., "Investigation of Whisper ASR Hallucinations Induced by Non-Speech Audio",
  ICASSP 2025, arXiv 2501.11378: the most frequent inventions, in English;
- openai/whisper, discussions 679, 928 and 2608: reports and lists by language;
- SYSTRAN/faster-whisper issue 850, Purfview/whisper-standalone-win issue 321,
  amicalhq/amical issue 71, PocketShell-io/pocketshell issue 452, Vexa-ai/vexa issues 155 and 617:
  Japanese, Greek, Korean, Turkish, Russian, Spanish, Portuguese.
"""

import tomllib
from functools import cache
from pathlib import Path

from slimwhisper.trust.tokens import tokens_of

TABLE = Path(__file__).with_name("phrases.toml")
MAX_OTHER_TOKENS = 8  # of a credit, before or after its phrase: names, a year


def is_credit(text: str) -> bool:
    """Whether a text is one of the table's credits, with at most a few words around it."""
    tokens = tokens_of(text)
    return any(
        tokens[i : i + len(phrase)] == phrase and len(tokens) <= len(phrase) + MAX_OTHER_TOKENS
        for i, token in enumerate(tokens)
        for phrase in _by_first_token("credits").get(token, ())
    )


def is_common(text: str) -> bool:
    """Whether a text is nothing but one of the table's common phrases, once or repeated."""
    tokens = tokens_of(text)
    return any(
        tokens == phrase * (len(tokens) // len(phrase))
        for phrase in (_by_first_token("common").get(tokens[0], ()) if tokens else ())
    )


@cache
def _by_first_token(kind: str) -> dict[str, list[tuple[str, ...]]]:
    by_token: dict[str, list[tuple[str, ...]]] = {}
    for phrases in tomllib.loads(TABLE.read_text(encoding="utf-8"))[kind].values():
        for tokens in map(tokens_of, phrases):
            by_token.setdefault(tokens[0], []).append(tokens)
    return by_token
