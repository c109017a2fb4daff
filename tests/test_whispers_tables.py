"""What was openai-whisper's and is the package's own: each against that project's function."""

from dataclasses import replace
from importlib.resources import files
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
import whisper
from hypothesis import given
from hypothesis import strategies as st
from whisper.audio import log_mel_spectrogram, mel_filters, pad_or_trim
from whisper.normalizers import BasicTextNormalizer
from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE, Tokenizer, get_tokenizer
from whisper.utils import format_timestamp, get_writer

import slimwhisper
from slimwhisper import tokenizer as ours
from slimwhisper.outputs import FORMATS
from slimwhisper.research.comparison import UNSPACED, words_of
from slimwhisper.text import format_timestamp as our_timestamp
from slimwhisper.types import Segment, Transcript, Word
from tests.support.fuzz import examples
from tests.support.paths import SAMPLES

KINDS = [(False, 99, None), (True, 99, "de"), (True, 100, "yue"), (True, 100, "ja")]
TEXT = "It's 12 o'clock… ♪ <|nospeech|> naïve 日本語です ไทย\n [music] -- résumé 🙂 "


def test_files() -> None:
    """Byte for byte."""
    for name in ("gpt2.tiktoken", "multilingual.tiktoken"):
        theirs = files("whisper").joinpath("assets", name).read_bytes()
        assert files("slimwhisper.tokens").joinpath(name).read_bytes() == theirs
    assert list(ours.LANGUAGES.items()) == list(LANGUAGES.items())
    assert ours.TO_LANGUAGE_CODE == TO_LANGUAGE_CODE
    for n_mels in (80, 128):
        assert torch.equal(slimwhisper.audio.mel_filters("cpu", n_mels), mel_filters("cpu", n_mels))


@pytest.mark.parametrize(("multilingual", "count", "language"), KINDS)
def test_tokenizer(multilingual: bool, count: int, language: str | None) -> None:
    """All that `whisper`'s has, and words of texts in several scripts."""
    asked: dict[str, Any] = {"num_languages": count, "language": language, "task": "translate"}
    mine, other = (f(multilingual, **asked) for f in (ours.get_tokenizer, get_tokenizer))
    names = {n for n in dir(Tokenizer) if not n.startswith("_")} | set(vars(other))
    for name in names - {"encoding", "special_tokens"}:
        if (name == "language_token" and language is None) or callable(getattr(other, name)):
            continue
        found, expected = getattr(mine, name), getattr(other, name)
        unordered = name.startswith("all_language")  # theirs are in the order of a set
        assert (sorted(found) == sorted(expected)) if unordered else (found == expected), name
    assert len(names) > 20 and mine.special_tokens == other.special_tokens
    assert dict(zip(mine.all_language_codes, mine.all_language_tokens, strict=True)) == dict(
        zip(other.all_language_codes, other.all_language_tokens, strict=True)
    )
    tokens = mine.encode(TEXT, disallowed_special=())
    assert tokens == other.encode(TEXT, disallowed_special=()) and mine.decode(tokens) == TEXT
    tokens[3:3] = [mine.timestamp_begin + 54, mine.eot]
    assert mine.decode(tokens) == other.decode(tokens)
    assert mine.decode_with_timestamps(tokens) == other.decode_with_timestamps(tokens)
    for name in ("split_to_word_tokens", "split_tokens_on_spaces", "split_tokens_on_unicode"):
        assert getattr(mine, name)(tokens) == getattr(other, name)(tokens), name
        assert getattr(mine, name)(tokens[:-1]) == getattr(other, name)(tokens[:-1]), name
    for code in ("german", "DE", "mandarin"):
        assert ours.get_tokenizer(True, language=code).language == TO_LANGUAGE_CODE.get(code, "de")
    with pytest.raises(ValueError, match="klingon"):
        ours.get_tokenizer(True, language="klingon")
    for text in ("", " five zero", "♪♪ (( <| |>", "< |en|>", "\ud800"):
        assert mine.encode(text) == other.encode(text), text
    for allowed in ({"<|nospeech|>"}, "all"):
        asked = {"allowed_special": allowed}
        assert mine.encode(TEXT, **asked) == other.encode(TEXT, **asked) != tokens
    for each in (mine, other):
        with pytest.raises(ValueError, match=r"special token '<\|nospeech\|>'"):
            each.encode(TEXT)


