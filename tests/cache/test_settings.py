"""Specs of cache forms: a name and its settings."""

from dataclasses import dataclass

import pytest

from slimwhisper.cache.choice import choose_forms
from slimwhisper.cache.forms import FORMS, Form, brief, canonical, check_form, settings_of
from slimwhisper.cache.settings import describe_settings, parse_settings, split_spec
from slimwhisper.errors import OptionError


@dataclass(frozen=True, slots=True)
class Sample:
    r: int = 16
    share: float = 0.25
    k: int | None = None
    noise: bool = True
    over: str = "kv"

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ValueError(f"r={self.r}: give at least 1")


def test_parsed_and_written() -> None:
    assert split_spec("sample:r=3,k=4") == ("sample", "r=3,k=4") and split_spec("kv") == ("kv", "")
    assert parse_settings(Sample, "") == Sample()
    result = parse_settings(Sample, "k=8, noise=False,share=0.5,over=e")
    assert result == Sample(16, 0.5, 8, False, "e")
    assert describe_settings(result) == "r=16,share=0.5,k=8,noise=false,over=e"
    assert parse_settings(Sample, describe_settings(Sample())) == Sample()
    assert parse_settings(Sample, "k=all").k is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "q=3",
            "'q=3' is not a setting; give for example r=16,share=0.25,k=all,noise=true,over=kv",
        ),
        ("r", "'r' is not a setting"),
        ("r=1,r=2", "r is given twice"),
        ("r=x", "r=x is not a whole number"),
        ("r=all", "r=all is not a whole number"),
        ("k=1.5", "k=1.5 is not a whole number or all"),
        ("share=much", "share=much is not a number"),
        ("noise=1", "noise=1 is neither true nor false"),
        ("r=0", "r=0: give at least 1"),
    ],
)
def test_one_line_for_what_makes_no_sense(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message.replace("'", "'")):
        parse_settings(Sample, text)


def test_specs_of_forms() -> None:
    assert canonical("kv") == "kv" and settings_of("kv") is None
    assert check_form("e", ("kv", "e")) == "e"
    with pytest.raises(OptionError, match=r"^'kv:r=3': kv has no settings$"):
        check_form("kv:r=3", ("kv", "e"))
    with pytest.raises(OptionError, match=r"^cross_cache: 'x' is not one of kv, k"):
        choose_forms(cross_cache="x")
    with pytest.raises(OptionError, match=r"^self_cache: 'x:r=3': x has no settings$"):
        choose_forms(self_cache="x:r=3")


def test_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest spec of the same meaning."""
    monkeypatch.setitem(FORMS, "sample", Form("sample", "", str, settings=Sample))
    for spec, shortest in (
        ("kv", "kv"),
        ("sample", "sample"),
        ("sample:r=16,k=all", "sample"),
        ("sample:over=e,r=3,k=all", "sample:r=3,over=e"),
    ):
        assert brief(spec) == brief(canonical(spec)) == shortest
        assert canonical(brief(spec)) == canonical(spec)
    settings_of.cache_clear()
