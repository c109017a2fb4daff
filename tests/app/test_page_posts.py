"""What the page keeps and what it posts: results, corrections, the Live tab's transcripts."""

import io
import json
import os
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from slimwhisper import outputs as formats
from slimwhisper.app.page import posts
from slimwhisper.app.page.edits import STEPS, TYPED, ConflictError, Edits, with_text
from slimwhisper.app.page.files import PageResults, make_results_router
from slimwhisper.app.server import add_error_handlers
from slimwhisper.outputs import FORMATS, OutputFormat, formats_for
from slimwhisper.types import Segment, Transcript, Word
from tests.support.fuzz import examples
from tests.support.refusals import TABLES

WAS = "five five five"  # the first segment's text
FILE = "/page/live/transcript"
SEGMENT = {"start": 0, "end": 1, "text": "a"}


def transcript() -> Transcript:
    """Three segments of three words, a second each."""
    segments = []
    for i, text in enumerate((f" {WAS}", " zero one four", " two seven nine")):
        words = [
            Word(f" {w}", 4.0 * i + n, 4.0 * i + n + 1, 0.5) for n, w in enumerate(text.split())
        ]
        made = Segment(i, 0, 4.0 * i, 4.0 * i + 3, text, [1], 0.0, -0.1, 1.0, 0.0, words)
        segments.append(replace(made, flags=("repeats",) if i else ()))
    return Transcript("".join(segment.text for segment in segments), segments, "en")


class Site:
    """The page's own routes over two results of the same name, and one that is not done."""

    def __init__(self, folder: Path) -> None:
        results = PageResults(folder / "kept", 10**6)
        (folder / "a.wav").write_bytes(b"RIFF")
        one, other, self.unfinished = (results.add(folder / "a.wav", "a.wav", "g") for _ in "abc")
        one.edits, other.edits = Edits(transcript()), Edits(transcript())
        app = FastAPI()
        add_error_handlers(app)
        routers = make_results_router(results), posts.make_edit_router(results)
        for router in (*routers, posts.make_live_router(lambda: "ek_1")):
            app.include_router(router)
        self.client = TestClient(app)
        self.result = f"/page/result/{one.token}"
        self.edit = f"/page/edit/{one.token}"

    def downloads(self) -> dict[str, bytes]:
        """The first result's files: there are no speakers."""
        return {f: self.client.get(f"{self.result}.{f}").content for f in formats_for(False)}

    def zipped(self) -> dict[str, bytes]:
        """The files of both."""
        content = self.client.get("/page/results/g.zip").content
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def refused(self, status: int, path: str, content: Any, kind: str = "application/json") -> str:
        """The message of an answer. content: the body, or what it is to say as JSON."""
        body = content if isinstance(content, str | bytes) else json.dumps(content)
        found = self.client.post(path, content=body, headers={"Content-Type": kind})
        assert found.status_code == status, (content, found.text)
        message = str(found.json()["error"]["message"])
        assert "\n" not in message and len(message) < 300
        return message

    def written(self, format: str, segments: list[dict[str, Any]], language: str = "en") -> str:
        """A live transcript as a file."""
        body = {"language": language, "segments": segments}
        found = self.client.post(f"{FILE}.{format}", json=body)
        assert found.status_code == 200, found.text
        assert found.headers["content-disposition"].endswith(f"live.{format}")
        return found.text


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.client.close()


def test_a_registered_format_is_downloaded(site: Site) -> None:
    row = OutputFormat(
        "chapters", "text/x-chapters", lambda t, file, _: file.write(f"{len(t.text)}\n")
    )
    formats.register(row)
    try:
        found = site.client.get(f"{site.result}.chapters")
        assert found.headers["content-type"].partition(";")[0] == row.media_type
        assert found.headers["content-disposition"].endswith("a.chapters")
        files = site.zipped()
        assert len(files) == 2 * (len(FORMATS) - 1), "without speakers"
        assert files["a (2).chapters"] == files["a.chapters"] == found.content == b"44\n"
    finally:
        del FORMATS[row.name]  # the page still shows its link
    for format in ("chapters", "rttm"):
        found = site.client.get(f"{site.result}.{format}")
        assert found.status_code == 404 and "choose: txt" in found.json()["error"]["message"]


