"""Where sentences end, and lines may; `to_sentences`: the limits of subtitles over ten minutes of
nine languages.
"""

import random
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, combinations, pairwise
from pathlib import Path

import pytest

from slimwhisper.subtitles import cues
from slimwhisper.subtitles.sentences import _cue_costs, _divide, _runs, to_sentences
from slimwhisper.types import Segment, Transcript, Word
from tests.support.constructed import TEXTS, in_segments, spoken, width

SECONDS = 600.0
WIDE = ("ja", "zh", "ko")


def made(language: str, speed: float, speakers: int = 0) -> tuple[list[Segment], list[Segment]]:
    segments = in_segments(spoken(language, SECONDS, speed, seed=5), each=6, speakers=speakers)
    return segments, to_sentences(segments, language, segments[-1].end + 0.4)


@pytest.mark.parametrize(
    ("language", "speed"), [*((language, 15.0) for language in TEXTS), ("en", 25.0)]
)
def test_limits(language: str, speed: float) -> None:
    segments, sentences = made(language, speed)
    assert [s.id for s in sentences] == list(range(len(sentences)))
    assert "".join(s.text for s in sentences) == "".join(s.text for s in segments).rstrip()
    tokens = [t for s in segments for t in s.tokens if s.text.strip()]
    assert [t for s in sentences for t in s.tokens] == tokens
    for cue in cues.to_cues(Transcript("", sentences, language), broken=True):
        assert cue.text.count("\n") <= 1, cue.text
        wide = sum(width(c) == 2 for c in cue.text) > len("".join(cue.text.split())) / 2
        assert wide == (language in WIDE)
        assert all(width(line) <= (32 if wide else 42) for line in cue.text.split("\n")), cue.text
    for one, other in pairwise([*sentences, None]):
        assert one is not None
        following = segments[-1].end + 0.4 if other is None else other.start
        gap = following - one.end
        assert gap == 0 or gap >= 0.08 - 1e-9 or other is None, "closed up, or two frames"
        assert one.words
        assert one.words[-1].end - one.words[0].start <= 7 + 1e-9
        assert one.end >= one.words[-1].end
        assert all(b.start - a.end < 1.5 for a, b in pairwise(one.words)), "pauses cut"
        if gap > 1e-9:  # there was room to show it for longer
            assert one.end - one.start >= 5 / 6 - 1e-9
            assert width(one.text.strip()) / (one.end - one.start) <= 17


@pytest.mark.parametrize("language", ["en", "ja"])
def test_speed_is_kept_where_the_speech_allows(language: str) -> None:
    sentences = made(language, 11.0)[1]
    fast = [s for s in sentences if width(s.text.strip()) > 17 * (s.end - s.start)]
    assert len(fast) < 0.03 * len(sentences)


def test_sentences_are_whole_where_they_have_room() -> None:
    sentences = [s.text.strip() for s in made("en", 12.0)[1]]
    assert "and nobody listened." not in sentences
    for whole in ("Dr. Smith went to Washington on Jan. 5th, and nobody listened.", "Why?"):
        assert whole in sentences
    assert not any(s.endswith(("Dr.", "Jan.", " the", " of")) for s in sentences)
    assert sum(s.endswith((".", "!", "?")) for s in sentences) > 0.6 * len(sentences)


def test_speakers_are_never_mixed_and_flags_are_kept() -> None:
    segments, sentences = made("en", 13.0, speakers=2)
    speaker = {w: s.speaker for s in segments for w in s.words or ()}
    flags = {w: s.flags for s in segments for w in s.words or ()}
    for s in sentences:
        assert {speaker[w] for w in s.words or ()} == {s.speaker}
        assert set(s.flags) == {f for w in s.words or () for f in flags[w]}
    for cue in cues.to_cues(Transcript("", sentences, "en"), broken=True, labelled=True):
        assert cue.label in ("", f"{cue.speaker}: ")
        assert width(f"{cue.label}{cue.text}".split("\n")[0]) <= 42
        assert cue.text.count("\n") <= 1


def divisions(costs: list[dict[int, float]]) -> Iterator[tuple[float, list[int]]]:
    """Every way to divide units, with its cost."""
    size = len(costs)
    for count in range(size):
        for inner in combinations(range(1, size), count):
            cuts = [0, *inner, size]
            parts = list(pairwise(cuts))
            if all(b in costs[a] for a, b in parts):
                yield sum(costs[a][b] for a, b in parts), cuts


