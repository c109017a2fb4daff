"""A cache form, a checkpoint format and an output format from outside: a row each, and everything
that has names for them runs them. `docs/architecture.md` has the steps.
"""

from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest
import torch

from slimwhisper.cache import forms
from slimwhisper.checkpoint.files import Contents
from slimwhisper.checkpoint.formats import readers
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.errors import CheckpointError
from slimwhisper.outputs import formats
from slimwhisper.outputs.layout import Layout
from slimwhisper.types import Dims, Transcript
from tests.support.checkpoints import assert_equal
from tests.support.command import Run
from tests.support.paths import SAMPLES
from tests.support.toy_form import first_form


@pytest.fixture
def first() -> Iterator[str]:
    with first_form() as name:
        yield name


@pytest.fixture
def shout() -> Iterator[str]:
    def write(transcript: Transcript, file: TextIO, layout: Layout) -> None:
        file.write(transcript.text.strip().upper() + "\n")

    formats.register(formats.OutputFormat("shout", "text/x-shout", write))
    yield "shout"
    del formats.FORMATS["shout"]


@pytest.mark.slow
def test_a_form_and_a_format_from_outside(
    first: str, shout: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ("transcribe", str(SAMPLES / "phone-number.wav"), "--model", "digits")
    plain = Run(capsys, *command, "-o", str(tmp_path))
    assert plain.status == 0, plain.err
    text = (tmp_path / "phone-number.txt").read_text()
    for frames in ("all", "60"):
        form = f"{first}:frames={frames}"
        ours = Run(capsys, *command, "--cross-cache", form, "-f", shout, "-o", str(tmp_path))
        assert ours.status == 0 and f"cache {first}" in ours.err
        heard = (tmp_path / "phone-number.shout").read_text().split()
        assert (heard == text.upper().split()) == (frames == "all"), "it is the form that runs"


class NumpyReader:
    """Dimensions and tensors in one file of numpy's."""

    def detect(self, path: Path) -> bool:
        return path.suffix == ".npz"

    def read(self, path: Path) -> Contents:
        arrays = dict(np.load(path))
        dims = Dims(*map(int, arrays.pop("dims")))
        return Contents(dims, {name: torch.from_numpy(array) for name, array in arrays.items()})


def test_a_checkpoint_format_from_outside(
    digits_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "READERS", readers.READERS.copy())
    readers.register(NumpyReader())
    theirs = load_checkpoint(digits_path)
    np.savez(tmp_path / "model.npz", dims=astuple(theirs.dims), **theirs.state)
    found = load_checkpoint(tmp_path / "model.npz")
    assert found.dims == theirs.dims and found.tokens is theirs.tokens
    assert_equal(found.state, dict(theirs.state), torch.float16)
    np.savez(tmp_path / "model.npz", dims=astuple(theirs.dims))
    with pytest.raises(CheckpointError, match="too few"):  # it is checked as any other
        load_checkpoint(tmp_path / "model.npz")


def test_names_are_taken_once(first: str, shout: str) -> None:
    with pytest.raises(ValueError, match=f"'{first}'"):
        forms.register(forms.FORMS[first])
    with pytest.raises(ValueError, match="'shout'"):
        formats.register(formats.FORMATS[shout])
