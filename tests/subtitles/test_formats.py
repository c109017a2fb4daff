"""The files of every format: other people's readers find in them what was written."""

import csv
import io
import random
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slimwhisper
from slimwhisper.errors import OptionError, OutputError
from slimwhisper.outputs import FORMATS
from slimwhisper.subtitles import cues
from slimwhisper.subtitles.cues import to_cues
from slimwhisper.subtitles.sentences import _cue_costs, _divide, _runs, to_sentences
from slimwhisper.types import Segment, Transcript, Word
from tests.support.constructed import TEXTS, in_segments, spoken, width
from tests.support.fuzz import examples

pysubs2: Any = pytest.importorskip("pysubs2", reason="pysubs2 is not installed")
webvtt: Any = pytest.importorskip("webvtt", reason="webvtt-py is not installed")
Cue = tuple[float, float, str]  # start and end in seconds, text


def written(transcript: Transcript, format: str, **layout: Any) -> str:
    return FORMATS[format].render(transcript, layout).decode()


def seconds(clock: str) -> float:
    *hours, minutes, rest = clock.split(":")
    return 3600 * int(hours[0] if hours else 0) + 60 * int(minutes) + float(rest.replace(",", "."))


def by_pysubs2(text: str, format: str) -> list[Cue]:
    events = pysubs2.SSAFile.from_string(text, format_=format)
    return [(e.start / 1000, e.end / 1000, e.plaintext) for e in events]


def by_webvtt(text: str, format: str) -> list[Cue]:
    read = webvtt.from_buffer(io.BytesIO(text.encode()), format=format)
    return [(seconds(c.start), seconds(c.end), c.text) for c in read]


def by_csv(text: str, format: str) -> list[Cue]:
    rows = csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(int(r["start"]) / 1000, int(r["end"]) / 1000, r["text"]) for r in rows]


READERS: dict[str, tuple[Callable[[str, str], list[Cue]], ...]] = {
    "srt": (by_pysubs2, by_webvtt),
    "vtt": (by_pysubs2, by_webvtt),
    "ass": (by_pysubs2,),
    "tsv": (by_csv,),
}


@st.composite
def transcripts(draw: st.DrawFn) -> tuple[Transcript, bool]:
    """In any language, with or without speakers and words, or late; whether of sentences."""
    language, speakers = draw(st.sampled_from(list(TEXTS))), draw(st.integers(0, 2))
    words = spoken(language, draw(st.integers(2, 20)), 14.0, draw(st.integers(0, 99)))
    late = draw(st.sampled_from((0.0, 3_700.0, 360_000.0 * (speakers == 0))))
    words = [replace(w, start=w.start + late, end=w.end + late) for w in words]
    segments = in_segments(words, draw(st.integers(1, 9)), speakers)
    whole = draw(st.booleans())
    if whole:
        segments = to_sentences(segments, language)
    if draw(st.booleans()):
        segments = [replace(s, words=None) for s in segments]
    return Transcript("".join(s.text for s in segments), segments, language), whole


def bare(text: str) -> str:
    return re.sub(r"\s|\u2060", "", text)


@examples(60)
@given(transcripts(), st.sampled_from(list(READERS)))
def test_what_is_read_is_what_was_written(made: tuple[Transcript, bool], format: str) -> None:
    transcript, whole = made
    text = written(transcript, format, sentences=whole)
    for read in READERS[format]:
        if read is by_pysubs2 and transcript.segments[-1].end >= 360_000:
            continue  # it reads two digits of hours
        cues = read(text, format)
        for (start, end, said), segment in zip(cues, transcript.segments, strict=True):
            assert bare(said) in (bare(segment.text), bare(f"{segment.speaker}: {segment.text}"))
            assert (start, end) == pytest.approx((segment.start, segment.end), abs=0.0051)
            lines = said.split("\n")
            if whole and format != "tsv":  # a word that is wider than a line stands alone
                assert len(lines) <= 2
                assert all(width(line) <= 42 or len(line.split()) == 1 for line in lines)
        assert all(a[1] <= b[0] for a, b in pairwise(cues))


def sentences(language: str = "en", speakers: int = 0) -> Transcript:
    segments = in_segments(spoken(language, 60.0, 14.0, seed=3), each=6, speakers=speakers)
    made = to_sentences(segments, language)
    return Transcript("".join(s.text for s in made), made, language)


def test_voices_of_vtt_take_no_room() -> None:
    transcript = sentences(speakers=2)
    text = written(transcript, "vtt", sentences=True)
    captions = webvtt.from_buffer(io.BytesIO(text.encode()), format="vtt")
    assert [c.voice for c in captions] == [s.speaker for s in transcript.segments]
    nobody = replace(transcript, segments=[replace(s, speaker=None) for s in transcript.segments])
    assert re.sub("<v .*?>", "", text) == written(nobody, "vtt", sentences=True)


