"""The command with channels: a file for each format, with the names; mono recordings fail alone."""

import json
from pathlib import Path

import soundfile

from tests.support.calls import call
from tests.support.command import RunCLI


def test_the_command(run_cli: RunCLI, tmp_path: Path) -> None:
    talk, out = call(), tmp_path / "out"
    soundfile.write(tmp_path / "call.wav", talk.audio.T, 16_000)
    soundfile.write(tmp_path / "mono.wav", talk.audio[0], 16_000)
    names = ("--channels", "split", "--channel_names", "agent,customer")
    flags = ("--model", "digits", "-o", str(out), "--beam_size", "None", *names)
    run = run_cli("transcribe", str(tmp_path / "call.wav"), *flags)
    assert run.status == 0, run.err
    assert "] agent: " in run.out and "] customer: " in run.out
    texts = [" ".join(word for _, word in talk.words[i : i + 3]) for i in range(0, 18, 3)]
    speakers = ("agent", "customer") * 3
    lines = [f"{name}: {text}" for name, text in zip(speakers, texts, strict=True)]
    assert (out / "call.txt").read_text().splitlines() == lines
    assert [line for line in (out / "call.srt").read_text().splitlines() if ": " in line] == lines
    assert (out / "call.vtt").read_text().count("<v agent>") == 3
    assert len((out / "call.rttm").read_text().splitlines()) == 6
    result = json.loads((out / "call.json").read_text())
    assert [s["speaker"] for s in result["segments"] if s["text"]] == list(speakers)
    (out / "call.txt").unlink()
    folder = run_cli("transcribe", str(tmp_path), *flags)
    assert folder.status == 1
    assert folder.err.count("mono.wav: has one channel, so there are none to split") == 1
    assert (out / "call.txt").read_text().splitlines() == lines
    assert not (out / "mono.txt").exists()
