"""Folder jobs from the command line to the journal and the console, on a fake model."""

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from itertools import repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile

from slimwhisper.files import InputFile
from slimwhisper.jobs.job import STOPPED, survey
from slimwhisper.jobs.journal import JOURNAL_NAME
from slimwhisper.jobs.progress import JobTotals, model_terms, summary_facts, summary_lines
from slimwhisper.jobs.writers import Files
from tests.support.fake_model import FakeModel
from tests.support.kills import journal_lines

GOOD = {"a.txt": "one\n", "b/a.wav.txt": "two\n", "b/a.mp3.txt": "three\n"}
DONE = {"a.wav": "done", "b/a.wav": "done", "b/a.mp3": "done", "c/x.wav": "failed"}


def written() -> dict[str, str]:
    return {str(p.relative_to("out")): p.read_text() for p in Path("out").rglob("*.*t")}


def statuses() -> dict[str, str]:
    lines = journal_lines(Path("out"))
    found = {str(Path(line["path"]).relative_to(Path("in").absolute())): line for line in lines}
    assert len(found) == len(lines)
    return {name: line["status"] for name, line in found.items()}


def test_a_folder_job_and_again(run: Any, fake_model: FakeModel) -> None:
    first = run("in", "--language", "de")
    assert first.status == 1
    assert written() == GOOD
    assert statuses() == DONE
    assert {line["seconds"] for line in journal_lines(Path("out"))} == {3.0, 5.0, None}
    options = journal_lines(Path("out"))[0]["options"]
    assert (options["language"], options["beam_size"]) == ("de", 5) and "task" not in options
    assert first.err.count("in/c/x.wav: damaged") == 1
    assert "3 of 4 files transcribed, 1 failed; 11.0 s of audio" in first.err
    assert f"journal: out/{JOURNAL_NAME}" in first.err
    assert "in/b/a.mp3:\n[00:00.000 --> 00:01.500]  three\n" in first.out

    before = {p: p.stat() for p in Path("out").rglob("*.txt")}
    fake_model.taken.clear()
    again = run("in", "--language", "de")
    assert again.status == 1 and fake_model.taken == []
    assert {p: p.stat() for p in Path("out").rglob("*.txt")} == before
    assert again.err == (
        "Nothing to do: 3 already done, 1 failed in an earlier run.\n"
        "add --retry_failed True to retry files that failed in an earlier run\n"
        f"journal: out/{JOURNAL_NAME}\n"
    )
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
    Path("out/b/a.mp3.txt").write_text("")
    assert taken() == ["b/a.mp3"]
    Path("out/b/a.mp3.txt").write_text("corrected")
    assert taken() == []
    Path("in/a.wav").write_text("")  # silence
    assert taken() == ["a.wav"] and written()["a.txt"] == "" and taken() == []
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


def test_recordings_that_share_an_output(run: Any) -> None:
    """The last one has it."""
    Path("in/c/a.wav").write_text("other")
    for folder, text in (("in/c", "other"), ("in", "one"), ("in/c", "other")):
        run(folder)
        assert written()["a.txt"] == f"{text}\n"
    run("in/c", "-f", "all")
    assert "1 already done" in run("in/c").err, "all has the same text"


def test_skip_existing_needs_no_journal(run: Any, fake_model: FakeModel) -> None:
    Path("out/b").mkdir(parents=True)
    Path("out/b/a.wav.txt").write_text("by hand")
    Path("out/a.srt").write_text("another format")
    done = run("in", "--skip_existing", "True", "--journal", "False")
    assert done.status == 1 and "1 already done" in done.err
    assert written()["b/a.wav.txt"] == "by hand"
    assert Path("in/b/a.wav") not in fake_model.taken and len(fake_model.taken) == 3
    assert not (Path("out") / JOURNAL_NAME).exists()
    both = run("in", "--skip_existing", "True", "--overwrite", "True")
    assert both.status == 2 and "cannot be combined" in both.err


def test_plain_files(run: Any, fake_model: FakeModel) -> None:
    """They have no journal; one alone is printed as it is decoded."""
    assert run("in/a.wav", "in/b/a.mp3").out.startswith("in/a.wav:\n[")
    assert written() == {"a.txt": "one\n", "a.mp3.txt": "three\n"}
    Path("-dash.wav").touch()
    assert "write ./-dash.wav for the file" in run("-dash.wav").err
    assert not (Path("out") / JOURNAL_NAME).exists()
    assert run("in/a.wav", "--journal", "True").out == "[00:00.000 --> 00:01.500]  one\n"
    assert statuses() == {"a.wav": "done"}
    assert run("in/a.wav", "--verbose", "False", "--batch_size", "3").out == ""
    call = fake_model.calls[-1]
    assert call.pop("temperature") == pytest.approx((0, 0.2, 0.4, 0.6, 0.8, 1.0))
    # no processes for plain files; the rest is the model's to say
    assert call == {"batch_size": 3, "loaders": 0, "beam_size": 5, "best_of": 5}