def test_spectrogram() -> None:
    """To the bit, of a file, an array and a tensor."""
    path = str(SAMPLES / "phone-number.wav")
    audio = slimwhisper.load_audio(path)
    for source in (path, audio, torch.from_numpy(audio)):
        mine = slimwhisper.log_mel_spectrogram(source, 128, padding=480_000)
        assert torch.equal(mine, log_mel_spectrogram(audio, 128, padding=480_000))
    for array in (audio, torch.from_numpy(audio), np.ones((3, 5, 2)), torch.ones(3, 5, 2)):
        for length, axis in ((4, 0), (2, 1), (200_000, -1), (7, -1)):
            if axis < array.ndim:
                found = slimwhisper.pad_or_trim(array, length, axis=axis)
                assert type(found) is type(array)
                np.testing.assert_array_equal(found, pad_or_trim(array, length, axis=axis))


def segments(numbers: list[tuple[float, str]]) -> list[Segment]:
    """Words with pauses before them, as segments of at most four."""
    now, words = 0.0, list[Word]()
    for pause, text in numbers:
        start = now + pause
        now = start + 0.25
        words.append(Word(text, start, now, 0.5))
    return [
        Segment(i, 0, w[0].start, w[-1].end, "".join(x.word for x in w), [], 0, 0, 1, 0, w)
        for i, w in enumerate(words[i : i + 4] for i in range(0, len(words), 4))
    ]


number = st.none() | st.integers(1, 12)
spoken = st.tuples(st.sampled_from([0, 0.5, 3.5]), st.sampled_from([" a", " word", "-->", " b c"]))


@examples(150)
@given(st.lists(spoken, max_size=12), number, number, number, st.booleans(), st.booleans())
def test_subtitles(
    words: list[tuple[float, str]],
    width: int | None,
    count: int | None,
    most: int | None,
    highlight: bool,
    timed: bool,
) -> None:
    """The same files in every layout; where no words are timed, segments may have no text."""
    made = segments(words)
    if not timed:
        texts = [s.text if (i + len(words)) % 3 else "" for i, s in enumerate(made)]
        made = [replace(s, words=None, text=t) for s, t in zip(made, texts, strict=True)]
    transcript = Transcript("", made, "en")
    layout: dict[str, Any] = {"max_line_width": width, "max_line_count": count}
    layout |= {"max_words_per_line": most, "highlight_words": highlight}
    for name in ("txt", "srt", "vtt", "tsv", "json"):
        other = StringIO()
        get_writer(name, "").write_result(dict(transcript), other, layout)
        assert FORMATS[name].render(transcript, layout).decode() == other.getvalue()


@examples(50)
@given(st.floats(0, 1e6), st.booleans())
def test_timestamps(seconds: float, hours: bool) -> None:
    assert our_timestamp(seconds, hours, ",") == format_timestamp(seconds, hours, ",")


@examples(150)
@given(st.text(st.sampled_from("aÉ <>[]()日本🙂'-.\n\u0301ﬁ"), max_size=20))
def test_words(text: str) -> None:
    for language in ("en", UNSPACED[0]):
        split = BasicTextNormalizer(split_letters=language in UNSPACED)
        assert words_of(text, language) == split(text).split()


def test_classes_of_decode() -> None:
    """The same fields and defaults, also where all options are; of those of `transcribe` alone,
    tests/jobs/test_flags.py.
    """
    own = ("temperature", "prompt", "fp16")  # transcribe's own, made by it, chosen at load
    for field, value in whisper.DecodingOptions.__dataclass_fields__.items():
        assert field in own or getattr(slimwhisper.Options(), field) == value.default, field
    for name in ("DecodingOptions", "DecodingResult"):
        mine, other = (getattr(m, name).__dataclass_fields__ for m in (slimwhisper, whisper))
        assert [*mine] == [*other]
        for field, value in other.items():
            assert repr(mine[field].default) == repr(value.default)
