# ruff: noqa: E501
"""Transcripts with words at seeded times, as a model would time them."""

import random
import unicodedata
from dataclasses import replace

from slimwhisper.types import Segment, Word
from tests.support.scripted import segment

TEXTS = {
    "en": "Dr. Smith went to Washington on Jan. 5th, and nobody listened. Why? Because it was late. "
    "He said that the keys and the values of every layer can be computed from one copy of the "
    "encoder's output, which is about eight times smaller and exactly as good as what everybody "
    "else keeps in memory. Yes. No. Fine! So we went home and thought about it for a very long time.",
    "de": "Am 3. Oktober kam Prof. Müller ca. um fünf, z. B. mit dem Zug. Donaudampfschifffahrts"
    "gesellschaftskapitänsmützen sind selten! Das hat man mir gesagt, als ich noch ein Kind war und "
    "nicht wusste, dass es so etwas überhaupt gibt. Ja? Nein.",
    "ru": "А. С. Пушкин жил в доме на ул. Мойка. Почему? Потому что так было нужно, и никто не знал "
    "об этом до самого конца, хотя многие догадывались. Да.",
    "ar": "كيف حالك اليوم؟ أنا بخير، شكرا. ذهبنا إلى السوق في الصباح الباكر ثم عدنا إلى البيت بعد أن "
    "اشترينا كل ما نحتاج إليه من الخبز والفواكه والخضروات.",
    "hi": "यह एक वाक्य है। क्या आप मेरी बात सुन रहे हैं? हम लोग कल सुबह बहुत जल्दी उठकर स्टेशन गए थे और "
    "वहाँ घंटों तक गाड़ी का इंतज़ार करते रहे।",
    "ko": "안녕하세요. 오늘은 날씨가 정말 좋네요! 우리는 내일 아침 일찍 일어나서 바다를 보러 갈 생각이고 저녁에는 "
    "친구들과 함께 식당에서 밥을 먹을 거예요.",
    "ja": "こんにちは。今日は「いい天気ですね。」と彼は言った。デコーダーのキャッシュを小さくすると、同じメモリーで"
    "八倍の窓を同時に復号できるようになるので、とても便利だと思います。はい。そうです。",
    "zh": "你好。今天天气很好！我们明天早上要早一点起床，坐火车去海边，晚上再和朋友们一起在饭馆里吃饭，然后慢慢走路回家。"
    "真的吗？",
    "th": "สวัสดีครับวันนี้อากาศดีมากเราจะไปเที่ยวทะเลกันที่หัวหิน พรุ่งนี้จะกลับบ้านแล้วค่อยคุยกันใหม่อีกครั้งนะครับ ",
}
SPACELESS = ("ja", "zh", "th")


def width(text: str) -> int:
    """Columns, counted without the code that is tested."""
    marks = ("Mn", "Me", "Cf")
    return sum(
        0 if unicodedata.category(c) in marks else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def spoken(language: str, seconds: float, speed: float, seed: int) -> list[Word]:
    """Words of a text, repeated: `speed` columns a second on average, with pauses between some."""
    rng, words, now = random.Random(seed), [], 0.0
    while now < seconds:
        for text in _pieces(language, rng):
            length = max(1, width(text.strip())) / speed * rng.uniform(0.6, 1.4)
            words.append(Word(text, round(now, 2), round(now + length, 2), 0.9))
            now += length
            if text[-1] in "!?。！？؟।" or (text[-1] == "." and len(text) > 6):
                now += rng.choice((0.0, 0.05, 0.3, 0.9, 2.5))
            elif text[-1] in ",、，،":
                now += rng.choice((0.0, 0.0, 0.2, 0.5))
    return words


def _pieces(language: str, rng: random.Random) -> list[str]:
    if language not in SPACELESS:
        return [f" {word}" for word in TEXTS[language].split()]
    pieces: list[str] = []
    for character in TEXTS[language]:  # like Whisper's tokens
        joins = unicodedata.category(character)[0] in "MP" or rng.random() < 0.5
        if pieces and joins and len(pieces[-1]) < 4:
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces


def in_segments(words: list[Word], each: int, speakers: int = 0) -> list[Segment]:
    """Segments of so many words, whatever the sentences; speakers take turns of five."""
    segments = []
    for first in range(0, len(words), each):
        part = words[first : first + each]
        number = len(segments)
        speaker = f"Speaker {number // 5 % speakers}" if speakers else None
        text = "".join(word.word for word in part)
        made = segment(number, 100 * number, part[0].start, part[-1].end, text, [number])
        made = replace(made, temperature=0.2 * (number % 3), avg_logprob=-0.1 * (number % 5))
        flags = ("improbable",) if number % 7 == 0 else ()
        segments.append(replace(made, words=part, speaker=speaker, flags=flags))
    return segments
