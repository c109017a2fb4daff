"""The recipe of `digits`: windows and their answers, the exported file, and a run that resumes."""

import argparse
import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import whisper

import slimwhisper
from recipes import training
from recipes.audio_window import train as short_windows
from recipes.digits import train
from recipes.digits.model import Student, dimensions, encode
from recipes.digits.sequences import (
    END,
    IGNORED,
    NO_SPEECH,
    NO_TIMES,
    SOT,
    TIME,
    TOKEN_IDS,
    Composer,
    SpokenDigit,
    answer,
)
from recipes.digits.voices import RATE, Bank, to_int16
from slimwhisper.checkpoint.load import load_checkpoint
from tests.support.spoken import SAMPLES


@pytest.fixture(scope="module")
def bank() -> Bank:
    """Two "speakers" and a synthetic voice; each digit is a tone of its own."""
    time = np.arange(RATE // 4) / RATE
    words = [np.sin(2 * np.pi * (300 + 150 * i) * time).astype(np.float32) for i in range(30)]
    return Bank(
        samples=torch.from_numpy(np.concatenate([to_int16(word) for word in words])),
        starts=torch.arange(31) * (RATE // 4),
        digits=torch.arange(30) % 10,
        voices=torch.arange(30) // 10,
        names=["fsdd:a", "fsdd:b", "flite:c"],
    )


def at(seconds: float) -> int:
    return TIME + round(seconds * 50)


def test_answers_with_times() -> None:
    """A pause ends a segment, or six seconds do; a word that the window's end cuts has a start."""
    words = [SpokenDigit(0, 1.0, 1.4), SpokenDigit(1, 1.5, 1.93), SpokenDigit(9, 6.0, 6.44)]
    tokens, spans = answer(words, length=30)
    assert tokens == [at(1.0), 0, 1, at(1.9), at(6.0), 9, at(6.4), END]
    assert len(spans) == len(tokens) and spans[1] == (1.0, 1.4)
    assert answer(words, 30, times=False)[0] == [0, 1, 9, END]
    assert answer(words, 30, offset=2.0)[0][0] == at(3.0)
    tokens, _ = answer(
        [SpokenDigit(i % 10, 1 + 0.5 * i, 1.4 + 0.5 * i) for i in range(20)], length=30
    )
    assert tokens[14:16] == [at(7.4), at(7.5)]
    words = [
        SpokenDigit(1, 1.0, 1.5),
        SpokenDigit(2, 9.0, 9.5),
        SpokenDigit(3, 9.6, 10.2),
        SpokenDigit(4, 10.3, 10.6),
    ]
    ends = [at(1.0), 1, at(1.5), at(9.0), 2, at(9.5), at(9.6), END]
    assert answer(words, length=10)[0] == ends
    assert answer(words, length=10, times=False)[0] == [1, 2, 3, END]  # most of it is there


@pytest.mark.parametrize("seconds", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_windows(bank: Bank, seconds: int) -> None:
    composer = Composer(bank)
    kinds = set()
    for seed in range(20):
        rng, again = np.random.default_rng(seed), np.random.default_rng(seed)
        window = composer.window(rng, seconds)
        assert torch.equal(window.mel, composer.window(again, seconds).mel)
        assert window.mel.shape == (80, seconds * 100)
        assert window.mel.isfinite().all()
        assert 0 <= window.offset <= 30 - seconds
        reply = composer.reply(rng, window)
        assert reply == composer.reply(again, window)
        assert len(reply.tokens) == len(reply.targets) == len(reply.spans) <= 448
        start = reply.tokens.index(SOT)
        answered = start + (reply.tokens[start + 1 :][:1] == [NO_TIMES])
        assert reply.targets[:start].count(IGNORED) == start
        heard = set(window.labels[0].tolist()) - {10}
        said = {t for t in reply.targets[answered:] if t < END}
        assert said <= heard  # a cut segment is heard, not said
        if not heard:
            assert reply.targets[start] == NO_SPEECH
        assert reply.targets[-1] == END
        for target, (first, last) in zip(reply.targets, reply.spans, strict=True):
            if 0 <= target < END:
                assert (window.labels[0, first:last] == target).all()
        kinds.add((bool(heard), answered > start, start > 0))
    assert len(kinds) >= 4  # with and without speech, times, prompt


def test_the_exported_file_computes_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    student = Student(dimensions(64, (1, 2))).eval()
    torch.save(student.checkpoint(), tmp_path / "student.pt")
    model = whisper.load_model(str(tmp_path / "student.pt"), device="cpu")
    mel = torch.randn(1, 80, 3000)
    rows = [SOT, TIME + 50, 3, 4]
    with torch.no_grad():
        audio = student.encode(mel, torch.zeros(1, dtype=torch.long))
        ours = student.decode(torch.tensor([rows]), audio)[0]
        ids = torch.tensor([[TOKEN_IDS[row] for row in rows]])
        theirs = model.decoder(ids, model.encoder(mel))[0]
    assert (ours[:, :-1] - theirs[:, list(TOKEN_IDS)]).abs().max() < 0.05  # the file is float16
    unused = theirs.logsumexp(-1), ours.logsumexp(-1)
    assert (unused[0] - unused[1]).abs().max() < 0.02


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "WINDOWS", {6: 2, 12: 1, 30: 1})
    monkeypatch.setattr(train, "REPLIES", 3)
    monkeypatch.setattr(training, "KEEP_EVERY", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("short_steps")
def test_a_stopped_run_goes_on_as_if_it_had_not(
    bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the encoder's half, and then in the decoder's."""
    torch.save(vars(bank), tmp_path / "words.pt")
    asked = argparse.Namespace(fsdd=tmp_path, folder=tmp_path, hearing=4, saying=6, rate=4e-3)
    asked.width, asked.layers, asked.real, asked.seed = 64, (1, 2), 0.6, 0

    def run(name: str) -> dict[str, torch.Tensor]:
        asked.name = name
        train.train(asked)
        saved = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        return saved["model_state_dict"]  # type: ignore[no-any-return]

    for name in ("encoder_batch", "decoder_batch"):
        batch = getattr(train, name)

        def until(*given, batch=batch):  # type: ignore[no-untyped-def]
            if given[-1] == 3:
                raise KeyboardInterrupt
            return batch(*given)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(train, name, until)
            run("stopped")
    resumed, whole = run("stopped"), run("whole")
    for name, tensor in whole.items():
        assert torch.allclose(resumed[name].float(), tensor.float(), atol=2e-3), name
    assert whole["decoder.token_embedding.weight"].count_nonzero() < 1520 * 64


@pytest.mark.parametrize("seconds", [3, 30])
def test_states_of_short_windows(digits_path: Path, seconds: int) -> None:
    """As whisper computes them; a whole window's are the teacher's."""
    model = whisper.load_model(str(digits_path), "cpu")
    mel = torch.zeros(2, 80, 3000)
    mel[..., : seconds * 100] = torch.randn(2, 80, seconds * 100).mul(0.2)
    with torch.no_grad():
        whole = model.encoder(mel)
        torch.testing.assert_close(encode(model.encoder, mel), whole)
        batch = short_windows.batch_of(list(mel), seconds, [[50257, 530, 734], [50257]])
        assert batch["counted"].tolist() == [[True] * 3, [True, False, False]]
        states = short_windows.states_of(model, batch["tokens"], whole)
        logits = states @ model.decoder.token_embedding.weight.T
        torch.testing.assert_close(logits, model.decoder(batch["tokens"], whole))
        found = short_windows.losses(model, model, batch)
    for loss in found.values():
        assert (float(loss) < 1e-8) == (seconds == 30)


@pytest.mark.slow
def test_short_windows_are_learned(
    bank: Bank, digits_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The states come closer, a stopped run goes on, and the file that is written says so."""
    example = short_windows.digits_batch(Composer(bank), np.random.default_rng(1))
    assert 100 <= example["short"].shape[2] <= 3000 and example["mel"].shape[1:] == (80, 3000)
    teacher, state = whisper.load_model(str(digits_path), "cpu"), tmp_path / "short.state"
    short = {name: tensor[:2] for name, tensor in example.items()}
    short["short"] = short["mel"][..., :200]
    steps = list[int]()

    def make(step: int) -> short_windows.Batch:
        steps.append(step)
        return short

    short_windows.learn(teacher, make, 2, 4e-3, state)
    student = short_windows.learn(teacher, make, 5, 4e-3, state)
    assert steps == list(range(5)) and "5/5" in capsys.readouterr().out
    student = short_windows.learn(teacher, make, 6, 4e-3, state, workers=1)
    assert "6/6" in capsys.readouterr().out and len(steps) == 5, "made in another process"
    with torch.no_grad():
        before, after = (short_windows.losses(m, teacher, short) for m in (teacher, student))
    assert after["text"] < 0.9 * before["text"], (before, after)
    half = short_windows.blend(copy.deepcopy(student), teacher, 0.5).encoder.ln_post.weight
    expected = (student.encoder.ln_post.weight + teacher.encoder.ln_post.weight) / 2
    torch.testing.assert_close(half, expected)
    short_windows.write(student, tmp_path / "short.pt")
    assert load_checkpoint(tmp_path / "short.pt").settings.audio_window == "auto"
    assert whisper.load_model(tmp_path / "short.pt").dims == teacher.dims


def test_the_models_own_texts(digits_path: Path) -> None:
    model = slimwhisper.load_model(digits_path, audio_window="full", device="cpu")
    for seed in range(2):
        recordings, rng = [SAMPLES / "phone-number.wav"], np.random.default_rng(seed)
        batch = short_windows.model_batch(model, recordings, rng)
        mel, tokens = batch["mel"], batch["tokens"]
        assert tokens.shape == batch["counted"].shape and len(tokens) == len(mel)
        assert (tokens[:, 0] == TOKEN_IDS[SOT]).all()
        assert not mel[..., batch["short"].shape[2] :].any()