def test_what_is_kept_and_for_how_long(tmp_path: Path) -> None:
    """Whatever becomes of the upload; how much of it: attack/test_uploads.py. The folder is never
    so old that a service which cleans /tmp would remove it.
    """
    results = PageResults(tmp_path / "kept", max_bytes=30, keep=3600)
    source = tmp_path / "a.wav"
    source.write_bytes(b"0123456789")
    first, second = (results.add(source, "a.wav", "g") for _ in range(2))
    source.unlink()
    assert first.path.read_bytes() == b"0123456789"
    os.utime(results.folder, (0, 0))
    assert results.find(first.token) is first and len(first.token) >= 32
    assert time.time() - results.folder.stat().st_mtime < 60
    first.edits = Edits(transcript())
    assert results.find_group("g") == [first], "of what has a transcript"
    first.since = second.since = time.monotonic() - 4000
    assert results.find_group("g") == list(results.folder.iterdir()) == []
    with pytest.raises(HTTPException, match="no longer available"):
        results.find(first.token)


def test_corrections_are_in_every_download(site: Site) -> None:
    client, plain = site.client, site.downloads()
    change = {"texts": [[1, "zero one four", "  zero\none   FORTY-TWO "]]}
    found = client.post(site.edit, json=change)
    assert found.status_code == 200
    text = "zero one   FORTY-TWO"
    words = [[4.0, 5.0, " zero", 0.5], [5.0, 6.0, " one", 0.5], [6.0, 7.0, "   FORTY-TWO", 1.0]]
    assert found.json() == {
        "revision": 1,
        "text": f"{WAS} {text} two seven nine",
        "segments": {"1": [4.0, 7.0, text, json.dumps(words, separators=(",", ":")), None, []]},
    }
    for format, content in site.downloads().items():
        assert b"FORTY-TWO" in content and content != plain[format], format
    names = [name for name, content in site.zipped().items() if b"FORTY-TWO" in content]
    assert names == [f"a.{format}" for format in plain], "and in no other file"
    assert client.post(site.edit, json={"undo": 1}).json()["revision"] == 2
    assert site.downloads() == plain
    assert client.post(site.edit, json={"redo": 2}).status_code == 200
    late = client.post(site.edit, json={"texts": [[0, WAS, "nine"], *change["texts"]]})
    assert late.status_code == 409 and late.json()["text"].startswith(WAS), "none is half changed"
    assert {i: shown[2] for i, shown in late.json()["segments"].items()} == {"1": text}
    assert "changed elsewhere" in late.json()["error"]["message"]
    approved = client.post(site.edit, json={"approve": 2}).json()
    assert approved["segments"]["2"][5] == []


def test_corrections_that_are_refused(site: Site) -> None:
    plain = site.downloads()
    for body in (*TABLES["edits"], {"speaker": ["A", "x" * 101]}):
        site.refused(400, site.edit, body)
    long = {"texts": [[0, WAS, "x" * (posts.MAX_TEXT + 1)]]}
    assert "texts.0.2" in site.refused(400, site.edit, long)
    site.refused(409, site.edit, '{"undo": 0}')
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        site.refused(415, site.edit, {"texts": [[0, WAS, "nine"]]}, kind)
    for token in ("x" * 32, site.unfinished.token):
        site.refused(404, f"/page/edit/{token}", {"undo": 0})
    assert site.downloads() == plain, "nothing was changed"


SAID = [
    {"start": 0.5, "end": 2.25, "text": " five  five"},
    {"start": 4.0, "end": 7.5, "text": "zero\none --> four"},
]
WORDS = [
    [
        {"start": 0.5, "end": 1.0, "word": " five", "probability": 0.5},
        {"start": 1.5, "end": 2.25, "word": "-five", "probability": 1},
    ],
    [{"start": 4.0, "end": 7.5, "word": " zero", "probability": 0}],
]


def test_every_format_of_a_live_transcript(site: Site) -> None:
    assert site.written("txt", SAID) == "five  five\nzero one -> four\n"
    assert site.written("srt", SAID) == (
        "1\n00:00:00,500 --> 00:00:02,250\nfive five\n\n"
        "2\n00:00:04,000 --> 00:00:07,500\nzero one -> four\n\n"
    )
    long = {"start": 3.0, "end": 23.0, "text": "We came home late, and nobody had seen us. " * 5}
    assert site.written("srt", [long]).count("\n\n") == 5, "a cue for each sentence"
    for format in formats_for(False):
        assert "five" in site.written(format, SAID)
        site.written(format, [])


def test_words_and_details_of_a_live_transcript(site: Site) -> None:
    """As `slimwhisper live -f json` writes them."""
    timed = [{**one, "words": words} for one, words in zip(SAID, WORDS, strict=True)]
    details = {"tokens": [50364, 1732], "temperature": 0.2, "avg_logprob": -0.5}
    details |= {"compression_ratio": 0.75, "no_speech_prob": 0.125}
    found = json.loads(site.written("json", [{**timed[0], **details}, timed[1]], "yue"))
    assert found["language"] == "yue" and found["text"] == " five  five zero one -> four"
    first, second = found["segments"]
    assert [w["word"] for w in first["words"]] == [" five", "-five"]
    assert {name: first[name] for name in details} == details
    assert second["tokens"] == [] and second["compression_ratio"] > 0
    assert "<00:01.50>" in site.written("lrc", timed).replace(" ", "")
    mixed = json.loads(site.written("json", [timed[0], SAID[1]]))
    assert "words" not in mixed["segments"][0], "all or nothing"


