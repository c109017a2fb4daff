"""Other people's parsers, given every format that we write."""

import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

from slimwhisper.outputs.formats import write_transcript
from slimwhisper.speakers.rttm import read_rttm
from slimwhisper.subtitles.sentences import to_sentences
from slimwhisper.types import Segment, Transcript, Word
from tests.foreign.outcomes import Check, NotApplicableError, attempt, needs
from tests.foreign.places import Places
from tests.support.constructed import in_segments, spoken

ODD = {
    "braces": " so {\\b1} it is {well}",
    "less and more": " it is <5 % and > 3 <x>",
    "an ampersand": " R&D &amp; so",
    "backslashes": " C:\\new \\N \\h",
    "a time in brackets": " at [00:01.00] or <00:02.00> now",
    "quotes": ' "no", he said',
    "marks and emoji": " 😀 e\u0301 \u202bab\u202c",
    "a number alone": " 12",
    "an arrow": " a --> b",
}
Cue = tuple[float, float, str]  # start and end in seconds, text


@dataclass(frozen=True)
class Case:
    """A transcript, and how it is written."""

    name: str
    transcript: Transcript
    layout: Mapping[str, Any] = field(default_factory=dict)


def made(segments: list[Segment], language: str = "en") -> Transcript:
    return Transcript("".join(s.text for s in segments), segments, language)


def wordless(transcript: Transcript) -> Transcript:
    return replace(transcript, segments=[replace(s, words=None) for s in transcript.segments])


def later(segments: list[Segment], seconds: float) -> list[Segment]:
    moved = []
    for s in segments:
        words = [Word(w.word, w.start + seconds, w.end + seconds, 0.9) for w in s.words or ()]
        moved.append(replace(s, start=s.start + seconds, end=s.end + seconds, words=words or None))
    return moved


def cases() -> list[Case]:
    words = in_segments(spoken("en", 40, 14, seed=3), each=6)
    two = in_segments(spoken("en", 40, 14, seed=4), each=6, speakers=2)
    odd = {name: wordless(made([replace(words[0], text=text)])) for name, text in ODD.items()}
    names = [replace(s, speaker=f"{s.speaker}, né É.") for s in two]
    overlapping = [replace(s, end=s.end + 1) for s in two]
    plain = {
        "segments": wordless(made(words)),
        "words": made(words),
        "two speakers": wordless(made(two)),
        "speakers' odd names": wordless(made(names)),
        "speakers at once": wordless(made(overlapping)),
        "nothing": made([]),
        "hours": made(later(words, 36_000)),
        "days": made(later(two, 360_000)),
        "right to left": made(in_segments(spoken("ar", 30, 12, seed=3), each=5), "ar"),
        "no spaces": made(in_segments(spoken("ja", 30, 10, seed=3), each=6), "ja"),
    }
    found = [Case(name, transcript) for name, transcript in (plain | odd).items()]
    lines = {"sentences": made(to_sentences(words, "en"))}
    lines["sentences of two"] = made(to_sentences(two, "en"))
    lines |= {f"{name}, escaped": transcript for name, transcript in odd.items()}
    return found + [Case(name, found, {"sentences": True}) for name, found in lines.items()]


class Parser(NamedTuple):
    """A reader of a format. read: the file -> cues."""

    package: str
    format: str
    read: Callable[[Path], list[Cue]]
    tolerance: float = 0.0015  # seconds


def by_srt(path: Path) -> list[Cue]:
    import srt

    subtitles = srt.parse(path.read_text())
    return [(s.start.total_seconds(), s.end.total_seconds(), s.content) for s in subtitles]


def by_pysubs2(path: Path) -> list[Cue]:
    import pysubs2

    events = pysubs2.load(str(path), encoding="utf-8", format_=path.suffix[1:])
    return [(e.start / 1000, e.end / 1000, e.plaintext) for e in events]


def by_webvtt(path: Path) -> list[Cue]:
    import webvtt

    read = webvtt.from_srt if path.suffix == ".srt" else webvtt.read
    return [(clock(c.start), clock(c.end), c.text) for c in read(str(path))]


