"""Phrases that Whisper invents over silence, noise and music, by language.

They come from subtitles that it learned from: credits of those who wrote them, and what videos end
with. Whisper detects a language in silence too, so all lists are compared with every text.

Sources, read in 2026:
- Barański et al., "Investigation of Whisper ASR Hallucinations Induced by Non-Speech Audio",
  ICASSP 2025, arXiv 2501.11378: what is invented most, in English;
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
MORE = 8  # tokens of a credit after or before its phrase: names, a year


def is_credit(text: str) -> bool:
    """Whether a text is one of the table's credits, with at most a few words around it."""
    tokens = tokens_of(text)
    return any(
        tokens[i : i + len(phrase)] == phrase and len(tokens) <= len(phrase) + MORE
        for i, token in enumerate(tokens)
        for phrase in _by_first_token("credits").get(token, ())
    )


def is_common(text: str) -> bool:
    """Whether a text is one of the table's common phrases, once or several times, and nothing
    else.
    """
    tokens = tokens_of(text)
    return any(
        tokens == phrase * (len(tokens) // len(phrase))
        for phrase in (_by_first_token("common").get(tokens[0], ()) if tokens else ())
    )


@cache
def _by_first_token(kind: str) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for phrases in tomllib.loads(TABLE.read_text(encoding="utf-8"))[kind].values():
        for tokens in map(tokens_of, phrases):
            found.setdefault(tokens[0], []).append(tokens)
    return found
