"""Texts and segments made up for the tests of words and hallucinations."""

import random
from collections.abc import Sequence
from typing import Any

from whisper.tokenizer import Tokenizer, get_tokenizer

from slimwhisper.types import Segment, Transcript

LANGUAGES = ("en", "de", "zh", "ja", "th")
TEXTS = {
    "en": ' "Well," he said (at 3.50 dollars): what\'s that?! Extraordinarily long - [sic] ¿no?',
    "de": " Straßenbahn, Überfälle; ja! „Nein.“ Zwölf Boxkämpfer jagen Viktor quer über Sylt.",
    "zh": "今天天气很好。我们去公园吧！“你好”，他说：对？",
    "ja": "こんにちは、世界。元気ですか？はい！",
    "th": "สวัสดีครับ วันนี้อากาศดี",
}


def tokenizer(language: str = "en") -> Tokenizer:
    return get_tokenizer(True, num_languages=99, language=language)


BEGIN = tokenizer().timestamp_begin


def random_text(rng: random.Random, language: str, most: int) -> list[int]:
    """Tokens of real text, at times with a few of bytes that are no text at all."""
    tokens = tokenizer(language).encode(TEXTS[language])
    start = rng.randrange(len(tokens))
    tokens = (tokens[start:] + tokens * 8)[: rng.randint(0, most)]
    if rng.random() < 0.2:
        tokens += [rng.randrange(256) for _ in range(rng.randint(1, 3))]
    return tokens


def segment(
    number: int, seek: int, start: float, end: float, text: str, tokens: list[int]
) -> Segment:
    return Segment(number, seek, start, end, text, tokens, 0.0, -0.5, 1.0, 0.1)


def as_dicts(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """As `whisper.transcribe` gives them."""
    return Transcript("", list(segments), "en")["segments"]
