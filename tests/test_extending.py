"""A cache form and an output format from outside: a row each, and everything that has names for
them runs them. `docs/architecture.md` has the steps.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest
from torch import Tensor

import slimwhisper
from slimwhisper.cache import forms
from slimwhisper.cache.base import CrossStore, Room
from slimwhisper.cache.fold import Attention, Context, Folded, fold_latent
from slimwhisper.cache.latent import LatentCross, LatentStore
from slimwhisper.outputs import formats
from slimwhisper.outputs.layout import Layout
from slimwhisper.types import Transcript
from tests.support.command import Run
from tests.support.paths import SAMPLES

RECORDING = SAMPLES / "phone-number.wav"
KEPT: list[str] = []  # who kept something


def fold_negated(block: Attention, context: Context) -> Folded:
    """What is kept is -X: both maps change their sign."""
    folded = fold_latent(block, context)
    assert folded.key_map is not None and folded.value_map is not None
    return replace(folded, key_map=-folded.key_map, value_map=-folded.value_map)


class NegatedStore(LatentStore):
    """-E of the slots."""

    def put(self, slots: Tensor, features: Tensor) -> None:
        KEPT.append("E")
        super().put(slots, -features)


class NegatedCross(LatentCross):
    """Reads it."""

    def __init__(self, weights: Folded, room: Room, store: CrossStore | None = None) -> None:
        super().__init__(weights, room, store or NegatedStore(weights, room))


@pytest.fixture
def negated() -> Iterator[str]:
    name = "negated"
    forms.register(forms.Form(name, "-E", fold_negated, NegatedCross, None, shared=True))
    KEPT.clear()
    yield name
    del forms.FORMS[name]


@pytest.fixture
def shout() -> Iterator[str]:
    def write(transcript: Transcript, file: TextIO, layout: Layout) -> None:
        file.write(transcript.text.strip().upper() + "\n")

    formats.register(formats.Format("shout", "text/x-shout", write))
    yield "shout"
    del formats.FORMATS["shout"]


def test_a_form_and_a_format_from_outside(
    negated: str, shout: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = Run(capsys, "transcribe", str(RECORDING), "--model", "digits", "-o", str(tmp_path))
    assert plain.status == 0, plain.err
    text = (tmp_path / "phone-number.txt").read_text()
    flags = ("--cross-cache", negated, "-f", shout, "-o", str(tmp_path / "loud"))
    ours = Run(capsys, "transcribe", str(RECORDING), "--model", "digits", *flags)
    assert ours.status == 0, ours.err
    (written,) = (tmp_path / "loud").iterdir()
    assert written.name == "phone-number.shout"
    assert written.read_text().split() == text.upper().split()
    assert KEPT and "cache negated+x" in ours.err


def test_the_same_tokens(negated: str, digits_path: Path) -> None:
    """The library takes the name, too."""
    found = []
    for chosen in (None, negated):
        model = slimwhisper.load_model(digits_path, "cpu", cross_cache=chosen)
        found.append(model.transcribe(RECORDING, language="en")["segments"])
        assert model.fallbacks == []
    assert [s["tokens"] for s in found[0]] == [s["tokens"] for s in found[1]]
    assert KEPT


def test_names_are_taken_once(negated: str, shout: str) -> None:
    with pytest.raises(ValueError, match="'negated'"):
        forms.register(forms.FORMS[negated])
    with pytest.raises(ValueError, match="'shout'"):
        formats.register(formats.FORMATS[shout])
