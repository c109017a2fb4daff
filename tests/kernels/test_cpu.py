"""Models by the functions in C: the texts of PyTorch's; and where there are none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slimwhisper.kernels.cpu import library as module
from slimwhisper.kernels.cpu.library import NATIVE, Library, library, why_not_compiled
from slimwhisper.model.encoder import Encoder
from slimwhisper.model.model import Model
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.reference import whisper_model
from tests.support.windows import CPU, assert_same, decode, short_model, short_windows

BFLOAT16 = torch.bfloat16
compiled = library()
needs_library = pytest.mark.skipif(compiled is None, reason="kernels/cpu is not compiled here")
needs_bfloat16 = pytest.mark.skipif(library(BFLOAT16) is None, reason="no AVX512-BF16")


@needs_library
@pytest.mark.parametrize(
    ("forms", "how", "kernel", "slots"),
    [
        *((("e", "x"), {}, "latent", slots) for slots in (2, 12)),
        (("e", "x"), {"int8": True}, "latent", 2),
        (("kv", "kv"), {}, "heads", 12),
        pytest.param(("e", "x"), {"dtype": BFLOAT16}, "latent", 2, marks=needs_bfloat16),
        pytest.param(("kv", "kv"), {"dtype": BFLOAT16}, "heads", 2, marks=needs_bfloat16),
    ],
)
def test_a_model_decodes_the_same_without(
    forms: tuple[str, str],
    how: dict[str, Any],
    kernel: str,
    slots: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for what is rounded: in int8, few rows are not, and in bfloat16 the sums are others."""
    requests = short_windows(slots + 3)
    ours = short_model(forms=forms, **how)
    found = decode(ours, requests, slots)
    used = ours.plan.kernels.used
    assert used[kernel, "c"] > 0
    prompts = used["heads", "torch"] if kernel == "heads" else 0  # long ones, in one call each
    assert used[kernel, "torch"] == prompts < used[kernel, "c"] / 10, "whatever the number of rows"
    for name in ("kernels.linear", "kernels.dispatch", "model.layers"):
        monkeypatch.setattr(f"slimwhisper.{name}.library", lambda *_: None)
    theirs: Model = short_model(forms=forms, **how)
    expected = decode(theirs, requests, slots)
    assert theirs.plan.kernels.used[kernel, "c"] == 0
    assert len(found) == len(expected)
    if not how:
        assert_same(found, expected)


def test_turned_off_and_not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh = library.__wrapped__
    monkeypatch.setenv("SLIMWHISPER_KERNELS", "torch")
    assert fresh() is None and "SLIMWHISPER_KERNELS=torch" in why_not_compiled()
    monkeypatch.delenv("SLIMWHISPER_KERNELS")
    assert (fresh() is None) == (compiled is None) == bool(why_not_compiled())
    for name, file, text, reason in (
        ("never", None, "", "no compiled file"),
        ("failed", "native.txt", "gcc failed:\n x.c:1: error: no such builtin", "no such builtin"),
        ("another", "_native.so", "no library", "does not load"),
    ):
        (tmp_path / name).mkdir()
        if file is not None:
            (tmp_path / name / file).write_text(text)
        monkeypatch.setattr(module, "NATIVE", tmp_path / name / "_native.so")
        assert fresh() is None and reason in why_not_compiled()


@needs_bfloat16
def test_an_older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the library of float32 alone."""
    load = module.ctypes.CDLL

    def older(path: str) -> SimpleNamespace:
        known = load(path)
        every = module._SIGNATURES | module._FLOATS | module._ENCODER_ATTENTION
        wide = (every | module._X86).keys() - {*module.NARROW, *module._INTEGERS}
        names = *(f"{name}_wide" for name in wide), "encoder_rows"
        names += *module.NARROW, *module._INTEGERS
        return SimpleNamespace(
            usable=lambda: 2, version=known.version, **{n: getattr(known, n) for n in names}
        )

    monkeypatch.setattr(module.ctypes, "CDLL", older)
    assert Library(NATIVE).dtype == torch.float32
    with pytest.raises(OSError, match="AVX512-BF16"):
        Library(NATIVE, dtype=BFLOAT16)
    assert module._load.__wrapped__(NATIVE, BFLOAT16)[0] is None


@needs_bfloat16
@torch.inference_mode()
def test_an_encoder_keeps_the_rule() -> None:
    """At most twice the error of openai-whisper's in bfloat16, both against float64."""
    dims = tiny_dims(width=128, heads=2, audio_layers=4)
    state = random_state(dims, seed=0)
    mel = torch.randn(2, dims.n_mels, 3000, generator=torch.Generator().manual_seed(0))
    exact = whisper_model(dims, state, torch.float64).encoder(mel.double())
    plain = whisper_model(dims, state).encoder(mel.to(BFLOAT16))
    found = Encoder(state, dims, CPU, BFLOAT16)(mel)
    ours, theirs = ((t.double() - exact).pow(2).mean().sqrt() for t in (found, plain))
    assert ours <= 2 * theirs
