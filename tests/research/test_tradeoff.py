"""`tradeoff` with the bundled model, two short samples, and a form whose loss is known."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

import slimwhisper
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.cache.forms import PRESETS, Form, all_forms, check_form, names_of
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.research import calibrate as command
from slimwhisper.research import pairs
from slimwhisper.research.cache_file import read_header
from slimwhisper.research.calibrate import CacheSearch, percentage
from slimwhisper.research.comparison import Comparison, find_recordings, words_of
from slimwhisper.research.pairs import FormPair, MeasuredCache
from tests.support.checkpoints import tiny_dims
from tests.support.command import Run, RunCLI
from tests.support.spoken import EXPECTED, SAMPLES
from tests.support.toy_form import SILENT

pytestmark = pytest.mark.usefixtures("first")
SPOKEN = ("door-code.mp3", "flight.m4a")  # 3.3 and 4.5 seconds
ROW = MeasuredCache(
    *("e", "x", 30, 10, 400, 20.0),
    words=200,
    word_edits=1,
    reference_words=100,
    reference_edits=7,
    exact_reference_edits=6,
    recordings=3,
    recordings_changed=1,
    tokens=50,
    token_edits=2,
    logit_error=0.01,
    seconds=1.0,
    audio_seconds=60.0,
    fallbacks=[],
)


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings, one with its text beside it, and one that cannot be read."""
    folder = tmp_path_factory.mktemp("a.safetensors", numbered=False)
    for name in SPOKEN:
        shutil.copy(SAMPLES / name, folder)
    (folder / "door-code.txt").write_text("Four, zero; seven EIGHT!\n")
    (folder / ".hidden").mkdir()
    for name in ("broken.wav", "._broken.wav", ".hidden/a.wav", "code.ts"):
        (folder / name).write_text("no sound")
    return folder


def compare(*audio: Path) -> Comparison:
    found = find_recordings(list(map(str, audio)))
    return Comparison(load_checkpoint("digits"), found, device="cpu", windows=2)


def test_what_is_measured(audio: Path) -> None:
    """Of the recordings that can be read; the logits' error by its definition, with a prompt that
    is read at once.
    """
    compared = compare(audio)
    forms = ("kv", "first:frames=all", "first:frames=60")  # 1.2 s
    kv, whole, lost = rows = [compared.measure(FormPair(spec, "x")) for spec in forms]
    assert [len(each.recordings) for each in (compared, compared.reference)] == [3, 2]
    dims = compared.checkpoint.dims
    texts = [t.text.split() for t in compared.reference.transcripts]
    assert texts == [EXPECTED[name]["text"].split() for name in SPOKEN]
    for row in rows:
        assert (row.words, row.recordings, row.reference_words) == (9, 2, 4)
        assert row.exact_reference_edits == 1
        assert row.kept_self == dims.n_text_ctx * dims.n_text_state * dims.n_text_layer * 4
        assert row.seconds > 0 and row.audio_seconds == pytest.approx(9.4, abs=0.1)
    for row in (kv, whole):
        assert row.word_edits == row.token_edits == row.recordings_changed == row.loss == 0
        assert row.reference_edits == 1 and row.reference_error == 25 and row.logit_error < 1e-4
    assert 4 <= lost.word_edits <= 9 and lost.recordings_changed == 2
    assert lost.loss >= lost.word_error > 20 and lost.token_error > 0 and lost.logit_error > 0.01
    assert lost.kept_cross * 1500 == whole.kept_cross * (60 + SILENT)
    # keys and values: what is kept is read; the latent is read by every layer
    text = whole.kept_self / 2
    assert kv.read == kv.kept_cross + text
    for row in (whole, lost):
        assert row.read == row.kept_cross * dims.n_text_layer + text
    assert lost.kept_baseline == compared.exact.bytes_per_window()
    ours, (different, spread) = compared._model(lost.pair), (0.0, 0.0)
    assert len(compared.windows) == 2
    for window in compared.windows:
        tokens, mel = torch.tensor([window.tokens]), window.mel.unsqueeze(0)
        theirs, found = (m.forward(mel, tokens).double() for m in (compared.exact, ours))
        different += float((found - theirs).var(-1, correction=0).sum())
        spread += float(theirs.var(-1, correction=0).sum())
    assert lost.logit_error == pytest.approx((different / spread) ** 0.5, rel=1e-4)


def test_windows_are_those_of_the_recording(tmp_path: Path) -> None:
    """Of a long recording, several; what a form learns comes from all of them."""
    samples = slimwhisper.load_audio(SAMPLES / "three-minutes.ogg")[: 50 * 16_000]
    soundfile.write(tmp_path / "long.wav", samples, 16_000)
    compared = compare(tmp_path)
    dims, (one, other) = compared.checkpoint.dims, compared.windows
    spectrogram = Spectrogram(ArraySamples(samples), dims.n_mels)
    assert torch.equal(one.mel, spectrogram.window(0, 3000))
    (transcript,) = compared.reference.transcripts
    (_, seek) = dict.fromkeys(s.seek for s in transcript.segments)
    torch.testing.assert_close(other.mel, spectrogram.window(seek, 5000 - seek), atol=1e-3, rtol=0)
    said = [token for window in (one, other) for token in window.tokens[1:]]
    assert said == compared.reference.tokens[0] and len(one.tokens) > 20
    learned_from = compared.activations  # the windows and these texts, not others
    assert len(learned_from.features) == 2 * dims.n_audio_ctx
    tokens = len(one.tokens) + len(other.tokens)
    assert len(learned_from.self_inputs[0]) == len(learned_from.cross_inputs[0]) == tokens


