"""The command line end to end: outputs, exit status, and a line for every kind of bad input."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import shtab
import soundfile
import torch

import slimwhisper
from slimwhisper.cli import COMMANDS, build_parser
from slimwhisper.outputs import formats_of
from tests.support.command import Run, RunCLI
from tests.support.paths import ROOT
from tests.support.refusals import TABLES
from tests.support.sounds import noise_bursts

# greedy, short, and no fallback: random weights fail every threshold
QUICK = (
    *("--beam_size", "None", "--temperature_increment_on_fallback", "None"),
    *("--sample_len", "30"),
)
LIBRARY = {"temperature": 0.0, "best_of": 5, "sample_len": 30}  # the same for the library


@pytest.fixture
def model(random_paths: dict[str, Path]) -> str:
    return str(random_paths["english"])


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "speech.wav"
    path.parent.mkdir()
    soundfile.write(path, noise_bursts(6, seed=0), 16_000, subtype="PCM_16")
    return path


Transcribe = Callable[..., Run]


@pytest.fixture
def transcribe(run_cli: RunCLI, model: str, tmp_path: Path) -> Transcribe:
    """Runs the command, quickly; what it writes is in `tmp_path / "out"`."""
    out = str(tmp_path / "out")
    return lambda *words: run_cli(
        "transcribe", "--model", model, "-o", out, *QUICK, *map(str, words)
    )


def test_transcribe_writes_what_the_library_says(
    transcribe: Transcribe, model: str, recording: Path, tmp_path: Path
) -> None:
    chosen = {"suppress_tokens": "300", "initial_prompt": "so"}
    out, run = tmp_path / "out", transcribe(recording, *(f"--{k}={v}" for k, v in chosen.items()))
    assert run.status == 0
    assert sorted(p.name for p in out.iterdir()) == sorted(f"speech.{f}" for f in formats_of("all"))
    written = json.loads((out / "speech.json").read_text())
    alone = slimwhisper.load_model(model, "cpu").transcribe(recording, **LIBRARY | chosen)
    assert written == json.loads(json.dumps(alone))
    assert run.out.count(" --> ") == len(alone["segments"]) > 0
    assert "1 of 1 file transcribed, 0 failed" in run.err
    assert "cache (e+x)" in run.err


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A folder of files that cannot be transcribed, and a good one."""
    folder = tmp_path / "bad"
    (folder / "dir.safetensors").mkdir(parents=True)
    good = folder / "good.wav"
    soundfile.write(good, np.zeros(16_000, np.float32), 16_000, subtype="PCM_16")
    whole = good.read_bytes()
    (folder / "cut.wav").write_bytes(whole[: len(whole) // 2 + 1])  # within a sample
    (folder / "empty.wav").touch()
    (folder / "text.mp3").write_text("these are words")
    torch.save({"weights": torch.zeros(2)}, folder / "foreign.pt")
    return folder


@pytest.mark.parametrize(("words", "says"), TABLES["command"])
def test_bad_input_is_one_line(
    run_cli: RunCLI, model: str, bad: Path, tmp_path: Path, words: str, says: str
) -> None:
    out = tmp_path / "out"
    arguments = words.replace("GOOD", "BAD/good.wav").replace("BAD", str(bad)).split()
    if arguments[0] == "transcribe":
        arguments += [] if "--model" in arguments else ["--model", model]
        arguments += [] if "-o" in arguments else ["-o", str(out)]
    run = run_cli(*arguments)
    assert run.status != 0
    lines = [
        line
        for line in run.err.splitlines()
        if (" transcribed, " not in line and "cache" not in line) or says in line
    ]
    assert len(lines) == 1, run.err
    assert says in lines[0]
    assert lines[0].startswith("slimwhisper")
    assert not out.exists() or not list(out.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistyped_flag_or_command_gets_a_suggestion(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Every flag of every command, without one of its letters; each has its help."""
    parser = build_parser()
    (commands,) = [a.choices for a in parser._actions if isinstance(a.choices, dict)]
    words = [(f"{command[:2]}{command[3:]}", command)]
    for action in commands[command]._actions:
        assert action.help and "[None]" not in action.help % {"default": action.default}
    for flag in commands[command]._option_string_actions:
        if len(flag) > 6:
            words.append((f"{command} {flag[:4]}{flag[5:]} x", flag))
    for line, meant in words:
        with pytest.raises(SystemExit, match="2"):
            parser.parse_args(line.split())
        assert f"did you mean {meant}?" in capsys.readouterr().err, line


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_a_screen(run_cli: RunCLI, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Of all commands, or of the flags that most people need; "all" has all flags."""
    monkeypatch.setenv("COLUMNS", "80")
    short, long = (run_cli(*command.split(), "--help", *more) for more in ((), ("all",)))
    assert short.status == long.status == 0 and not short.err + long.err
    assert short.out.startswith(f"usage: slimwhisper {command}"), short.out
    assert len(short.out.splitlines()) <= 44
    (commands,) = [a.choices for a in build_parser()._actions if isinstance(a.choices, dict)]
    for flag in commands[command]._option_string_actions if command else commands:
        assert flag in long.out


def test_without_a_command_is_help(run_cli: RunCLI) -> None:
    run = run_cli()
    assert (run.status, run.out, run.err) == (0, run_cli("--help").out, "")


def test_completion_by_shtab() -> None:
    """Of commands, flags, choices and files; README of shtab: a function of bash."""
    script = shtab.complete(build_parser(), "bash")
    for words, expected in (
        ("slimwhisper transcribe --word_tim", "--word_timestamps --word_times"),
        ("slimwhisper transcribe a.wav --task transl", "translate"),
        ("slimwhisper transcribe samples/pho", "samples/phone-number.wav"),
    ):
        ask = f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}\n_shtab_slimwhisper"
        ask += " slimwhisper ${COMP_WORDS[-1]} ${COMP_WORDS[-2]}; echo ${COMPREPLY[*]}"
        found = subprocess.check_output(["bash", "-c", f"{script}\n{ask}"], cwd=ROOT, text=True)
        assert found.split() == expected.split()
