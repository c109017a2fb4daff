"""Phrases, pace and scripts: what is found, and what is nearly so."""

import tomllib

import pytest

from slimwhisper.trust.flags import TABLE, is_common, is_credit, is_foreign, least_seconds


def test_every_phrase_of_the_tables_is_found() -> None:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    for language, phrases in table["credits"].items():
        for phrase in phrases:
            assert is_credit(f" {phrase}."), (language, phrase)
    for language, phrases in table["common"].items():
        assert len(set(phrases)) == len(phrases), language
        for phrase in phrases:
            assert is_common(f" {phrase}!") and is_common(f"{phrase}. {phrase}."), phrase


@pytest.mark.parametrize(
    ("text", "credit"),
    [
        ("Untertitel im Auftrag des ZDF für funk, 2017", True),
        ("字幕志愿者 杨栋梁", True),
        ("Titulky vytvořil JohnyX http://johnyxcz.blogspot.com", True),
        ("", False),
        ("Amara.org is a site where people write subtitles together.", False),
        ("Thank you, Bob.", False),
        ("Thanks for watching the children yesterday.", False),
        ("谢谢你的帮助", False),
        ("In the credits it says subtitles by the Amara.org community, and I thought that was odd, "
         "because we had paid somebody else for them.", False),
    ],
)  # fmt: skip
def test_credits_with_names_and_near_misses(text: str, credit: bool) -> None:
    assert is_credit(text) == credit and not is_common(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("abc def", 6 / 30),
        ("2024", 4 / 10),
        ("你好世界", 4 / 12),
        ("안녕", 2 / 12),
        ("Привет", 6 / 30),
        ("สวัสดี", 4 / 30),  # its vowel signs are no letters
    ],
)
def test_the_least_time_of_a_text(text: str, seconds: float) -> None:
    assert least_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "language", "foreign"),
    [
        ("Продолжение следует", "en", True),
        ("Thanks for watching", "ru", True),
        ("ご視聴ありがとうございました", "en", True),
        ("ご視聴ありがとうございました", "ja", False),
        ("ご視聴ありがとうございました", "zh", True),
        ("Python と NumPy の話です", "ja", True),
        ("今日は Python の話をしようと思います", "ja", False),
        ("Café, naïve, façade", "en", False),
        ("Добар дан свима", "sr", False),
        ("Київ", "en", False),  # too short to say
        ("12345 67890 !!", "ru", False),
        ("Ｔｈａｎｋ　ｙｏｕ", "en", False),
    ],
)
def test_scripts(text: str, language: str, foreign: bool) -> None:
    assert is_foreign(text, language) == foreign
