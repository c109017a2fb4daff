"""`slimwhisper live` with a model that is not there: sources, outputs, signals, errors; how it
gives audio to a stream, at its speed, in time, and all of it; and what a terminal's screen has.
"""

import json
import os
import queue
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile

from slimwhisper.cli import build_parser
from slimwhisper.commands.live import command, flags, outputs
from slimwhisper.commands.live.outputs import Screen
from slimwhisper.commands.live.source_reader import SourceReader, paced
from slimwhisper.errors import AudioError
from slimwhisper.live import types
from slimwhisper.types import SAMPLE_RATE, Segment, Word
from tests.support.command import RunCLI
from tests.support.paths import SAMPLES
from tests.support.waiting import eventually

RAW = (np.sin(np.arange(3 * SAMPLE_RATE) / 20) * 9_000).astype("<i2").tobytes()  # 3 s
Stdin = Callable[[bytes], object]
SAID = (" one", " two -->", " thrée & four")


def segment(number: int, text: str) -> Segment:
    return Segment(number, 0, float(number), number + 0.75, text, [], 0.0, -0.1, 1.0, 0.0)


def utterance(number: int, text: str) -> list[types.LiveEvent]:
    """What is told of an utterance whose text is committed word by word."""
    words = re.findall(" *[^ ]+", text)
    told: list[types.LiveEvent] = [types.SpeechStarted(number, float(number))]
    for word, tail in zip(words, [*words[1:], ""], strict=True):
        told.append(types.TextUpdate(number, word, tail, (Word(word, 0.5, 0.75, 0.9),), 1.0))
    told.append(types.SpeechStopped(number, number + 0.75))
    return [*told, types.UtteranceEnded(number, (segment(number, text),), text, "en")]


class Model:
    """Says one of `SAID` for each second of audio. It is its own stream, fed by another thread."""

    def __init__(self) -> None:
        self.pieces: list[int] = []
        self.options: dict[str, Any] = {}
        self.fails: Exception | None = None
        self.on_piece: Callable[[], object] = lambda: None
        self.backlog = 0.0
        self._queue: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()
        self.append = self._queue.put

    def finish(self) -> None:
        self.append(None)

    def close(self) -> None: ...

    def live(self, source: Iterable[np.ndarray] | None = None, **options: Any) -> Any:
        self.options = options
        return self if source is None else self.events(source)

    def __iter__(self) -> Iterator[types.LiveEvent]:
        return self.events(self._pieces())

    def _pieces(self) -> Iterator[np.ndarray]:
        while (piece := self._queue.get()) is not None:
            yield piece

    def events(self, source: Iterable[np.ndarray]) -> Iterator[types.LiveEvent]:
        told = 0
        for piece in source:
            self.pieces.append(len(piece))
            self.on_piece()
            while told < len(SAID) and sum(self.pieces) >= (told + 1) * SAMPLE_RATE:
                yield from utterance(told, SAID[told])
                told += 1
            if self.fails is not None:
                raise self.fails


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    made = Model()
    monkeypatch.setattr(command, "load_chosen", lambda _: made)
    return made


@pytest.fixture
def stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stdin]:
    """Sets what standard input holds."""
    path = tmp_path / "stdin"
    path.touch()
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield path.write_bytes


def recording(folder: Path) -> Path:
    path = folder / "talk.wav"
    soundfile.write(path, np.frombuffer(RAW, "<i2"), SAMPLE_RATE, subtype="PCM_16")
    return path


@pytest.mark.parametrize("end", [b"", b"x"])
def test_raw_audio_from_a_pipe(run_cli: RunCLI, model: Model, stdin: Stdin, end: bytes) -> None:
    """What was heard is kept where the source ends badly."""
    stdin(RAW + end)
    run = run_cli("live")
    assert (run.status, run.out) == (int(bool(end)), "one\ntwo -->\nthrée & four\n")
    assert run.err.startswith("slimwhisper: standard input: ") if end else not run.err
    assert sum(model.pieces) == 3 * SAMPLE_RATE


