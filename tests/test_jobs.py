"""Folder jobs from the command line to the journal, on a model that is none."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import Run
from fake_model import FakeModel, fake_model

from slimwhisper import jobs
from slimwhisper.journal import NAME
from slimwhisper.writers import FORMATS

__all__ = ["fake_model"]

pytestmark = pytest.mark.usefixtures("fake_model")


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three good recordings and a bad one."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "a.wav": "one",
        "b/a.wav": "two",
        "b/a.mp3": "three",
        "c/x.wav": "bad",
    }.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "in"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> Run:
        return Run(capsys, "transcribe", "-o", "out", "-f", "txt", *arguments)

    return call


def written() -> dict[str, str]:
    return {str(p.relative_to("out")): p.read_text() for p in Path("out").rglob("*.*t")}


def journal() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path("out") / NAME).read_text().splitlines()]


def statuses() -> dict[str, str]:
    lines = journal()
    found = {str(Path(line["path"]).relative_to(Path("in").absolute())): line for line in lines}
    assert len(found) == len(lines)
    return {name: line["status"] for name, line in found.items()}


GOOD = {"a.txt": "one\n", "b/a.wav.txt": "two\n", "b/a.mp3.txt": "three\n"}
DONE = {"a.wav": "done", "b/a.wav": "done", "b/a.mp3": "done", "c/x.wav": "failed"}


def test_a_folder_job_and_again(run: Any, fake_model: FakeModel) -> None:
    first = run("in", "--language", "de")
    assert first.status == 1
    assert written() == GOOD
    assert statuses() == DONE
    assert {line["seconds"] for line in journal()} == {3.0, 5.0, None}
    assert journal()[0]["options"]["language"] == "de"
    assert journal()[0]["options"]["beam_size"] == 5
    assert "task" not in journal()[0]["options"]
    assert first.err.count("in/c/x.wav: damaged") == 1
    assert "3 of 4 files transcribed, 1 failed; 11.0 s of audio" in first.err
    assert f"journal: out/{NAME}" in first.err
    assert "in/b/a.mp3:\n[00:00.000 --> 00:01.500]  three\n" in first.out

    before = {p: p.stat() for p in Path("out").rglob("*.txt")}
    fake_model.taken.clear()
    again = run("in", "--language", "de")
    assert again.status == 1 and fake_model.taken == []
    assert {p: p.stat() for p in Path("out").rglob("*.txt")} == before
    assert "damaged" not in again.err
    assert "3 already done, 1 failed in an earlier run" in again.err
    assert "--retry_failed True tries the failed ones again" in again.err
    assert statuses() == DONE


def test_what_is_done_again(run: Any, fake_model: FakeModel) -> None:
    def taken(*arguments: str) -> list[str]:
        fake_model.taken.clear()
        run("in", *arguments)
        return sorted(str(p.relative_to("in")) for p in fake_model.taken)

    assert len(taken()) == 4
    assert taken("--retry_failed", "True") == ["c/x.wav"]
    Path("out/b/a.mp3.txt").unlink()
    assert taken() == ["b/a.mp3"]
    Path("in/a.wav").write_text("other")
    assert taken() == ["a.wav"]
    assert written()["a.txt"] == "other\n"
    os.utime("in/a.wav", (5, 5))
    assert taken() == ["a.wav"]
    assert len(taken("--overwrite", "True")) == 4
    assert taken() == []
    assert len(taken("--beam_size", "None")) == 4
    assert len(taken("-f", "all")) == 4
    assert taken("-f", "all") == []
    assert taken("--allow_truncated", "True", "--skip_existing", "True") == ["c/x.wav"]


def test_skip_existing_needs_no_journal(run: Any, fake_model: FakeModel) -> None:
    Path("out/b").mkdir(parents=True)
    Path("out/b/a.wav.txt").write_text("by hand")
    Path("out/a.srt").write_text("another format")
    done = run("in", "--skip_existing", "True", "--journal", "False")
    assert done.status == 1
    assert written()["b/a.wav.txt"] == "by hand"
    assert Path("in/b/a.wav") not in fake_model.taken and len(fake_model.taken) == 3
    assert "1 already done" in done.err
    assert not (Path("out") / NAME).exists()
    both = run("in", "--skip_existing", "True", "--overwrite", "True")
    assert both.status == 2 and "exclude each other" in both.err


def test_plain_files_keep_no_journal(run: Any) -> None:
    assert run("in/a.wav", "in/b/a.mp3").status == 0
    assert written() == {"a.txt": "one\n", "a.mp3.txt": "three\n"}
    assert not (Path("out") / NAME).exists()
    assert run("in/a.wav", "--journal", "True").status == 0
    assert statuses() == {"a.wav": "done"}


def test_segments_as_they_come(run: Any) -> None:
    assert run("in/a.wav").out == "[00:00.000 --> 00:01.500]  one\n"
    assert run("in/a.wav", "--verbose", "False").out == ""
    assert run("in/a.wav", "in/b/a.wav").out.startswith("in/a.wav:\n[")


def test_an_output_that_cannot_be_written_is_tried_again(run: Any, fake_model: FakeModel) -> None:
    Path("out/b/a.wav.txt").mkdir(parents=True)
    first = run("in")
    assert first.status == 1
    assert statuses() == DONE | {"b/a.wav": "unwritten"}
    assert "2 of 4 files transcribed, 2 failed" in first.err
    Path("out/b/a.wav.txt").rmdir()
    fake_model.taken.clear()
    assert run("in").status == 1
    assert fake_model.taken == [Path("in/b/a.wav")]
    assert written() == GOOD


def test_lists_globs_and_repeats(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path("list")
    listed.write_bytes(b"in/a.wav\nin/b\nin/a.wav\nin/b/a.wav\nin/gone.wav\nin/a.wav\n")
    with listed.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        done = run("-")
    assert done.status == 1
    assert written() == {f"in/{name}": text for name, text in GOOD.items()}
    assert "in/gone.wav: no such file; check the list" in done.err
    assert len(journal()) == 3
    assert run("in/**/a.*", "-o", "out/glob").status == 0
    assert {n for n in written() if n.startswith("glob")} == {f"glob/{name}" for name in GOOD}


def test_fail_fast(run: Any, fake_model: FakeModel) -> None:
    for number in range(20):
        Path(f"in/c/y{number}.wav").write_text("good")
    done = run("in", "--fail_fast", "True")
    assert done.status == 1
    assert statuses() == DONE
    assert written() == GOOD
    assert len(fake_model.taken) < 10 and fake_model.closed
    assert "3 of 4 files transcribed, 1 failed" in done.err
    rest = run("in")
    assert rest.status == 1
    assert len(statuses()) == 24 and "20 of 20 files" in rest.err
    missing = run("gone.wav", "in/a.wav", "--fail_fast", "True", "-o", "other")
    assert missing.status == 1 and not Path("other").exists()


def test_names_are_on_one_line(run: Any) -> None:
    Path("in/new\nline\x1b[31m.wav").write_text("bad")
    Path(os.fsdecode(b"in/latin-\xe9.wav")).write_text("four")
    done = run("in")
    assert "slimwhisper: in/new\\nline\\x1b[31m.wav: damaged" in done.err
    assert "\x1b" not in done.err
    assert "in/latin-\\udce9.wav:\n" in done.out
    assert written()[os.fsdecode(b"latin-\xe9.txt")] == "four\n"


def test_nothing_to_do(run: Any) -> None:
    Path("empty").mkdir()
    done = run("empty", "gone.wav")
    assert done.status == 1
    assert "0 of 2 files transcribed, 2 failed; 0.0 s" in done.err
    assert not Path("out").exists()


def test_json_lines(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    done = run("in", "--log_json", "True")
    assert (done.status, done.err) == (1, "")
    events = [json.loads(line) for line in done.out.splitlines()]
    kinds = [e["event"] for e in events]
    assert (kinds[0], kinds[-1]) == ("start", "summary")
    assert {"segment", "file", "progress"} < set(kinds)
    assert events[0]["model"] == "fake" and events[0]["cache"] == "e+x"
    files = {e["path"]: e for e in events if e["event"] == "file"}
    assert (
        files["in/a.wav"].items()
        >= {
            "status": "done",
            "seconds": 3.0,
            "error": None,
            "language": "en",
            "outputs": ["out/a.txt"],
        }.items()
    )
    assert files["in/a.wav"]["elapsed"] >= 0
    assert files["in/c/x.wav"]["status"] == "failed"
    assert files["in/c/x.wav"]["error"].startswith("in/c/x.wav: damaged")
    summary = events[-1]
    assert (summary["done"], summary["failed"], summary["status"]) == (3, 1, 1)
    assert summary["audio_seconds"] == 11.0
    quiet = run("in", "gone.wav", "--log_json", "True", "--verbose", "False")
    events = [json.loads(line) for line in quiet.out.splitlines()]
    assert [e["event"] for e in events] == ["error", "summary"]
    assert "gone.wav: no such file" in events[0]["message"]
    assert (events[1]["skipped"], events[1]["failed_earlier"]) == (3, 1)


def test_json_lines_tell_what_is_wrong(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("out").write_text("a file")
    done = run("in", "--log_json", "True")
    assert done.status == 1 and "cannot write there" in done.err
    assert json.loads(done.out)["event"] == "error"
    warned = run("in", "-o", "o", "--log_json", "True", "--word_timestamps", "True",
                 "--max_line_count", "2")  # fmt: skip
    first = json.loads(warned.out.splitlines()[0])
    assert first["event"] == "warning" and "no effect without" in first["message"]


def test_layout_reaches_the_writers(run: Any, fake_model: FakeModel) -> None:
    refused = run("in", "--highlight_words", "True")
    assert refused.status == 2 and "requires --word_timestamps True" in refused.err
    assert fake_model.calls == []
    words = ("--word_timestamps", "True", "--max_words_per_line", "2")
    assert run("in", *words).status == 1
    assert fake_model.calls[0]["word_timestamps"] is True
    assert journal()[0]["options"]["max_words_per_line"] == 2


def test_every_format_is_the_default(fake_model: FakeModel, capsys: Any) -> None:
    assert Run(capsys, "transcribe", "in/a.wav").status == 0
    assert sorted(p.name for p in Path().glob("a.*")) == sorted(f"a.{f}" for f in FORMATS)


def test_handlers_are_put_back(run: Any) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    run("in")
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_parts_of_a_killed_run_are_cleared(run: Any) -> None:
    Path("out/b").mkdir(parents=True)
    part = Path("out/b/.slimwhisper-0123456789ab.part")
    part.write_text("half")
    os.utime(part, (1, 1))
    run("in")
    assert not part.exists()


def test_a_bar_on_a_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.survey.header_seconds", lambda path: 4.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("slimwhisper.console.EVERY", 0.0)
    done = run("in", "--verbose", "False")
    assert done.status == 1
    assert "x real time" in done.err and "3 done, 1 failed" in done.err
    bar = [line for line in done.err.split("\r") if "| 0:0" in line]
    assert bar and any("a.mp3, a.wav" in line for line in bar)


def test_a_survey_that_fails_costs_nothing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> float:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("slimwhisper.survey.header_seconds", broken)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    done = run("in")
    assert done.status == 1 and "RuntimeError" not in done.err
    assert written() == GOOD


CHILD = """
import sys
sys.path.insert(0, {tests!r})
from fake_model import FakeModel, install
from slimwhisper.cli import main