def test_ass_says_where_a_line_begins() -> None:
    for language, charset in {"ar": 178, "he": 177, "en": 1}.items():
        text = written(Transcript("", [], language), "ass")
        assert pysubs2.SSAFile.from_string(text).styles["Default"].encoding == charset
    translated = replace(HELLO, language="ar", translated=True)
    assert all(written(translated, f) == written(HELLO, f) for f in ("ass", "lrc"))


def one(text: str, *words: tuple[str, float, float], **changes: Any) -> Transcript:
    timed = [Word(w, a, b, 0.9) for w, a, b in words]
    segment = Segment(0, 0, 1.0, 4.0, text, [], 0.0, -0.1, 1.0, 0.0, timed or None)
    return Transcript(text, [replace(segment, **changes)], "en")


HELLO = one(" Hello big world", (" Hello", 1.0, 1.5), (" big", 1.5, 2.0), (" world", 2.5, 3.25))


def test_words_are_underlined_in_turn() -> None:
    srt = pysubs2.SSAFile.from_string(
        written(HELLO, "srt", sentences=True, highlight_words=True), format_="srt"
    )
    assert [(e.start, e.end, e.text) for e in srt] == [
        (1000, 1500, "{\\u1}Hello{\\u0} big world"),
        (1500, 2000, "Hello {\\u1}big{\\u0} world"),
        (2000, 2500, "Hello big world"),
        (2500, 3250, "Hello big {\\u1}world{\\u0}"),
        (3250, 4000, "Hello big world"),
    ]


def test_karaoke_by_word() -> None:
    assert written(HELLO, "ass", highlight_words=True).splitlines()[-1] == (
        "Dialogue: 0,0:00:01.00,0:00:04.00,Default,,0,0,0,,"
        "{\\k50}Hello{\\k50} big{\\k50}{\\k75} world"
    )
    assert written(HELLO, "ass").endswith(",,Hello big world\n")
    assert written(one(" Hello"), "ass", highlight_words=True).endswith(",,Hello\n")


SHORT = [(0.0, 0.0), (0.0, 0.4), (0.4, 0.4), (0.4, 0.4), (0.4, 1.0), (3.0, 3.0), (5.0, 6.0), (6, 6)]


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize(
    ("format", "layout"),
    [
        *((format, {"max_words_per_line": 1}) for format in ("srt", "vtt")),
        *((format, {"highlight_words": True}) for format in ("srt", "vtt", "ass")),
        *((format, {}) for format in ("srt", "vtt", "ass", "lrc", "tsv")),
    ],
)
def test_no_cue_is_without_a_length(format: str, layout: dict[str, Any], words: bool) -> None:
    """As words and segments may be; its time is the next pause's, or its neighbours'."""
    segments = []
    for number, (start, end) in enumerate(SHORT):
        timed = [(f" w{number}", start, end)] if words else []
        segments += one(f" w{number}", *timed, id=number, start=start, end=end).segments
    segments += one("", start=6.0, end=6.0).segments  # without a text, as whisper has them
    for time in (0.4, 6.0):
        segments += one(" absent", start=time, end=time, flags=("not_in_audio",)).segments
    text = written(Transcript("", segments, "en"), format, **layout)
    if format == "lrc":
        found = [seconds(clock) for clock in re.findall(r"\[([\d:.]+)\]", text)]
        assert found == sorted(set(found))
    else:
        clocks = {"tsv": r"^(\d+)\t(\d+)\t", "ass": "Dialogue: 0,(.*?),(.*?),"}
        pairs = re.findall(clocks.get(format, "(.*) --> (.*)"), text, re.MULTILINE)
        pairs = [[c if ":" in c else f"0:{c}" for c in pair] for pair in pairs]
        times = [tuple(seconds(c.replace(",", ".")) for c in pair) for pair in pairs]
        assert all(start < end for start, end in times)
        assert all(a[1] <= b[0] for a, b in pairwise(times))
        assert times[-1][1] == (6000 if format == "tsv" else 6)
    assert [f"w{i}" in text for i in range(len(SHORT))] == [True] * len(SHORT)
    assert "absent" not in text


