"""What comes from outside: a cache form, a checkpoint format, an output format, a pass, an option;
a row each, or an object of an interface, and all that have names for them run them; sources are in
tests/service/. `docs/internals/architecture.md` has the steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
import torch

import slimwhisper
from slimwhisper import options as joined
from slimwhisper import outputs as formats
from slimwhisper.audio.samples import Samples
from slimwhisper.cache import forms
from slimwhisper.checkpoint import load as readers
from slimwhisper.checkpoint.files import Contents
from slimwhisper.errors import CheckpointError, OptionError
from slimwhisper.flags import FlagGroup, add_options
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.longform.passes import DecodedWindow, Passes, TranscriptContext
from slimwhisper.option_group import ModelFacts, OptionGroup, option
from slimwhisper.options import Options
from slimwhisper.outputs import Layout
from slimwhisper.recordings import passes as table
from slimwhisper.types import Dims, Segment, Transcript
from tests.support.checkpoints import assert_equal, facts_of, tiny_dims
from tests.support.command import RunCLI
from tests.support.paths import SAMPLES
from tests.support.toy_form import first as first


@pytest.fixture
def shout() -> Iterator[str]:
    def write(transcript: Transcript, file: TextIO, layout: Layout) -> None:
        file.write(transcript.text.strip().upper() + "\n")

    formats.register(formats.OutputFormat("shout", "text/x-shout", write))
    yield "shout"
    del formats.FORMATS["shout"]


@pytest.mark.slow
def test_a_form_and_a_format_from_outside(
    first: str, shout: str, run_cli: RunCLI, tmp_path: Path
) -> None:
    command = ("transcribe", str(SAMPLES / "phone-number.wav"), "--model", "digits")
    plain = run_cli(*command, "-o", str(tmp_path))
    assert plain.status == 0, plain.err
    text = (tmp_path / "phone-number.txt").read_text()
    for frames in ("all", "60"):
        form = f"{first}:frames={frames}"
        ours = run_cli(*command, "--cross-cache", form, "-f", shout, "-o", str(tmp_path))
        assert ours.status == 0 and f"cache ({first}" in ours.err
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


def test_a_pass_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a finished transcript, and over each window, where it is seen as it is decoded."""

    def quiet(transcript: Transcript, context: TranscriptContext) -> Transcript:
        return replace(transcript, text=f"{transcript.text.strip()} ({context.seconds:.0f} s)")

    def upper(segments: Sequence[Segment], window: DecodedWindow) -> list[Segment]:
        assert window.mel().shape[0] == 80 and window.span.start == 0
        return [replace(s, text=s.text.upper()) for s in segments]

    def add(passes: Passes, samples: Samples, options: Options, name: str) -> None:
        passes.windows.append(upper)
        passes.transcript.append(quiet)

    monkeypatch.setattr(table, "TABLE", [*table.TABLE, add])
    model, seen = slimwhisper.load_model("digits", device="cpu"), list[Segment]()
    ((_, transcript),) = model.transcribe_many(
        [SAMPLES / "phone-number.wav"], on_segments=lambda _, new, __: seen.extend(new)
    )
    assert isinstance(transcript, Transcript) and transcript.text.endswith("(9 s)")
    assert [s.text for s in transcript.segments] == [s.text for s in seen]
    assert "".join(s.text for s in seen).startswith(" FIVE FIVE FIVE")


@dataclass(frozen=True, kw_only=True)
class MusicOptions(OptionGroup):
    """A feature's options."""

    music: str = option("keep", "what to do with music", section="music", choices=("keep", "skip"))
    least_ms: int = option(0, "shortest", section="music", low=0, high=9, needs=("music",))

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        if values.get("music") == "skip":
            values["vad_filter"] = True

    def check(self, model: ModelFacts) -> None:
        if self.music == "skip" and not model.vocabulary.languages:
            raise OptionError(f"{model.name}: needs a multilingual model")


def test_an_option_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flag, its limits, what it implies for others, and what it needs of the model."""

    @dataclass(frozen=True, kw_only=True)
    class Joined(MusicOptions, Options):
        pass

    monkeypatch.setattr(joined, "Options", Joined)
    facts = facts_of(tiny_dims())
    made: Any = joined.make_options(facts, music="skip", temperature=0)
    assert (made.music, made.vad_filter, made.temperature) == ("skip", True, 0)
    for model, values, message in (
        (facts, {"music": "loud"}, "keep, skip"),
        (facts, {"least_ms": 10}, "from 0 to 9"),
        (facts_of(tiny_dims(multilingual=False), "tiny"), {"music": "skip"}, "tiny: needs"),
    ):
        with pytest.raises(OptionError, match=message):
            joined.make_options(model, **values)
    parser = argparse.ArgumentParser()
    add_options({"music": FlagGroup(parser, "music")}, MusicOptions)
    assert vars(parser.parse_args(["--music", "skip"])) == {"music": "skip", "least_ms": 0}