def test_a_file_comes_in_step(run_cli: RunCLI, model: Model, tmp_path: Path) -> None:
    run = run_cli("live", str(recording(tmp_path)), "--update", "2", "--language", "None")
    assert run.status == 0 and run.out.count("\n") == 3
    assert set(model.pieces) == {SAMPLE_RATE // 10}
    assert model.options["update"] == 2.0 and model.options["language"] is None


@pytest.mark.parametrize("piped", [False, True])
def test_a_real_model(run_cli: RunCLI, stdin: Stdin, piped: bool) -> None:
    """A file, and the same through a pipe, with the bundled model."""
    name = "phone-number.wav"
    stdin((SAMPLES / name).read_bytes() if piped else b"")
    source = "-" if piped else str(SAMPLES / name)
    run = run_cli("live", source, "--model", "digits", "--window", "10", "--device", "cpu")
    assert run.status == 0
    assert run.out == "five five five\nzero one four\ntwo seven nine eight\n"


def test_flags_are_the_options() -> None:
    """Names and defaults; those without a flag are what the library has."""
    chosen = flags.live_options(build_parser().parse_args(["live"]))
    assert types.LiveOptions(**chosen) == types.LiveOptions()
    assert tuple(outputs.OUTPUTS) == flags.FORMATS


@pytest.mark.parametrize(
    ("name", "last", "of"),
    [("srt", "Yes -> &.", ("en",)), ("vtt", "Yes --&gt; &amp;.", ("ja", True))],
)
def test_subtitles_are_sentences(tmp_path: Path, name: str, last: str, of: tuple[Any, ...]) -> None:
    """With the time to read each, but not after the end of its utterance. A translation's lines are
    an English text's.
    """
    path, said = tmp_path / f"out.{name}", "Mr. Lee came home, and nobody had seen us. " * 5
    with outputs.open_outputs(name, path) as emit:
        for number, text in enumerate((said, "Yes --> &.")):
            emit(types.SpeechStopped(number, number + 13.0))
            spoken = Segment(0, 0, 13.0 * number, number + 12.6, text, [], 0.0, -0.1, 1.0, 0.0)
            emit(types.UtteranceEnded(number, (spoken,), text, *of))
    rows = [block.split("\n") for block in path.read_text().strip().split("\n\n")]
    cues = [row[1:] for row in rows] if name == "srt" else rows[1:]
    assert rows[-1][0] == "6" if name == "srt" else rows[0] == ["WEBVTT"]
    assert [" ".join(text) for _, *text in cues] == [said[:42]] * 5 + [last]
    assert [re.split(r"\D", time)[-2:] for time, *_ in cues[4:]] == [["12", "600"], ["13", "840"]]


@pytest.mark.parametrize("terminal", [False, True])
def test_speakers_are_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, terminal: bool
) -> None:
    path = tmp_path / "out"
    monkeypatch.setattr(outputs, "is_screen", lambda _: terminal)
    with outputs.open_outputs("text", path, diarize=True) as emit:
        for number, text in enumerate([" one", " two", ""]):
            emit(types.TextUpdate(number, text, ""))
            emit(types.UtteranceEnded(number, (segment(0, text),), text.strip(), "en"))
        emit(types.SpeakersNamed(((0, 0, "Zoë"), (1, 0, "Bo"))))
    assert path.read_text(encoding="utf-8") == "one\ntwo\n\nZoë: one\nBo: two\n"
    assert capsys.readouterr().out.endswith("\nZoë: one\nBo: two\n")


