"""The flags of `transcribe` are the whisper command's, and so are their defaults."""

import argparse
from dataclasses import fields
from unittest.mock import patch

import numpy as np
import pytest

from slimwhisper import cli
from slimwhisper.errors import OptionError
from slimwhisper.jobs.flags import COMMAND_DEFAULTS, options_of
from slimwhisper.options import Options
from tests.support.paths import SAMPLES


def flags() -> dict[str, argparse.Action]:
    """The flags of `transcribe`, by the name of their value."""
    commands = cli.build_parser()._subparsers._group_actions[0]  # type: ignore[union-attr]
    return {a.dest: a for a in commands.choices["transcribe"]._actions}  # type: ignore[index, call-overload]


def parse(*arguments: str) -> argparse.Namespace:
    return cli.build_parser().parse_args(["transcribe", "x.wav", *arguments])


def test_defaults_are_those_of_options() -> None:
    library = {f.name: f.default for f in fields(Options)}
    parsed = {name: getattr(parse(), name) for name in library}
    differing = {name: value for name, value in parsed.items() if value != library[name]}
    assert differing == {"temperature": 0.0, "beam_size": 5, "best_of": 5} == COMMAND_DEFAULTS
    chosen = options_of(parse())
    assert chosen.pop("temperature") == pytest.approx(library["temperature"])
    assert chosen == {"beam_size": 5, "best_of": 5}, "the rest is the model's to say"
    # what is given is given even if it is the default
    chosen = options_of(parse("--task", "transcribe", "--language", "None"))
    assert (chosen["task"], chosen["language"]) == ("transcribe", None)


@pytest.mark.parametrize(
    ("windows", "given"), [(1, ""), (4, "--batch_size 4"), (None, "--cache slim")]
)
def test_a_job_tells_how_many_windows_are_decoded_together(windows: int, given: str) -> None:
    """Unless the user says which cache to take."""
    asked = [str(SAMPLES / "phone-number.wav"), *given.split()]
    with patch("slimwhisper.jobs.plan.load_with_threads", side_effect=OptionError("no")) as load:
        assert cli.main(["transcribe", *asked, "--journal", "False"]) == 2
    assert load.call_args.kwargs["windows"] == windows


def test_flags_and_defaults_are_those_of_the_whisper_command() -> None:
    from whisper.transcribe import cli as whisper_cli

    with patch.object(argparse.ArgumentParser, "parse_args", autospec=True) as stopped:
        stopped.side_effect = SystemExit
        with pytest.raises(SystemExit):
            whisper_cli()
    theirs, ours = {a.dest: a for a in stopped.call_args.args[0]._actions}, flags()
    assert theirs.keys() <= ours.keys()
    differing = {n for n, a in theirs.items() if ours[n].default != a.default}
    assert differing <= {"device"}  # theirs depends on the machine, ours is found out later
    for name, action in theirs.items():
        assert set(action.option_strings) <= set(ours[name].option_strings)


@pytest.mark.parametrize(("first", "step"), [(0, 0.2), (0, 0.3), (0.7, 0.1), (1, 0.2)])
def test_temperatures_are_those_of_the_whisper_command(first: float, step: float) -> None:
    given = ("--temperature", str(first), "--temperature_increment_on_fallback")
    chosen = options_of(parse(*given, str(step)))["temperature"]
    assert chosen == tuple(np.arange(first, 1.0 + 1e-6, step))
    assert {type(t) for t in chosen} == {float}
    assert options_of(parse(*given, "None"))["temperature"] == first
