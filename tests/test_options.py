"""Options: their flags, what is refused with its name and value, and what is as good."""

from dataclasses import Field, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.checkpoint.load import GenerationSettings
from slimwhisper.cli import build_parser
from slimwhisper.errors import OptionError
from slimwhisper.flags import model_arguments
from slimwhisper.hot_words.options import parse_hot_words, spellings
from slimwhisper.jobs.flags import COMMAND_DEFAULTS, changed, options_of
from slimwhisper.jobs.journal import identify_job
from slimwhisper.live.setup import live_options
from slimwhisper.longform.requests import Prompts
from slimwhisper.options import Options, make_options
from slimwhisper.recordings.transcribe import warn_of_empty_clips
from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Dims
from tests.support.checkpoints import facts_of, tiny_dims
from tests.support.fuzz import examples
from tests.support.refusals import TABLES

ENGLISH, MULTILINGUAL = tiny_dims(multilingual=False), tiny_dims()
TURBO = Dims(128, 1500, 1280, 20, 32, 51_866, 448, 1280, 20, 4)
whole_parser = cache(build_parser)
ROWS = [r for r in fields(Options) if (h := r.metadata["help"]).section and not h.parse]


def refusal(dims: Dims, **values: Any) -> str:
    """The message, in one line."""
    with pytest.raises(OptionError, match=rf"\A[^\n]*{next(iter(values))}[^\n]*\Z") as caught:
        make_options(facts_of(dims, "small-model"), **values)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def values_of(row: "Field[Any]") -> st.SearchStrategy[Any]:
    """Of an option, within its limits, as its flag takes them."""
    limits, kind = row.metadata["help"], str(row.type).partition(" ")[0]
    low, high = limits.low or 0, limits.high or 1000
    one = st.text("abcdé", min_size=1)
    if limits.choices or row.name == "diarize":  # it names a file, or how
        one = st.sampled_from(limits.choices or ("embedding",))
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "int": st.integers(int(low), int(high)),
        "float": st.floats(low, high, exclude_min=limits.open, exclude_max=limits.open),
        "str": one,
    }
    return kinds.get(kind, st.lists(one, min_size=1).map(tuple))


def flag(name: str, value: Any) -> str:
    return f"--{name}={','.join(value) if isinstance(value, tuple) else value}"


@examples(60)
@given(st.data())
def test_from_flags_to_options_to_what_the_journal_records(data: st.DataObject) -> None:
    """What is given arrives, and nothing else; the order of the flags changes nothing."""
    rows = data.draw(st.lists(st.sampled_from(ROWS), max_size=5, unique_by=lambda r: r.name))
    chosen = {row.name: data.draw(values_of(row), row.name) for row in rows}
    words = [flag(name, value) for name, value in chosen.items()]
    words.append("--temperature_increment_on_fallback=None")
    recorded, parser = [], whole_parser()
    for each in (words, words[::-1]):
        parsed = parser.parse_args(["transcribe", "x.wav", *each])
        found = options_of(parsed)
        assert found == COMMAND_DEFAULTS | {"temperature": 0.0} | chosen
        load = model_arguments(parsed)
        recorded.append(identify_job("turbo", load, ("txt",), changed(found)))
    assert recorded[0] == recorded[1]
    defaults = {row.name: row.default for row in ROWS}
    for name, value in chosen.items():
        assert recorded[0].get(name, defaults[name]) == value, name


@examples(60)
@given(st.data())
def test_numbers_beyond_their_bounds(data: st.DataObject) -> None:
    bounded = [r for r in fields(Options) if r.metadata["help"].low is not None]
    row = data.draw(st.sampled_from(bounded))
    limits = row.metadata["help"]
    beyond = st.floats(max_value=limits.low, exclude_max=not limits.open, allow_infinity=False)
    if limits.high is not None:
        beyond |= st.floats(limits.high, exclude_min=not limits.open, allow_infinity=False)
    refusal(MULTILINGUAL, **{row.name: data.draw(beyond)})


@pytest.mark.usefixtures("speakers_here")
@pytest.mark.parametrize(
    ("values", "value", "remedy"),
    [
        *TABLES["options"],
        ({"hot_words": ["a" * 201]}, "201 characters", "at most 200"),
        ({"hot_words": ["Ann"] * 10_001}, "10,001 phrases", "at most 10,000"),
        ({"initial_prompt": "five " * 10**6}, "5,000,000 characters", "give at most 1,000,000"),
        ({"prefix": "five " * 300}, "300 tokens", "give at most 216"),
        *[({name: None}, "None", "give a ") for name in ("languages", "drop", "clip_timestamps")],
        ({"suppress_tokens": (None,)}, "None", "give token ids"),
        ({"language": np.str_("xx")}, "'xx'", "use a code such as 'en'"),
    ],
    ids=lambda v: str(v)[:60] if isinstance(v, dict) else "",
)
def test_what_is_wrong_and_what_would_work(values: dict[str, Any], value: str, remedy: str) -> None:
    message = refusal(MULTILINGUAL, **values)
    assert value in message and remedy in message