def test_a_table_or_lines(audio: Path, run_cli: RunCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rising bytes, or as they are measured; a pair that the model cannot have is told."""

    def measure(_: Comparison, pair: FormPair) -> MeasuredCache:
        if pair.cross == "e8":
            raise ValueError("not here")
        kept = 300 if pair.cross == "e" else 200
        row = replace(ROW, cross=pair.cross, self_=pair.self_)
        return replace(row, kept_cross=kept, reference_words=0)

    monkeypatch.setattr(Comparison, "measure", measure)
    monkeypatch.setattr(Comparison, "reference", SimpleNamespace(recordings=(None, None)))
    specs = ("--specs", "slim", "slim8", "first:frames=300+x")
    run = run_cli("tradeoff", "digits", str(audio), *specs)
    assert run.status == 1 and "slimwhisper: e8+x8: not here" in run.err
    assert "3 of 3: first:frames=300+x: 210 B, loss 0.50 %" in run.err
    rows = [line.split() for line in run.out.splitlines()[1:4]]
    assert [row[0] for row in rows] == ["caches", "first:frames=300+x", "e+x"]
    assert " 0.50 % " in run.out and "against references" not in run.out
    run = run_cli("tradeoff", "digits", str(audio), *specs, "--json")
    found = [(r["caches"], r["word_edits"]) for r in map(json.loads, run.out.splitlines())]
    assert found == [("e+x", 1), ("first:frames=300+x", 1)]


def test_loss() -> None:
    """Against exact decoding or against references, whichever is more."""
    assert (ROW.kept, ROW.times_smaller, ROW.word_error, ROW.token_error) == (40, 10.0, 0.5, 4.0)
    assert ROW.reference_error == 7.0 and ROW.loss == 1.0
    assert replace(ROW, reference_edits=5).loss == 0.5  # better than exact by luck
    assert replace(ROW, reference_words=0).loss == 0.5


def test_recordings(audio: Path, tmp_path: Path) -> None:
    found = find_recordings([str(audio), str(audio / SPOKEN[0])])
    assert [r.path.name for r in found] == ["broken.wav", *SPOKEN]
    assert [r.reference is None for r in found] == [True, False, True]
    shutil.copy(audio / SPOKEN[0], tmp_path)
    (tmp_path / "door-code.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(AudioError, match="cannot be read as UTF-8 text"):
        find_recordings([str(tmp_path)])
    assert words_of(" Five, FIVE (cough) one-oh!", "en") == ["five", "five", "one", "oh"]
    assert words_of("今日は。", "ja") == ["今", "日", "は"]


@pytest.mark.parametrize(
    "form", [f for f in all_forms().values() if not f.exact], ids=lambda f: f.name
)
def test_every_ladder(form: type[Form]) -> None:
    """Settings of the form, for large models and for small ones."""
    for part in ("cross", "self"):
        names, there = names_of(part, exact=False), part in form.attentions
        for dims in (tiny_dims(), tiny_dims(width=1280, heads=20, text_layers=32)):
            found = list(pairs.ladders(part, dims, form.name))
            assert bool(found) == there
            for specs in found:
                assert specs and len(set(specs)) == len(specs)
                assert all(str(check_form(spec, names)) == spec for spec in specs)


def test_pairs() -> None:
    """Presets, and every rung beside slim's other part."""
    dims, rungs = tiny_dims(), [(f"first:frames={n}", "x", None) for n in (900, 200, 60)]
    assert pairs.ladder_pairs(dims, "first") == rungs
    every = pairs.choose_pairs(None, dims)
    assert [(p.cross, p.self_) for p in every[:5]] == [*PRESETS.values(), ("e8", "x8")]
    assert len(set(every)) == len(every) and set(pairs.ladder_pairs(dims)) <= set(every)
    chosen = pairs.choose_pairs(["slim", "first", "slim", "first:frames=200+x"], dims)
    assert chosen == [("e", "x", None), *rungs]
    with pytest.raises(OptionError):
        pairs.choose_pairs(["nonsense+x"], dims)


# `calibrate` with the bundled model and the same form, and its search alone


DOOR = SAMPLES / "door-code.mp3"  # until 3.26 s, frame 163


@pytest.fixture
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


@pytest.mark.usefixtures("table")
def test_from_recordings_to_a_model(tmp_path: Path, run_cli: RunCLI) -> None:
    """It chooses the last rung that loses nothing; the file decodes the same; tradeoff takes it."""
    audio, out = tmp_path / "audio", tmp_path / "new" / "small.safetensors"
    audio.mkdir()
    shutil.copy(DOOR, audio)
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
    said = model.transcribe(DOOR, language="en", temperature=0)["text"]
    assert said.split() == "four zero seven seven".split()
    kept = header.measured["kept_cross"] + header.measured["kept_self"]
    assert model.bytes_per_window() == kept

    specs = ("--specs", str(out), "--windows", "1")
    run = run_cli("tradeoff", "digits", str(DOOR), *specs)
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
    run = calibrate(run_cli, DOOR if speech else silence, tmp_path / "a.safetensors", "1%")
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
