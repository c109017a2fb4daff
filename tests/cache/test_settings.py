"""Specs of cache forms: a name and its settings. What is refused: tests/app/refusals.toml."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from slimwhisper.cache import forms
from slimwhisper.cache.forms import (
    KV,
    E,
    Form,
    Hybrid,
    K,
    X,
    brief,
    check_form,
    choose_forms,
    parse_form,
)


@dataclass(frozen=True)
class Sample(Form):
    name = "sample"
    r: int = 16
    share: float = 0.25
    k: int | None = None
    noise: bool = True
    over: str = "kv"

    def __post_init__(self) -> None:
        self.require(self.r >= 1, "r", "at least 1")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    forms.register(Sample)
    yield
    del forms.FORMS["sample"]


def test_parsed_and_written() -> None:
    assert parse_form("sample") == Sample() and parse_form(Sample(r=3)) == Sample(r=3)
    result = parse_form("sample:k=8, noise=False,share=0.5,over=e")
    assert result == Sample(16, 0.5, 8, False, "e")
    assert str(result) == "sample:r=16,share=0.5,k=8,noise=false,over=e"
    assert parse_form(str(Sample())) == Sample() == parse_form("sample:k=all")


def test_specs_of_forms() -> None:
    assert parse_form("kv") == KV() and str(KV()) == "kv"
    assert str(check_form("e", ("kv", "e"))) == "e"
    assert choose_forms() == (E(), X())
    assert choose_forms("option2") == (E(), K())
    assert choose_forms("baseline", cross_cache="hybrid") == (Hybrid(), KV())
    assert [*map(str, choose_forms(cache_dtype="fp8"))] == ["e8", "x8"]
    with pytest.raises(ValueError, match="unknown cache form 'y'"):
        parse_form("y")


def test_names_are_known_before_the_code_is_imported() -> None:
    """And no form is listed for an attention that it is not for."""
    every = forms.all_forms().values()
    approximate = {f.name: f.attentions for f in every if not f.exact}
    assert approximate == forms.research().ATTENTIONS
    for part in ("cross", "self"):
        there = [f for f in every if part in f.attentions]
        assert {f.name for f in there} == {*forms.names_of(part, exact=False)}
        assert {f.name for f in there if f.exact and not f.rounds} == {*forms.names_of(part)}


def test_brief() -> None:
    """The shortest spec of the same meaning."""
    for spec, shortest in (
        ("kv", "kv"),
        ("zack:removal=0.05", "zack"),
        ("zack:keep=0.5,multiple=16", "zack:keep=0.5"),
        ("sample", "sample"),
        ("sample:r=16,k=all", "sample"),
        ("sample:over=e,r=3,k=all", "sample:r=3,over=e"),
    ):
        assert brief(spec) == brief(parse_form(spec)) == shortest
        assert parse_form(shortest) == parse_form(spec)