@pytest.mark.parametrize("seed", range(4))
def test_the_division_is_the_best_of_all(seed: int) -> None:
    words = spoken("en", 1.0, 15.0, seed)
    first = random.Random(seed).randrange(len(words) - 13)
    run = next(_runs(in_segments(words[first : first + 12], each=5)))
    costs: list[dict[int, float]] = [{} for _ in run]
    for i, j, cost in _cue_costs(run, "en", 0):
        costs[i][j] = cost
    results = [0, *accumulate(map(len, _divide(run, "en", 0)))]
    assert sum(costs[a][b] for a, b in pairwise(results)) == pytest.approx(min(divisions(costs))[0])


def segment(text: str, start: float, end: float, words: list[Word] | None = None) -> Segment:
    return Segment(0, 0, start, end, text, [7], 0.4, -1.5, 2.0, 0.3, words)


def test_without_words_times_are_spread() -> None:
    text = " One sentence here. Another one, which is rather longer than the first of the two."
    made = to_sentences([segment(text, 10.0, 18.0), segment("", 18.0, 18.0)], "en")
    assert [s.text for s in made] == [text[:19], text[19:]]
    assert [s.words for s in made] == [[], []]
    assert made[0].start == 10.0
    assert made[0].end == made[1].start == pytest.approx(10 + 8 * 19 / len(text), abs=0.02)
    assert made[1].end == 18.0
    assert (made[1].temperature, made[1].avg_logprob, made[1].compression_ratio) == (0.4, -1.5, 2.0)


def test_a_word_wider_than_a_line_is_divided() -> None:
    long = " " + "a" * 130
    made = to_sentences([segment(long, 0.0, 9.0, [Word(long, 0.0, 9.0, 0.5)])], "en")
    assert "".join(s.text for s in made) == long
    for cue in cues.to_cues(Transcript("", made, "en"), broken=True):
        assert cue.text.count("\n") <= 1 and all(width(t) <= 42 for t in cue.text.split())


def test_times_that_go_back_or_fall_together() -> None:
    words = [Word(" one.", 5.0, 5.5, 1.0), Word(" two.", 1.0, 1.2, 1.0), Word(" x", 1.2, 1.2, 1.0)]
    made = to_sentences([segment(w.word, w.start, w.end, [w]) for w in words], "en")
    assert [(s.start, s.text) for s in made] == [(5.0, " one."), (1.0, " two. x")]
    assert made[0].end == pytest.approx(5.84)
    (long,) = to_sentences([segment(" a", 1.0, 30.0, [Word(" a", 1.0, 30.0, 1.0)])], "en")
    assert long.end == 8.0, "no cue is longer than seven seconds"
    both = [replace(segment(" a", 1.0, 1.0), speaker=n) for n in ("A", "B")]
    for end in (2.0, 1.05):
        one, other = to_sentences(both, "en", end)
        assert one.end <= other.start < other.end <= end
    assert to_sentences([], "en") == to_sentences([segment(" ", 0, 1)], "en") == []


TABLES = tomllib.loads(Path(__file__).with_name("endings.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("language", "text"), TABLES["ends"])
def test_ends_of_sentences(language: str, text: str) -> None:
    plain = text.replace("|", "")
    result = plain
    for place in range(len(plain) - 1, 0, -1):  # between words, or anywhere without spaces
        before, after = plain[:place], plain[place:]
        at_word = after[0] == " " or language in ("ja", "zh")
        if at_word and cues.ends_sentence(before, after, language):
            result = f"{result[:place]}|{result[place:]}"
    assert result == text
    assert cues.ends_sentence(plain + ".", "", language)


@pytest.mark.parametrize(("before", "after", "allowed"), TABLES["breaks"])
def test_where_a_line_may_end(before: str, after: str, allowed: bool) -> None:
    assert cues.may_break(before, after) == allowed


@pytest.mark.parametrize(("language", "text"), TABLES["lines"])
def test_lines_break_where_a_reader_pauses(language: str, text: str) -> None:
    pieces = list(cues.units(text.replace("|", "")))
    starts = [*cues.break_lines(pieces, language), len(pieces)]
    assert "|".join("".join(pieces[a:b]) for a, b in pairwise(starts)) == text


def test_columns() -> None:
    assert cues.columns("abc") == cues.columns("äbç") == cues.columns("a\u0308bç") == 3
    assert cues.columns("日本") == cues.columns("ＡＢ") == 4
    assert cues.columns("नमस्ते") == 4  # two marks have no width of their own
