"""Names that come from outside, in messages, and the streams that messages go to."""

import io
import os
import subprocess
import sys
from errno import ENOSPC, EPIPE
from pathlib import Path
from typing import Any

import pytest

from slimwhisper import SlimWhisper
from slimwhisper.cli import main
from slimwhisper.text import parse_size
from tests.support.command import RunCLI
from tests.support.fake_model import fake_model
from tests.support.paths import PHONE, WORDS

__all__ = ["fake_model"]


class Failing(io.StringIO):
    """A standard stream of a full disk, or of a pipe that nobody reads."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


STREAMS = {"closed": None, "full": Failing(ENOSPC), "unread": Failing(EPIPE)}
streams = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)


@streams
@pytest.mark.usefixtures("fake_model")
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_job_needs_no_standard_streams(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Any, name: str
) -> None:
    (tmp_path / "a.wav").write_text(WORDS)
    command = ["transcribe", str(tmp_path / "a.wav"), "-f", "txt", "-o"]
    monkeypatch.setattr(sys, name, stream)
    for number, flags in enumerate(([], ["--log_json", "True"])):
        out = tmp_path / str(number)
        assert main([*command, str(out), *flags]) == 0
        assert (out / "a.txt").read_text() == f"{WORDS}\n"
    assert main(["transcribe", str(tmp_path / "gone.wav"), "-o", str(tmp_path)]) == 1


@streams
def test_nor_does_the_library(
    digits: SlimWhisper, monkeypatch: pytest.MonkeyPatch, stream: Any
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    assert digits.transcribe(PHONE, verbose=True)["text"].split() == WORDS.split()


@streams
@pytest.mark.parametrize("command", [("report",), ("--version",), ()])
def test_commands_that_only_print(
    monkeypatch: pytest.MonkeyPatch, run_cli: RunCLI, stream: Any, command: tuple[str, ...]
) -> None:
    """Those that cannot have failed; in one line, but for a reader that has enough."""
    monkeypatch.setattr(sys, "stdout", stream)
    ran = run_cli(*command)
    assert ran.status == (stream is not None and command == ("report",))
    full = ran.status and stream.number == ENOSPC
    assert ran.err.count("\n") == full and ("cannot be written (No space left" in ran.err) == full


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", "2>/dev/full | head -c 1"])
def test_streams_of_a_process(tmp_path: Path, redirection: str) -> None:
    """The descriptors of closed ones are not those of other files."""
    command = f"'{sys.executable}' -m slimwhisper transcribe '{PHONE}' --model digits -o out"
    shell = ["bash", "-o", "pipefail", "-c", f"{command} --journal True -f txt {redirection}"]
    ran = subprocess.run(shell, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert ran.returncode == 0 and "rror" not in ran.stderr
    assert (tmp_path / "out" / "phone-number.txt").read_text().split() == WORDS.split()
    journal = (tmp_path / "out" / "slimwhisper-journal.jsonl").read_text()
    assert journal.count("\n") == 1 and journal.startswith('{"path"')


@pytest.mark.parametrize("arguments", ["a.wav --x{}", "a.wav --task {}", "{}.wav"])
def test_what_could_mislead_a_terminal_is_escaped(arguments: str, run_cli: RunCLI) -> None:
    odd = "夢\x1b[31m\x07\r\n\u2028\x85\u202e\udcff"
    ran = run_cli("transcribe", *(word.format(odd) for word in arguments.split()))
    assert ran.status != 0 and r"夢\x1b[31m\x07\r\n\u2028\x85\u202e\udcff" in ran.err
    assert not set(odd[1:]) - {*"[31m\n"} & set(ran.out + ran.err)


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "6 gigabytes", "6GiB", "1e9"])
def test_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="such as 512MB or 6GB"):
        parse_size(text)
    assert [parse_size(each) for each in ("1.5 MB", "77", "2TB")] == [1_500_000, 77, 2 * 10**12]