def test_hot_words(tmp_path: Path) -> None:
    """A file's lines, with their own bonus where they have one; their spellings by case, and with
    a space or without, which not every script has.
    """
    path, lines = tmp_path / "words.txt", ("Lagrange", "Ann  Lee\t4")
    path.write_text("Lagrange\nAnn  Lee\t4\n", encoding="utf-8-sig")
    for given_lines in (path, str(path), list(lines)):
        assert make_options(facts_of(MULTILINGUAL), hot_words=given_lines).hot_words == lines
    assert parse_hot_words(lines, 2.0) == {"Lagrange": 2.0, "Ann Lee": 4.0}
    assert parse_hot_words(("a\t1", "a\t3", "a"), 2.0) == {"a": 3.0}
    path.write_bytes(b"\xff")
    assert "is not UTF-8" in refusal(MULTILINGUAL, hot_words=path)
    vocabulary = get_vocabulary(MULTILINGUAL)
    for line, expected in (("ann Lee", False), ("東京", True)):
        found = spellings(vocabulary, (line,), 2.0)
        spelled = {vocabulary.tokenizer().decode(list(s.tokens)): s.anywhere for s in found}
        cased = {line, line.lower(), line.title()}
        assert spelled == dict.fromkeys(cased, expected) | {f" {c}": True for c in cased}


def test_what_the_model_cannot(caplog: pytest.LogCaptureFixture) -> None:
    """An error; but an English-only model warns once and goes on, as `whisper` does."""
    with pytest.raises(OptionError, match="turbo cannot translate"):
        make_options(facts_of(TURBO), task="translate")
    assert "'yue' is not in this model" in refusal(MULTILINGUAL, language="Cantonese")
    asked = {"language": "German", "task": "translate", "multilingual": True}
    for _ in range(2):
        made = make_options(facts_of(ENGLISH, "tiny-model"), **asked)
        assert (made.language, made.task, made.multilingual) == ("en", "transcribe", False)
    refusal(ENGLISH, language="xx")
    make_options(facts_of(ENGLISH), language="<|en|>", task="transcribe")
    assert make_options(facts_of(TURBO), task=None).task == "transcribe", "as in whisper"
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3 and all("tiny-model is English-only" in w for w in warnings)
    warn_of_empty_clips(70.0, Options(clip_timestamps="5,3,91"), "talk")
    assert "talk: its clip at 5 s ends at 3 s; check" in caplog.text
    assert "talk: its clip at 91 s ends at 70 s; check" in caplog.text


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_numbers_and_arrays_of_numpy_and_torch_are_as_good(kind: Any) -> None:
    several = {"temperature": (0.0, 0.5), "clip_timestamps": (0.0, 2.0), "suppress_tokens": (-1,)}
    single = {"beam_size": 2, "logprob_threshold": -1.5, "patience": 1.0, "word_timestamps": True}
    values = {"initial_prompt": (1936, 11), **several, **single}
    expected = make_options(facts_of(ENGLISH), **values)
    same = {name: kind(value) for name, value in values.items()}
    assert make_options(facts_of(ENGLISH), **same) == expected
    same["temperature"] = [kind(each) for each in several["temperature"]]
    assert make_options(facts_of(ENGLISH), **same) == expected
    assert "beam_size 0 is not" in refusal(ENGLISH, beam_size=kind(0))


@pytest.mark.parametrize("word", ["auto", " AUTO ", "", "und", "None"])
def test_the_word_auto_detects_the_language(word: str) -> None:
    detected = make_options(facts_of(MULTILINGUAL))
    for values in ({"language": word}, {"languages": np.array(["de", word])}):
        assert make_options(facts_of(MULTILINGUAL), **values) == detected
    own = GenerationSettings(language="de")
    assert make_options(facts_of(MULTILINGUAL, settings=own), language=word).language is None
    assert make_options(facts_of(ENGLISH), language=word).language is None
    assert live_options(language=word).language is None


@pytest.mark.parametrize("name", ["initial_prompt", "prefix", "hotwords", "hot_words"])
def test_names_of_special_tokens_are_text(name: str) -> None:
    """In every text of a user's, wherever it goes."""
    text, vocabulary = "five <|en|> <|0.00|> <|endoftext|>", get_vocabulary(MULTILINGUAL)
    tokenizer, facts = vocabulary.tokenizer(), facts_of(MULTILINGUAL)
    if name == "hot_words":
        lines = make_options(facts, hot_words=[text]).hot_words
        tokens = spellings(vocabulary, lines, 2.0)[0].tokens
    else:
        options = make_options(facts, **{name: text})
        prompt, start = Prompts(tokenizer, MULTILINGUAL, options).of_window(tokenizer)
        for most, index in ((0, 0), (3, 4)):
            short = Prompts(tokenizer, MULTILINGUAL, options, most).of_window(tokenizer)
            assert short[1] == (0 if name == "prefix" else index), "most tokens, and one before"
        tokens = prompt[start + 3 :] if name == "prefix" else prompt[1:start]
    assert all(map(vocabulary.is_text, tokens))
    assert tokenizer.decode(list(tokens)).strip().startswith(text)


def test_what_options_imply() -> None:
    facts = facts_of(ENGLISH)
    assert make_options(facts, sentences=True, hallucination_silence_threshold=2).word_timestamps
    assert not make_options(facts).word_timestamps
    made = make_options(facts, temperature=range(0, 11, 10), clip_timestamps="0,1.5,")
    assert made.temperature == (0, 10)
