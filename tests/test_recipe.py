"""The recipes of `digits` and of short windows: a few steps of each, stopped and resumed."""

import argparse
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
from slimwhisper.formats.load import load_checkpoint
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


def test_answers_with_times() -> None:
    """A pause ends a segment."""
    words = [SpokenDigit(0, 1.0, 1.4), SpokenDigit(1, 1.5, 1.93), SpokenDigit(9, 6.0, 6.44)]
    times = [TIME + round(seconds * 50) for seconds in (1.0, 1.9, 6.0, 6.4)]
    tokens, spans = answer(words, length=30)
    assert tokens == [times[0], 0, 1, times[1], times[2], 9, times[3], END]
    assert len(spans) == len(tokens) and spans[1] == (1.0, 1.4)
    assert answer(words, 30, times=False)[0] == [0, 1, 9, END]


def test_windows(bank: Bank) -> None:
    """What is said was heard, where the answer says; the same seed makes the same window."""
    composer, kinds = Composer(bank), set()
    for seed in range(12):
        rng, again = np.random.default_rng(seed), np.random.default_rng(seed)
        window = composer.window(rng, 6)
        assert torch.equal(window.mel, composer.window(again, 6).mel)
        reply = composer.reply(rng, window)
        assert len(reply.tokens) == len(reply.targets) == len(reply.spans) <= 448
        start = reply.tokens.index(SOT)
        answered = start + (reply.tokens[start + 1 :][:1] == [NO_TIMES])
        heard = set(window.labels[0].tolist()) - {10}
        assert {t for t in reply.targets[answered:] if t < END} <= heard
        assert heard or reply.targets[start] == NO_SPEECH
        assert set(reply.targets[:start]) <= {IGNORED} and reply.targets[-1] == END
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
    mel, rows = torch.randn(1, 80, 3000), [SOT, TIME + 50, 3, 4]
    with torch.no_grad():
        audio = student.encode(mel, torch.zeros(1, dtype=torch.long))
        ours = student.decode(torch.tensor([rows]), audio)[0]
        ids = torch.tensor([[TOKEN_IDS[row] for row in rows]])
        theirs = model.decoder(ids, model.encoder(mel))[0]
    assert (ours[:, :-1] - theirs[:, list(TOKEN_IDS)]).abs().max() < 0.05  # the file is float16


@pytest.mark.slow
def test_a_stopped_run_goes_on_as_if_it_had_not(
    bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the encoder's half, and then in the decoder's."""
    monkeypatch.setattr(train, "WINDOWS", {6: 2, 12: 1, 30: 1})
    monkeypatch.setattr(train, "REPLIES", 3)
    monkeypatch.setattr(train, "SHAPE", (64, (1, 2)))
    monkeypatch.setattr(training, "KEEP_EVERY", 2)
    torch.save(bank._asdict(), tmp_path / "words.pt")
    asked = argparse.Namespace(fsdd=tmp_path, folder=tmp_path, hearing=4, saying=4, rate=4e-3)
    asked.seed = 0

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


@pytest.mark.slow
def test_short_windows_are_learned(bank: Bank, digits_path: Path, tmp_path: Path) -> None:
    """The states come closer to whisper's of whole windows; a stopped run goes on; the file that
    is written says that windows may be short.
    """
    example = short_windows.digits_batch(Composer(bank), np.random.default_rng(1))
    assert 100 <= example["short"].shape[2] <= 3000 and example["mel"].shape[1:] == (80, 3000)
    ours = slimwhisper.load_model(digits_path, audio_window="full", device="cpu")
    recordings, rng = [SAMPLES / "phone-number.wav"], np.random.default_rng(0)
    said = short_windows.model_batch(ours, recordings, rng)
    assert (said["tokens"][:, 0] == TOKEN_IDS[SOT]).all()
    assert not said["mel"][..., said["short"].shape[2] :].any()

    teacher, state = whisper.load_model(str(digits_path), "cpu"), tmp_path / "short.state"
    mel = torch.zeros(2, 80, 3000)
    mel[..., :200] = torch.randn(2, 80, 200).mul(0.2)
    batch = short_windows.batch_of(list(mel), 2, [[50257, 530, 734], [50257]])
    assert batch["counted"].tolist() == [[True] * 3, [True, False, False]]
    with torch.no_grad():
        audio = teacher.encoder(mel)
        torch.testing.assert_close(encode(teacher.encoder, mel), audio)
        states = short_windows.states_of(teacher, batch["tokens"], audio)
        logits = states @ teacher.decoder.token_embedding.weight.T
        torch.testing.assert_close(logits, teacher.decoder(batch["tokens"], audio))
    steps = list[int]()

    def make(step: int) -> short_windows.Batch:
        steps.append(step)
        return batch

    short_windows.learn(teacher, make, 2, 4e-3, state)
    student = short_windows.learn(teacher, make, 5, 4e-3, state)
    assert steps == list(range(5))
    with torch.no_grad():
        before, after = (short_windows.losses(m, teacher, batch) for m in (teacher, student))
    assert after["text"] < 0.9 * before["text"], (before, after)
    short_windows.write(short_windows.blend(student, teacher, 0.5), tmp_path / "short.pt")
    assert load_checkpoint(tmp_path / "short.pt").settings.audio_window == "auto"
    assert whisper.load_model(tmp_path / "short.pt").dims == teacher.dims