def test_live_transcripts_that_are_refused(site: Site) -> None:
    body: dict[str, Any] = {"language": "en", "segments": SAID}
    for field, value, message in (
        *(("end", "soon", "segments.0.end"), ("end", 0.1, "the end is before")),
        *(("end", 1e300, "segments.0.end"), ("end", float("inf"), "")),
        *(
            ("start", -1, "segments.0.start"),
            ("text", "x" * (posts.MAX_TEXT + 1), "segments.0.text"),
        ),
        *(("words", WORDS[0] * (posts.MAX_PARTS // 2 + 1), "words"), ("tokens", [-1], "tokens.0")),
        *(("tokens", [1] * (posts.MAX_PARTS + 1), "tokens"), ("avg_logprob", "low", "avg_logprob")),
    ):
        wrong = {**body, "segments": [{**SAID[0], field: value}]}
        assert message in site.refused(400, f"{FILE}.srt", wrong), field
    many = [{"start": 0, "end": 0, "text": ""}] * (posts.MAX_SEGMENTS + 1)
    for change in ({"language": "xx"}, {"segments": many}, {"path": "/etc/passwd"}):
        assert next(iter(change)) in site.refused(400, f"{FILE}.srt", body | change)
    site.refused(400, f"{FILE}.srt", "{")
    for format in ("rttm", "exe", "srt/x", ".."):
        assert site.client.post(f"{FILE}.{format}", json={}).status_code == 404


def test_only_the_first_mistake_is_looked_for(site: Site) -> None:
    """In 8 MB, there could be millions, of a kB each."""
    for kind, body in (
        (posts.EditRequest, {"texts": [1] * 9}),
        (posts.LiveTranscript, {"language": "en", "segments": [1] * 9}),
        (posts.LiveTranscript, {"language": "en", "segments": [SEGMENT | {"words": [1] * 9}]}),
        (posts.LiveTranscript, {"language": "en", "segments": [SEGMENT | {"tokens": ["x"] * 9}]}),
    ):
        with pytest.raises(ValidationError) as raised:
            kind.model_validate_json(json.dumps(body))
        assert raised.value.error_count() == 1
    for path in (site.edit, f"{FILE}.srt"):
        assert " mistakes" in site.refused(400, path, {str(name): 1 for name in range(200)})
        said = site.refused(400, path, b'{"texts": [' + b"[]," * 500_000 + b"1]}")
        assert "objects and arrays" in said


def test_who_gets_a_key(site: Site) -> None:
    found = site.client.post("/page/live/key", json={})
    assert found.json() == {"value": "ek_1"}
    for path in ("/page/live/key", f"{FILE}.srt"):
        site.refused(415, path, "{}", "")  # a form of another site


# Corrections of a transcript: words' times, undo, many at once, and what is written


FIVE = (" five", " zero", " one", " four")  # at 10, 11.5, 13 and 14.5
HAD = "five zero one four"


def segment(*words: str, id: int = 0, start: float = 10.0) -> Segment:
    """A segment whose words take a second each, with pauses of half a second."""
    timed = [
        Word(word, start + 1.5 * i, start + 1.5 * i + 1, 0.5, "A") for i, word in enumerate(words)
    ]
    given = (start, start + 1.5 * len(words) - 0.5, "".join(words), [1, 2], 0.0, -0.1, 1.0, 0.0)
    return Segment(id, 0, *given, timed, "A", ("repeats",))


def spans(changed: Segment) -> list[tuple[str, float, float]]:
    assert changed.words is not None
    return [(word.word, word.start, word.end) for word in changed.words]


@examples(100)
@given(st.lists(st.sampled_from([*FIVE, " ab", "-cdef", " x"]), max_size=7).map("".join))
def test_words_keep_their_times(text: str) -> None:
    """Joined, the new words are the text; those that were there are as they were, in order."""
    before = segment(*FIVE)
    after = with_text(before, text)
    assert after.text == text and after.tokens == [] and after.flags == ()
    assert after.words is not None and "".join(word.word for word in after.words) == text
    for each in after.words:
        assert each.probability == TYPED or each in (before.words or [])
        assert each.speaker == "A"
    times = [time for _, start, end in spans(after) for time in (start, end)]
    assert all(one <= other for one, other in pairwise([10.0, *times, 15.5]))


def test_changed_words_share_the_time_of_those_before() -> None:
    for text, expected in (
        *((" five zero one four", {}), (" five one four", {}), ("", {})),
        (" five hero one four", {" hero": (11.5, 12.5)}),
        (" five or hero one four", {" or": (11.5, 11.83), " hero": (11.83, 12.5)}),
        (" five ab cdef four", {" ab": (11.5, 12.5), " cdef": (13.0, 14.0)}),
        (" five abc four", {" abc": (11.5, 14.0)}),
        (" five and zero one four", {" and": (11.0, 11.5)}),
        (" a five zero one four", {" a": (10.0, 10.0)}),
        (" five zero one four b", {" b": (15.5, 15.5)}),
        (" five zero two three four", {" two": (13.0, 13.38), " three": (13.38, 14.0)}),
    ):
        changed = {word: span for word, *span in spans(with_text(segment(*FIVE), text))}
        new = {word: tuple(changed[word]) for word in changed.keys() - set(FIVE)}
        assert new.keys() == expected.keys()
        assert all(new[word] == pytest.approx(span) for word, span in expected.items()), text


def test_scripts_without_spaces() -> None:
    before = segment("今日", "は", "晴れ", "です")
    after = with_text(before, "今日は雨です")
    assert spans(after) == [
        *(("今日", 10.0, 11.0), ("は", 11.5, 12.5), ("雨", 13.0, 14.0), ("です", 14.5, 15.5))
    ]
    assert [word for word, *_ in spans(with_text(before, "今日は大雪です"))][2:4] == ["大", "雪"]


def test_words_that_hold_together_and_none() -> None:
    """Whisper's "well" and "-known" have no space between them."""
    before = segment(" a", " well", "-known", " fact")
    assert with_text(before, " a well-known fact").words == before.words
    changed = spans(with_text(before, " a well-knows fact"))
    assert changed[1] == (" well-knows", 11.5, 14.0) and changed[2] == (" fact", 14.5, 15.5)
    assert with_text(replace(segment(" a"), words=None), " b").words is None
    empty = with_text(segment(*FIVE), "")
    assert empty.words == [] and spans(with_text(empty, " x")) == [(" x", 10.0, 15.5)]
    lines = [replace(segment(word), text=word) for word in ("one", "two")]
    edits = Edits(Transcript("one\ntwo", lines, "en"))  # of a script
    edits.correct({1: ("two", "three")})
    assert edits.transcript.text == "one\nthree"


def made(count: int = 3) -> Edits:
    segments = [segment(*FIVE, id=i, start=10.0 * i) for i in range(count)]
    return Edits(Transcript("".join(one.text for one in segments), segments, "en"))


def test_changes_are_undone_and_made_again() -> None:
    edits = made()
    first = edits.transcript
    assert edits.file_transcript is first
    assert edits.correct({0: (HAD, HAD)}) == {} and edits.revision == 0
    edits.correct({0: (HAD, "nine"), 2: (HAD, "")})
    edits.approve(1)
    assert set(edits.rename("A", "Ann")) == {0, 1, 2} and edits.revision == 3
    now = edits.transcript
    assert now.text == f" nine{first.segments[1].text}" and len(now.segments) == 3
    assert {s.speaker for s in now.segments} == {"Ann"} and now.segments[1].flags == ()
    assert [s.id for s in edits.file_transcript.segments] == [0, 1], "not what was emptied"
    states = [now]
    for _ in range(3):
        edits.undo(edits.revision)
        states.append(edits.transcript)
    assert edits.transcript is first and edits.file_transcript is first
    for state in reversed(states[:-1]):
        edits.redo(edits.revision)
        assert edits.transcript == state
    edits.correct({2: ("", "six")})
    assert edits.transcript.segments[2].text == " six", "what was emptied gets its space back"
    edits.undo(edits.revision)
    edits.rename("Ann", "Bob")
    with pytest.raises(ConflictError):
        edits.redo(edits.revision)
    for i in range(STEPS + 5):
        edits.rename(edits.transcript.segments[0].speaker or "", f"S{i}")
    for _ in range(STEPS):
        edits.undo(edits.revision)
    assert edits.transcript.segments[0].speaker == "S4", "so many steps are kept"
    with pytest.raises(ConflictError):
        edits.undo(edits.revision)


def test_many_threads_lose_nothing() -> None:
    edits = made(40)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: edits.correct({i: (HAD, f"number {i}")}), range(40)))
    assert edits.transcript.text == "".join(f" number {i}" for i in range(40))
    assert edits.revision == 40