def test_what_overlaps_stays_as_it_is() -> None:
    """Two people who speak at the same time."""
    spans = (1, 3), (2, 2), (3, 3), (2.5, 3)
    all = Transcript("", [s for a, b in spans for s in one(" a", start=a, end=b).segments], "en")
    times = re.findall(r"(\d+)\t(\d+)\t", written(all, "tsv"))
    assert times == [("1000", "3000"), ("2000", "2050"), ("2950", "3000"), ("2500", "3000")]
    assert written(all, "lrc").endswith("a\n[00:03.00]\n")
    first = [s for end in (0.0, 0.05) for s in one(f" a{end}", start=0.0, end=end).segments]
    assert written(Transcript("", first, "en"), "srt", sentences=True).count("a0.0") == 2


def test_a_longer_word_does_not_make_cues_overlap() -> None:
    """Nor take the time to read the one before it, or the silence before the one after it."""
    parts = ((1, 2, 1, 1), (2, 2.5, 2.5, 2.5), (2.5, 4, 3, 4))
    segments = [s for a, b, *w in parts for s in one(" a", (" a", *w), start=a, end=b).segments]
    text = written(Transcript("", segments, "en"), "srt", sentences=True)
    times = [1, 2], [2, 2.5], [2.5, 4]
    assert [[*map(seconds, pair)] for pair in re.findall("(.*) --> (.*)", text)] == [*times]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (r"a {\b1}b", "a \\{\\\u2060b1\\}b"),
        (r"C:\new", "C:\\\u2060new"),
        ("one\ntwo, three", "one two, three"),
    ],
)
def test_nothing_said_is_a_tag_of_ass(text: str, escaped: str) -> None:
    line = written(one(text, speaker="Ann, Bob"), "ass").splitlines()[-1]
    assert line == f"Dialogue: 0,0:00:01.00,0:00:04.00,Default,Ann Bob,0,0,0,,{escaped}"


def test_nothing_said_ends_a_cue() -> None:
    transcript = one(" a --> b\n\n <i>&amp; so")
    assert "a -> b <i>&amp; so\n" in written(transcript, "srt", sentences=True)
    assert "\ta --> b   <i>&amp; so\n" in written(transcript, "tsv")
    assert "a --&gt; b &lt;i&gt;&amp;amp; so\n" in written(transcript, "vtt", sentences=True)


def test_lrc() -> None:
    assert written(HELLO, "lrc").splitlines() == [
        "[la:en]",
        "[re:slimwhisper]",
        "[00:01.00]<00:01.00>Hello<00:01.50> big<00:02.50> world<00:04.00>",
        "[00:04.00]",
    ]
    late = one(" say [01:02.03] or <00:09.00> [so]", start=7000.0, end=7001.5, speaker="Ann")
    both = replace(late, segments=[*HELLO.segments, *late.segments])
    assert written(both, "lrc").splitlines()[3:] == [
        "[00:04.00]",
        "[116:40.00]Ann: say (01:02.03] or (00:09.00> [so]",
        "[116:41.50]",
    ]
    assert written(Transcript("", [], "en"), "lrc") == "[la:en]\n[re:slimwhisper]\n"


def test_words_that_disagree_with_their_segment_stay_within_it() -> None:
    odd = one(" a b c", (" a", 0.5, 0.9), (" b", 3.0, 2.0), (" c", 2.5, 9.0))
    cue = next(to_cues(odd, broken=False))
    assert [(w.start, w.end) for w in cue.words] == [(1.0, 1.0), (3.0, 3.05), (3.05, 4.0)]


def test_a_transcript_is_saved_in_the_format_of_the_suffix(tmp_path: Path, caplog: Any) -> None:
    for name in ("a.srt", "b.VTT", "c.txt"):
        slimwhisper.save_transcript(HELLO, tmp_path / name, sentences=True)
        assert (tmp_path / name).read_text() == written(HELLO, name[2:].lower(), sentences=True)
    wordless, plain, words = one("no words"), {"segments": []}, {"highlight_words": True}
    refused: tuple[tuple[Any, str, dict[str, Any], type[Exception], str], ...] = (
        (HELLO, "a.docx", {}, OptionError, "a.docx: its name has to end in one of .txt, .vtt"),
        (HELLO, "a.srt", {"lines": 2}, OptionError, "'lines' is not one of highlight_words"),
        (HELLO, "gone/a.srt", {}, OutputError, "a.srt: cannot be written"),
        (wordless, "a.srt", words, OptionError, "^highlight_words requires word_timestamps True"),
        (plain, "a.srt", {}, OptionError, "dict'>; give what transcribe returns"),
    )
    for transcript, name, layout, error, message in refused:
        with pytest.raises(error, match=message):
            slimwhisper.save_transcript(transcript, tmp_path / name, **layout)
    slimwhisper.save_transcript(HELLO, tmp_path / "a.srt", max_line_count=2)
    assert caplog.messages == ["max_line_count has no effect without max_line_width"]


# Where sentences end, and lines may; `to_sentences`: the limits of subtitles in nine languages


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
