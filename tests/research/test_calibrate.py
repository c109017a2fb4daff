"""`calibrate` with the bundled model and a form whose loss is known, and its search alone."""

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from safetensors.torch import load_file

import slimwhisper
from slimwhisper.cache.forms import Form, all_forms
from slimwhisper.errors import OptionError
from slimwhisper.research import calibrate as command
from slimwhisper.research.cache_file import read_header
from slimwhisper.research.calibrate import CacheSearch, percentage
from slimwhisper.research.pairs import FormPair, MeasuredCache
from tests.research.test_tradeoff import ROW
from tests.support.checkpoints import tiny_dims
from tests.support.command import Run, RunCLI
from tests.support.paths import SAMPLES

SPOKEN = SAMPLES / "door-code.mp3"  # until 3.26 s, frame 163


@pytest.fixture(autouse=True)
def table(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its ladder."""
    for name, form in all_forms().items():
        if name != first:
            monkeypatch.setattr(form, "ladder", Form.ladder)


def use_ladders(monkeypatch: pytest.MonkeyPatch, **specs: list[list[str]]) -> None:
    """In place of the forms' own, for "cross" and "self"."""
    monkeypatch.setattr(command, "ladders", lambda part, dims: specs.get(part, []))


def calibrate(run_cli: RunCLI, audio: Path, out: Path, target: str = "0%", *more: str) -> Run:
    flags = ("-o", str(out), "--target_loss", target, "--windows", "1", *more)
    return run_cli("calibrate", "digits", str(audio), *flags)


def test_from_recordings_to_a_model(tmp_path: Path, run_cli: RunCLI) -> None:
    """It chooses the last rung that loses nothing; the file decodes the same; tradeoff takes it."""
    audio, out = tmp_path / "audio", tmp_path / "new" / "small.safetensors"
    audio.mkdir()
    shutil.copy(SPOKEN, audio)
    (audio / "door-code.txt").write_text("Four zero seven... NINE\n")
    run = calibrate(run_cli, audio, out)
    assert run.status == 0, run.err
    header = read_header(out)
    assert (header.cross, header.self_) == ("first:frames=200", "x")
    assert {name.rpartition(".")[2] for name in load_file(out)} == {"rotation"}
    assert header.measured["loss_percent"] == 0 and header.measured["target_loss_percent"] == 0
    assert "first:frames=200+x" in run.out and "times smaller than slim" in run.out
    assert "word errors against references: 25.00 %, exact 25.00 %" in run.out
    assert "first:frames=60+x" in run.err  # was tried
    assert "warning: the recordings have only 4 words" in run.err
    assert "first:frames=900+x" not in run.err
    assert [p.name for p in out.parent.iterdir()] == [out.name]

    model = slimwhisper.load_model("digits", "cpu", cache=out)
    assert model.forms == ("first:frames=200", "x")
    said = model.transcribe(SPOKEN, language="en", temperature=0)["text"]
    assert said.split() == "four zero seven seven".split()
    kept = header.measured["kept_cross"] + header.measured["kept_self"]
    assert model.bytes_per_window() == kept

    specs = ("--specs", str(out), "--windows", "1")
    run = run_cli("tradeoff", "digits", str(SPOKEN), *specs)
    assert run.status == 0 and "against references" not in run.out
    (row,) = [line for line in run.out.splitlines() if "of small.safetensors" in line]
    assert " 0.00 % " in row and "0 of 1" in row


@pytest.mark.parametrize(
    ("speech", "reason"), [(True, "within a loss of 1 %"), (False, "no words")]
)
def test_no_file(
    speech: bool, reason: str, tmp_path: Path, run_cli: RunCLI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is within the target, and where there is nothing to measure on."""
    use_ladders(monkeypatch, cross=[["first:frames=60"]])
    silence = tmp_path / "silence.wav"
    soundfile.write(silence, np.zeros(16_000), 16_000)
    run = calibrate(run_cli, SPOKEN if speech else silence, tmp_path / "a.safetensors", "1%")
    assert run.status == 1 and reason in run.err
    assert not (tmp_path / "a.safetensors").exists()


def test_percentages() -> None:
    assert [percentage(text) for text in ("0%", " 0.5 %", "100%", "12.25%")] == [0, 0.5, 100, 12.25]
    for text in ("", "%", "1", "-1%", "100.1%", "nan%", "1e1%", "٣%", "0.5%%"):
        with pytest.raises(OptionError, match="is not a percentage"):
            percentage(text)


class FakeComparison:
    """Losses and sizes by formula: a part with less kept loses more, and losses add up."""

    class checkpoint:
        dims = tiny_dims()

    def __init__(self, interaction: float) -> None:
        self.interaction = interaction
        self.asked: list[FormPair] = []

    def sizes(self, pair: FormPair) -> tuple[int, int]:
        if "frames=13" in pair.cross:
            raise ValueError("frames=13: this model cannot")
        return self.of(pair.cross), self.of(pair.self_)

    @staticmethod
    def of(spec: str) -> int:
        return 1500 if spec in ("e", "x") else int(spec.partition("=")[2])

    def measure(self, pair: FormPair) -> MeasuredCache:
        self.asked.append(pair)
        sizes = self.sizes(pair)
        lost = 3000 - sum(sizes) + self.interaction * (1500 - max(sizes))
        row = replace(ROW, cross=pair.cross, self_=pair.self_, reference_words=0, words=100_000)
        return replace(row, kept_cross=sizes[0], kept_self=sizes[1], word_edits=round(lost))


@pytest.mark.parametrize("interaction", [0.0, 2.5])
@pytest.mark.parametrize("target", [0.0, 0.3, 0.7, 1.5, 2.3, 100.0])
def test_search(target: float, interaction: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest of all pairs within the target, though only some are measured."""
    frames = (1600, 1400, 1200, 1000, 800, 13, 600, 400, 200, 100)
    specs = [f"first:frames={n}" for n in frames]
    use_ladders(monkeypatch, cross=[specs], self=[specs[1:5]])
    fake: Any = FakeComparison(interaction)
    said: list[str] = []
    found = CacheSearch(fake, target, said.append).run()
    assert not any("have only" in line for line in said)
    specs = [f"first:frames={n}" for n in frames if n not in (13, 1600)]
    every = [fake.measure(FormPair(c, s)) for c, s in product(["e", *specs], ["x", *specs[:4]])]
    good = [m for m in every if m.loss <= target]
    smallest = min(good, key=lambda m: m.kept)
    if smallest.kept == 3000:
        assert found is None
    else:
        assert found is not None and found.loss <= target and found.kept == smallest.kept
    asked = fake.asked[: -len(every)]
    assert len(asked) == len(set(asked))
    assert any("frames=13: this model cannot" in line for line in said)