def test_json(run_cli: RunCLI, model: Model, tmp_path: Path) -> None:
    run = run_cli("live", str(recording(tmp_path)), "-f", "json")
    rows = [json.loads(line) for line in run.out.splitlines()]
    assert [row["event"] for row in rows[1:4]] == ["text", "speech_stopped", "ended"]
    assert rows[0] == {"event": "speech_started", "utterance": 0, "start": 0.0}
    assert rows[1]["committed"] == " one" and rows[1]["tentative"] == ""
    assert rows[1]["words"][0]["word"] == " one" and rows[1]["heard"] == 1.0
    assert [row["text"] for row in rows if row["event"] == "ended"] == list(SAID)
    assert rows[3]["segments"][0]["end"] == 0.75


def test_errors(run_cli: RunCLI, model: Model, stdin: Stdin, tmp_path: Path) -> None:
    yesterdays = tmp_path / "text"
    yesterdays.write_text("kept")
    for given, words, status, message in (
        (b"", ("--rate", "12"), 2, "--rate 12: give Hz"),
        (b"", (), 1, "standard input: is empty"),
        (RAW, ("-o", "/dev/full"), 1, "/dev/full: cannot be written"),
        (b"", ("-o", str(yesterdays)), 2, "exists"),
    ):
        stdin(given)
        run = run_cli("live", *words)
        assert run.status == status and message in run.err
        assert len(run.err.splitlines()) == 1
    assert yesterdays.read_text() == "kept"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("threaded", [False, True])
def test_a_signal_ends_the_source(
    run_cli: RunCLI, model: Model, tmp_path: Path, monkeypatch: Any, number: int, threaded: bool
) -> None:
    """What was said until then is written."""

    def interrupt() -> None:
        if sum(model.pieces) >= SAMPLE_RATE and len(model.pieces) < 1000:
            os.kill(os.getpid(), number)
            model.on_piece = lambda: None

    model.on_piece = interrupt
    before = signal.getsignal(number)
    if threaded:  # a microphone that says nothing more
        out, into = os.pipe()
        monkeypatch.setattr(sys, "stdin", os.fdopen(out, "rb"))
        os.write(into, RAW[: 2 * SAMPLE_RATE + 6_400])
    run = run_cli("live", *([] if threaded else [str(recording(tmp_path))]))
    assert (run.status, run.out) == (128 + number, "one\n")
    assert "writing what was said" not in run.out
    assert signal.getsignal(number) == before
    if threaded:
        os.close(into)
        time.sleep(0.05)  # its thread ends
        sys.stdin.close()


def test_an_error_of_the_model_and_a_second_signal(
    run_cli: RunCLI, model: Model, tmp_path: Path
) -> None:
    source = str(recording(tmp_path))
    model.fails = AudioError("too hot")
    assert run_cli("live", source).err == "slimwhisper: too hot\n"
    model.on_piece = lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]
    run = run_cli("live", source)
    assert run.status == 130 and run.err == "slimwhisper: interrupted\n"


# -- what a stream is given ------------------------------------------------------------------------


def test_own_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece comes when it has been said; a reader that is late is not made later."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    times = []
    for piece in paced(iter([np.zeros(SAMPLE_RATE, np.float32)] * 2)):
        assert len(piece) == SAMPLE_RATE // 10
        times.append(now[0])
        if len(times) == 10:
            now[0] += 0.55
    assert times[:10] == pytest.approx(100 + 0.1 * np.arange(1, 11))
    assert times[10:15] == pytest.approx([101.55] * 5)
    assert times[15:] == pytest.approx(100 + 0.1 * np.arange(16, 21))


@pytest.fixture
def slow() -> Mock:
    """A stream that decodes nothing until it is told to."""

    def append(piece: np.ndarray) -> None:
        stream.backlog += len(piece) / SAMPLE_RATE

    stream = Mock(backlog=0.0, **{"append.side_effect": append})
    return stream


def pumped(feed: SourceReader, stream: Mock) -> tuple[list[float], np.ndarray]:
    """How late it was told to be, and what it was given."""
    late: list[float] = []
    feed.pump(stream, 1.0, late.append)
    stream.finish.assert_called_once()
    return late, np.concatenate([call.args[0] for call in stream.append.call_args_list])