class Slow(FakeModel):
    def transcribe_many(self, sources, **rest):
        for n, result in enumerate(super().transcribe_many(sources, **rest)):
            yield result
            print("finished", n + 1, file=sys.stderr, flush=True)

install(Slow(ahead=4, delay=0.05), lambda target, key, value: target.__setitem__(key, value))
sys.exit(main(sys.argv[1:]))
"""


def start_child(*arguments: str) -> subprocess.Popen[str]:
    """A job in a process of its own, and its first file finished."""
    command = [sys.executable, "-c", CHILD.format(tests=str(Path(__file__).parent))]
    child = subprocess.Popen(
        [*command, "transcribe", *arguments, "-o", "out", "-f", "txt", "--verbose", "False"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("finished 1"):
            return child
    raise AssertionError("the child finished nothing")


def end(child: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = child.communicate(timeout=60)
    assert not list(Path("out").rglob(".slimwhisper-*"))
    return child.returncode, err


@pytest.fixture
def many() -> None:
    for number in range(400):
        Path(f"in/{number}.wav").write_text("good")


@pytest.mark.usefixtures("many")
def test_ctrl_c_finishes_what_is_in_progress() -> None:
    child = start_child("in")
    child.send_signal(signal.SIGINT)
    status, err = end(child)
    assert status == 130
    assert "slimwhisper: finishing " in err and "press Ctrl-C again to stop at once" in err
    assert "stopped; what was done is written; the same command resumes" in err
    lines = journal()
    assert 2 <= len(lines) < 400
    finished = err.count("\nfinished") + 1
    assert len(lines) == finished == len(list(Path("out").rglob("*.txt")))


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(("signals", "expected"), [(["SIGINT", "SIGINT"], 130), (["SIGTERM"], 143)])
def test_stopping_at_once(signals: list[str], expected: int) -> None:
    child = start_child("in")
    for name in signals:
        child.send_signal(signal.Signals[name])
        if name != signals[-1]:
            assert child.stderr is not None
            while "finishing" not in child.stderr.readline():
                pass
    status, err = end(child)
    assert status == expected
    assert "Traceback" not in err
    assert "stopped; what was done is written" in err
    assert {line["status"] for line in journal()} <= {"done", "failed"}
    assert len(journal()) < 400


def test_the_library_has_the_defaults(run: Any, fake_model: FakeModel) -> None:
    run("in/a.wav", "--batch_size", "3")
    (call,) = fake_model.calls
    assert call["batch_size"] == 3
    assert call["temperature"] == pytest.approx((0, 0.2, 0.4, 0.6, 0.8, 1.0))
    assert set(call) == {"batch_size", *jobs.DEFAULTS}