def clock(text: str) -> float:
    *rest, seconds = (float(part) for part in text.replace(",", ".").split(":"))
    return seconds + sum(60**i * part for i, part in enumerate(reversed(rest), start=1))


KEPT = r"</?[fu][^>]*>|\\(?=[{}])"
WORD_TIMES = r"<\d+:\d\d\.\d\d>"


def by_ffmpeg(path: Path) -> list[Cue]:
    """What ffmpeg writes as SubRip: it keeps tags, escapes of ASS and LRC's times of words."""
    kept = f"{KEPT}|{WORD_TIMES}" if path.suffix == ".lrc" else KEPT
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-f", "srt", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and path.stat().st_size < 1200:  # a header alone: no stream
        return []
    assert done.returncode == 0, done.stderr
    cues = re.findall(r"^\d+\n(\S+) --> (\S+)\n(.*?)\n(?=\n\d+\n|\n*\Z)", done.stdout, re.S | re.M)
    return [(clock(a), clock(b), re.sub(kept, "", t)) for a, b, t in cues]


def by_pandas(path: Path) -> list[Cue]:
    import pandas

    rows = pandas.read_csv(path, sep="\t", quoting=3, keep_default_na=False, dtype={"text": str})
    return [(r.start / 1000, r.end / 1000, r.text) for r in rows.itertuples()]


def by_stable_ts(path: Path) -> list[Cue]:
    import stable_whisper

    result = stable_whisper.WhisperResult(str(path))
    return [(s.start, s.end, s.text) for s in result.segments]


PARSERS = (
    Parser("srt", "srt", by_srt),
    Parser("pysubs2", "srt", by_pysubs2),
    Parser("pysubs2", "vtt", by_pysubs2),
    Parser("pysubs2", "ass", by_pysubs2, 0.0051),
    Parser("webvtt-py", "srt", by_webvtt),
    Parser("webvtt-py", "vtt", by_webvtt),
    Parser("ffmpeg", "srt", by_ffmpeg),
    Parser("ffmpeg", "vtt", by_ffmpeg),
    Parser("ffmpeg", "ass", by_ffmpeg, 0.0051),
    Parser("ffmpeg", "lrc", by_ffmpeg, 0.0051),
    Parser("pandas", "tsv", by_pandas),
    Parser("stable-ts", "json", by_stable_ts),
)


NEEDED = {"pandas": ("pandas",), "stable-ts": ("stable_whisper: stable-ts",)}
CHECKOUTS = ("srt", "pysubs2", "webvtt-py", "stable-ts")  # the others are installed


def written(case: Case, format: str, folder: Path) -> Path:
    file = io.StringIO()
    write_transcript(case.transcript, format, file, {**case.layout, "recording": "talk"})
    path = folder / f"{case.name.replace(' ', '-')}.{format}"
    path.write_text(file.getvalue(), encoding="utf-8")
    return path


def bare(text: str) -> str:
    """Without spaces, line breaks and what formats add or replace: word joiners, arrows."""
    return re.sub(r"\s|\u2060", "", text.replace("-->", "->"))


def same_cues(parser: Parser, case: Case, folder: Path) -> None:
    found = parser.read(written(case, parser.format, folder))
    segments = case.transcript.segments
    if parser.format == "lrc":
        found = [cue for cue in found if cue[2].strip()]  # others clear the line
    assert len(found) == len(segments), f"{len(found)} cues of {len(segments)}"
    for (start, end, text), segment in zip(found, segments, strict=True):
        names = segment.speaker or ""
        said = {bare(segment.text), bare(f"{names}: {segment.text}")}
        assert bare(text) in said, f"{text!r} of {segment.text!r}"
        assert abs(start - segment.start) <= parser.tolerance, f"{start} of {segment.start}"
        if parser.format != "lrc":
            assert abs(end - segment.end) <= parser.tolerance, f"{end} of {segment.end}"
    if case.name != "speakers at once":
        assert all(a[1] <= b[0] for a, b in pairwise(found)) or parser.format == "lrc"