def test_a_slow_model_is_reported_once(slow: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A microphone goes on; nothing is lost."""
    now = [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    sound = np.arange(12 * SAMPLE_RATE, dtype=np.float32)

    def source() -> Iterator[np.ndarray]:
        for i in range(120):
            now[0] += 0.1
            yield sound[i * 1600 : (i + 1) * 1600]

    late, given = pumped(SourceReader(source(), True), slow)
    assert len(late) == 1 and 6 < late[0] < 6.2 and np.array_equal(given, sound)


def test_a_fast_pipe_waits_for_the_model(slow: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file through a pipe is decoded in the same steps as from a disk."""
    most = [0.0]

    def sleep(_: float) -> None:
        most[0] = max(most[0], slow.backlog)
        slow.backlog = 0.0

    feed = SourceReader(iter([np.zeros(50 * SAMPLE_RATE, np.float32)]), True)
    assert eventually(lambda: feed._queue.qsize() >= 500)
    monkeypatch.setattr("slimwhisper.commands.live.source_reader.time.sleep", sleep)
    late, given = pumped(feed, slow)
    assert late == [] and len(given) == 50 * SAMPLE_RATE and 1 < most[0] < 1.2


def test_a_stream_that_waits_for_more_is_given_it(slow: Mock, monkeypatch: Any) -> None:
    """An update that is not due yet is not waited for."""
    now = [0.0]
    feed = SourceReader(iter([np.zeros(20 * SAMPLE_RATE, np.float32)]), True)
    assert eventually(lambda: feed._queue.qsize() >= 200)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    assert pumped(feed, slow)[0] == []
    assert slow.backlog == pytest.approx(20) and 0.19 * 190 < now[0] < 0.23 * 190


# -- a terminal ------------------------------------------------------------------------------------


class Terminal:
    """What is on a terminal's screen after codes that rewrite lines."""

    def __init__(self, width: int) -> None:
        self.width, self.lines, self.at = width, [""], 0

    def write(self, text: str) -> int:
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if part == "\n":
                self.at += 1
                self.lines += [""] * (self.at == len(self.lines))
            elif part == "\x1b[2K":
                self.lines[self.at] = ""
            elif re.fullmatch(r"\x1b\[\d+A", part):
                self.at -= int(part[2:-1])
            elif part[0] not in "\r\x1b":
                self.lines[self.at] += part
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True

    encoding = "utf-8"

    def text(self) -> list[str]:
        return [line for line in self.lines if line]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal(20)


def test_the_tail_is_rewritten_in_place(terminal: Terminal) -> None:
    screen: Any = Screen(terminal, width=20)  # type: ignore[arg-type]
    for committed, tail, shown in (
        ("", " won", ["won"]),
        (" one", " tool", ["one tool"]),
        ("", " two three", ["one two three"]),
        (" two three", " four five six", ["one two three four", "five six"]),
        (" four five six seven", "", ["one two three four", "five six seven"]),
    ):
        screen.event(types.TextUpdate(0, committed, tail))
        assert [line.rstrip() for line in terminal.text()] == shown
    screen.event(types.UtteranceEnded(0, (), " one two three four five six seven", "en"))
    screen.event(types.TextUpdate(1, "", " next"))
    assert [line.rstrip() for line in terminal.text()][-1] == "next"
    screen.close()
    assert [line.rstrip() for line in terminal.text()] == ["one two three four", "five six seven"]


@pytest.mark.parametrize("no_color", [False, True])
def test_dim_or_bracket(terminal: Terminal, monkeypatch: Any, no_color: bool) -> None:
    written: list[str] = []
    monkeypatch.setattr(terminal, "write", lambda text: written.append(text) or len(text))
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(terminal, width=20)  # type: ignore[arg-type]
    screen.event(types.TextUpdate(0, " one", " two"))
    everything = "".join(written)
    assert ("\x1b[2m two" in everything) != no_color
    assert ("one [two]" in everything) == no_color
    screen.close()
