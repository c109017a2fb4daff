"""The files of every format: other people's readers find in them what was written."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slimwhisper
from slimwhisper.errors import OptionError, OutputError
from slimwhisper.outputs import FORMATS
from slimwhisper.subtitles.cues import to_cues
from slimwhisper.subtitles.sentences import to_sentences
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


def test_a_transcript_is_saved_in_the_format_of_the_suffix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