def highlighted(parser: Parser, folder: Path) -> None:
    """Where words are highlighted, cues begin with words, and each has its whole line."""
    (case,) = (case for case in cases() if case.name == "words")
    lit = replace(case, name="lit", layout={"highlight_words": True})
    found = parser.read(written(lit, parser.format, folder))
    words = [w for s in case.transcript.segments for w in s.words or ()]
    starts = [start for start, _, _ in found]
    if parser.format != "ass":  # there, one event has the times of all words
        assert all(any(abs(w.start - s) <= parser.tolerance for s in starts) for w in words)
    texts = {bare(re.sub("</?u>", "", text)) for _, _, text in found}
    assert texts == {bare(s.text) for s in case.transcript.segments}


def read_by(package: str, places: Places) -> Iterator[Check]:
    """Every format that a package reads, for every transcript."""
    needs(*NEEDED.get(package, ()))
    if package == "ffmpeg" and which("ffmpeg") is None:
        raise NotApplicableError("the program ffmpeg is not installed")
    folder = places.work / f"for-{package}"
    folder.mkdir()
    for parser in (parser for parser in PARSERS if parser.package == package):
        for case in cases():
            if case.name.endswith("escaped") and parser.format != "vtt":
                continue  # other formats are the same with `sentences`
            check = partial(same_cues, parser, case, folder)
            yield attempt(package, f"{parser.format} of {case.name}", check)
        if parser.format in ("srt", "vtt", "ass"):
            check = partial(highlighted, parser, folder)
            yield attempt(package, f"{parser.format}, words highlighted", check)


def score(places: Places) -> Iterator[Check]:
    """dscore reads and scores our RTTM; we read what it writes."""
    needs("intervaltree", "tabulate", "scipy")
    folder = places.work / "turns"
    folder.mkdir()
    for case in cases():
        if any(s.speaker for s in case.transcript.segments):
            path = written(case, "rttm", folder)
            yield attempt("dscore", f"load_rttm, {case.name}", partial(same_turns, case, path))
            for program in ("validate_rttm", "score"):
                check = partial(run_dscore, places, program, path)
                yield attempt("dscore", f"{program}.py, {case.name}", check)
            yield attempt("dscore", f"write_rttm, {case.name}", partial(read_back, path))
    for path in sorted((places.foreign / "dscore/scorelib/tests").glob("*.rttm")):
        yield attempt("dscore", f"{path.name}, read by us", partial(same_as_theirs, path))


def same_turns(case: Case, path: Path) -> None:
    from scorelib.rttm import load_rttm

    turns, speakers, files = load_rttm(str(path))
    assert files == {"talk"}
    assert speakers == {"_".join((s.speaker or "").split()) for s in case.transcript.segments}
    for segment in case.transcript.segments:
        name = "_".join((segment.speaker or "").split())
        mine = [t for t in turns if t.speaker_id == name]
        held = [
            t for t in mine if t.onset <= segment.start + 0.001 and t.offset >= segment.end - 0.002
        ]
        assert len(held) == 1, f"{len(held)} turns hold {segment.start}-{segment.end}"


def run_dscore(places: Places, program: str, path: Path) -> None:
    """No error in it; scored against itself, the error is 0."""
    folder = places.foreign / "dscore"
    files = ["-r", str(path), "-s", str(path)] if program == "score" else [str(path)]
    command = [sys.executable, str(folder / f"{program}.py"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    assert "ERROR" not in done.stdout + done.stderr, done.stdout
    if program == "score":
        (overall,) = (line for line in done.stdout.splitlines() if "OVERALL" in line)
        assert overall.split()[3:5] == ["0.00", "0.00"], overall  # DER, JER


def read_back(path: Path) -> None:
    from scorelib.rttm import load_rttm, write_rttm

    other = path.with_suffix(".theirs.rttm")
    write_rttm(str(other), load_rttm(str(path))[0])
    assert read_rttm(other) == read_rttm(path)


def same_as_theirs(path: Path) -> None:
    from scorelib.rttm import load_rttm

    turns = [t for of_one in read_rttm(path).values() for t in of_one]
    ours = sorted((round(t.start, 3), round(t.end, 3), t.speaker) for t in turns)
    theirs = load_rttm(str(path))[0]
    assert ours == sorted((round(t.onset, 3), round(t.offset, 3), t.speaker_id) for t in theirs)