@pytest.mark.parametrize("flags", ["", "--fp16 False"])
def test_a_faster_dtype(run: Any, fake_model: FakeModel, flags: str) -> None:
    """The last line; not for who has chosen a dtype, nor where nothing was done."""
    fake_model.fastest_dtype = "bfloat16"
    line = "1.5 x as fast: --compute_type auto (bfloat16: some 3 of 1,000 words differ)"
    assert (run("in", *flags.split()).err.splitlines()[-1] == line) == (not flags)
    assert "--compute_type" not in run("in", *flags.split()).err
    fake_model.fastest_dtype = "float32"
    assert "--compute_type" not in run("in", "--overwrite", "True").err


def test_outputs_that_cannot_be_written_are_tried_again(run: Any, fake_model: FakeModel) -> None:
    """It is no recording's fault."""
    Path("out/b/a.wav.txt").mkdir(parents=True)
    first = run("in")
    assert first.status == 1 and "2 of 4 files transcribed, 2 failed" in first.err
    assert statuses() == DONE | {"b/a.wav": "unwritten"}
    Path("out/b/a.wav.txt").rmdir()
    fake_model.taken.clear()
    assert run("in").status == 1 and fake_model.taken == [Path("in/b/a.wav")]
    assert written() == GOOD


def test_a_full_disk_ends_the_job(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the old output, and no litter."""
    Path("out").mkdir()
    Path("out/a.txt").write_text("before")
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("slimwhisper.disk.Path.replace", full)
    done = run("in")
    assert done.status == 1 and done.err.count("No space left") == 1 and STOPPED in done.err
    assert re.search(r"out/a.txt: cannot be written \(No space.*free some space", done.err)
    assert statuses() == {"a.wav": "unwritten"} and written() == {"a.txt": "before"}
    assert {path.name for path in Path("out").iterdir()} == {"a.txt", JOURNAL_NAME}


def test_names_of_outputs(run: Any, fake_model: FakeModel) -> None:
    """None replaces its input; names that are too long are told before a recording is read."""
    Path("in.txt").write_text("audio, it says")
    assert "would overwrite the input" in run("in.txt", "-o", ".").err
    assert Path("in.txt").read_text() == "audio, it says"
    named = f"in/b/{251 * 'n'}.wav"
    Path(named).write_text("one")
    assert run(named).status == 0 and len(fake_model.taken) == 2
    assert "256 bytes" in run(named, "-f", "json").err and len(fake_model.taken) == 2


def test_the_output_folder_is_deleted_during_a_job(
    run: Any, fake_model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run does again what was lost."""
    writing, folders = Files.write, ["out"]

    def deleting(files: Files, recording: InputFile, transcript: Any) -> Any:
        if recording.output == "b/a.wav" and folders:
            shutil.rmtree(folders.pop())
        return writing(files, recording, transcript)

    monkeypatch.setattr(Files, "write", deleting)
    Path("in/c/x.wav").unlink()
    first = run("in")
    assert first.status == 1 and first.err.count("was deleted or replaced") == 1
    assert statuses() == {name: "done" for name in DONE if name != "c/x.wav"}
    assert run("in").status == 0 and written() == GOOD


def test_fail_fast(run: Any, fake_model: FakeModel) -> None:
    for number in range(20):
        Path(f"in/c/y{number}.wav").write_text("good")
    done = run("in", "--fail_fast", "True")
    assert done.status == 1 and "3 of 4 files transcribed, 1 failed" in done.err
    assert statuses() == DONE
    assert written() == GOOD
    assert len(fake_model.taken) < 10 and fake_model.closed
    assert "20 of 20 files" in run("in").err and len(statuses()) == 24
    missing = run("gone.wav", "in/a.wav", "--fail_fast", "True", "-o", "other")
    assert missing.status == 1 and not Path("other").exists()


def test_parts_of_a_job(run: Any, fake_model: FakeModel) -> None:
    """Each recording is in one part, whatever else there is; each part has its journal, and all are
    read, by other parts and by the job as a whole.
    """
    for number in range(20):
        Path(f"in/c/y{number}.wav").write_text(f"y {number}")
    part = Path("out/b/.slimwhisper-1.part")  # which another task is writing
    part.parent.mkdir(parents=True)
    part.touch()
    os.utime(part, (time.time() - 60,) * 2)
    by_part: list[set[Path]] = []
    for number in (3, 1, 2):
        fake_model.taken.clear()
        done = run("in", "--shard", f"{number}/3", "-f", "txt")
        assert f"journal: out/slimwhisper-journal-{number}-of-3.jsonl" in done.err
        by_part.append(set(fake_model.taken))
    assert all(by_part) and sum(map(len, by_part)) == len(set.union(*by_part)) == 24
    assert len(written()) == 23 + 1 and part.exists()
    assert sorted(p.name for p in Path("out").glob("*.jsonl")) == [
        f"slimwhisper-journal-{number}-of-3.jsonl" for number in (1, 2, 3)
    ]
    Path("in/a.wav").rename("in/new.wav")
    fake_model.taken.clear()
    for flags in (("--shard", "1/2"), ("--shard", "2/2"), ()):
        run("in", *flags, "-f", "txt")
    assert fake_model.taken == [Path("in/new.wav")]
    for wrong in ("0/3", "4/3", "1", "a/b", "1/0"):
        assert "which are 1/N to N/N" in run("in", "--shard", wrong).err


def test_names_are_on_one_line(run: Any) -> None:
    Path("in/new\nline\x1b[31m.wav").write_text("bad")
    Path(os.fsdecode(b"in/latin-\xe9.wav")).write_text("four")
    done = run("in", "-f", "json")
    assert "slimwhisper: in/new\\nline\\x1b[31m.wav: damaged" in done.err
    assert "\x1b" not in done.err
    assert "in/latin-\\udce9.wav:\n" in done.out
    assert Path(os.fsdecode(b"out/latin-\xe9.json")).exists()
    Path("new\nline").touch()
    unwritable = run("in", "-o", "new\nline/out")
    assert unwritable.err.startswith("slimwhisper: new\\nline/out: cannot be written")


def test_what_a_job_puts_back_and_clears(run: Any) -> None:
    """Handlers of signals, and parts of a killed run."""
    Path("out/b").mkdir(parents=True)
    part, new, other = (
        Path("out/b", n) for n in (".slimwhisper-1.part", ".slimwhisper-2.part", ".x")
    )
    for path, changed in ((part, 1), (new, 4e9), (other, 1)):
        path.write_text("half")
        os.utime(path, (changed, changed))
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    run("in")
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    assert not part.exists() and new.exists() and other.exists()


def test_json_lines(run: Any) -> None:
    done = run("in", "--log_json", "True")
    assert (done.status, done.err) == (1, "")
    events = [json.loads(line) for line in done.out.splitlines()]
    kinds = [e["event"] for e in events]
    assert (kinds[0], kinds[-1]) == ("start", "summary")
    assert {"segment", "file", "progress"} < set(kinds)
    assert events[0]["model"] == "fake" and events[0]["cache"] == "e+x"
    files = {e["path"]: e for e in events if e["event"] == "file"}
    good, bad = files["in/a.wav"], files["in/c/x.wav"]
    assert good.pop("elapsed") >= 0 and list(good.values()) == (
        ["file", "in/a.wav", "done", 3.0, None, "en", ["out/a.txt"]]
    )
    assert bad["status"] == "failed" and bad["error"].startswith("in/c/x.wav: damaged")
    assert {"done": 3, "failed": 1, "status": 1, "audio_seconds": 11.0}.items() < events[-1].items()
    quiet = run("in", "gone.wav", "--log_json", "True", "--verbose", "False")
    error, summary = (json.loads(line) for line in quiet.out.splitlines())
    assert error["event"] == "error" and "gone.wav: no such file" in error["message"]
    assert (summary["skipped"], summary["failed_earlier"]) == (3, 1)


def test_silence(run: Any) -> None:
    for text in (" ", ""):
        Path("in/a.wav").write_text(text)
        assert run("in/a.wav").out == "[no speech]\n"
    assert run("in/a.wav", "in/b/a.wav").out == (
        "in/a.wav:\n[no speech]\nin/b/a.wav:\n[00:00.000 --> 00:01.500]  two\n"
    )


def test_json_lines_tell_what_is_wrong(run: Any) -> None:
    Path("out").write_text("a file")
    done = run("in", "--log_json", "True")
    assert done.status == 1 and "cannot be written" in done.err
    assert json.loads(done.out)["event"] == "error"
    idle = "--max_line_count 2 --highlight_words True --token_logprobs True --retry_failed True"
    words = f"-o o --log_json True --word_timestamps True --hotwords in/a.wav {idle}".split()
    events = [json.loads(line) for line in run("in/a.wav", *words).out.splitlines()]
    warned = [event["message"] for event in events if event["event"] == "warning"]
    names = "max_line_count highlight_words token_logprobs hot_words? retry_failed".split()
    assert all(name in line for name, line in zip(names, warned, strict=True))
    again = run("in", "-o", "o", "--retry_failed", "True", "--hotwords", "one")
    assert "warning" not in again.err


def test_a_bar_on_a_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transcripts and errors go above it, and it is gone in the end."""
    monkeypatch.setattr("slimwhisper.jobs.job.header_seconds", lambda path: 4.0)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("slimwhisper.jobs.progress.TerminalConsole.interval", 0.0)
    monkeypatch.setenv("COLUMNS", "120")
    done = run("in", "--retry_failed", "True")
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.err).replace("\r", "\n").splitlines()
    bar = [line.strip("━╸╺ ") for line in lines if "━" in line]
    assert done.status == 1 and bar[0] == "0:00 of 0:00+ | 0.0 x real time, ? left | 0 done"
    assert any(re.fullmatch(r"0:.. of 0:16 \| .* left \| 2 done \| .*", line) for line in bar), bar
    assert any(line.endswith("| 0 done | a.wav, a.mp3, +2") for line in bar), bar
    assert lines.index("in/b/a.mp3:") < lines.index(
        "slimwhisper: in/c/x.wav: damaged; copy the file again"
    )
    assert "━" not in "".join(lines[-3:])


# The survey of a job's length, and the summary

FACTS: dict[str, Any] = {"model": "tiny", "device": "cpu", "dtype": "float32", "cache": "e+x"}
FACTS |= {"batch_size": 16, "fallbacks": [], "settings": []}
FACTS |= {"bytes_per_window": 1_000_000, "baseline_bytes_per_window": 8_000_000}


def test_summary() -> None:
    """All lines that may be in it."""
    left_out = {".srt": 7, "hidden": 1} | {f".{n}": n for n in range(1, 10)}
    totals = JobTotals(done=1, skipped=2, failed_earlier=1, segments=412, flagged=3, dropped=2)
    facts = summary_facts(totals, 130, "out/j.jsonl", left_out)
    facts |= {"report": "r.html", "faster": "x"}
    model = FACTS | {"peak_bytes": 5_000_000, "preemptions": 3, "fallbacks": ["fell back"]}
    parts = (
        "1 of 1 file transcribed, 0 failed, 2 already done, 1 failed in an earlier run; 0.0 s of",
        *("3 of 412 segments", "2 segments dropped", ": 9 .9, 8 .8, 7 .7, 6 .6, 5 .5, 4 .4, 3 .3"),
        *("run the same command again", "--retry_failed", "out/j.jsonl", "r.html"),
        *("float32, batch 16; cache (e+x): 1.0 MB per window, 8.0 times", "fell back", "auto (x"),
    )
    for line, part in zip(summary_lines(facts, model), parts, strict=True):
        assert part in line
    notes = model_terms(model, "tiny")["notes"]
    assert all(each in notes for each in ("up to 5.0 MB", "3 times"))


def test_survey(tmp_path: Path) -> None:
    """The lengths that headers say; nothing of what cannot be read."""
    for suffix in ("wav", "flac", "mp3"):
        soundfile.write(tmp_path / f"a.{suffix}", np.zeros(24_000, np.float32), 16_000)
    (tmp_path / "text.wav").write_text("words")
    (tmp_path / "empty.wav").touch()
    os.mkfifo(tmp_path / "pipe.wav")  # it would wait for somebody who writes
    names = ("a.wav", "a.flac", "a.mp3", "text.wav", "empty.wav", "gone.wav", "pipe.wav", ".")
    totals, end = JobTotals(), threading.Event()
    survey(map(tmp_path.joinpath, names), totals, end)
    assert totals.complete and totals.surveyed == pytest.approx(4.5, abs=0.1)
    end.set()
    stopped = JobTotals()
    survey(repeat(tmp_path / "a.wav"), stopped, end)
    assert not stopped.complete
