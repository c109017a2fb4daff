"""Every wrong option is refused with its name, its value and what would work."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slimwhisper.checkpoint.settings import GenerationSettings
from slimwhisper.errors import OptionError
from slimwhisper.live.setup import live_options
from slimwhisper.longform.requests import Prompts
from slimwhisper.options import Options, make_options
from slimwhisper.tokens.texts import parse_hot_words, spellings
from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Dims
from tests.support.checkpoints import facts_of, tiny_dims

ENGLISH, MULTILINGUAL = tiny_dims(multilingual=False), tiny_dims()
TURBO = Dims(128, 1500, 1280, 20, 32, 51_866, 448, 1280, 20, 4)


def refusal(dims: Dims, **values: Any) -> str:
    with pytest.raises(OptionError) as caught:
        make_options(facts_of(dims, "small-model"), **values)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


@pytest.mark.parametrize(
    ("values", "value", "remedy"),
    [
        ({"temperature": -0.1}, "-0.1", "from 0 (greedy)"),
        ({"temperature": (0.0, 11)}, "(0.0, 11)", "from 0 (greedy)"),
        ({"temperature": ()}, "()", "give one number, or several"),
        ({"beam_size": 101}, "101", "from 1 to 100"),
        ({"beam_size": 2.5}, "2.5", "whole number"),
        ({"best_of": "3"}, "'3'", "whole number"),
        ({"patience": 2.0}, "needs", "beam_size"),
        ({"patience": 0.1, "beam_size": 3}, "0.1", "give 1.0"),
        ({"length_penalty": 1.5}, "1.5", "from 0 to 1"),
        ({"on_failure": "first"}, "'first'", "last, best"),
        ({"drop": ["invented", "odd"]}, "'odd'", "repeats, invented"),
        ({"drop": "invented"}, "'invented'", "give a list"),
        ({"seed": -1}, "-1", "whole number from 0 up"),
        ({"hot_words": ["Ann", " "]}, "line 2 is empty", "leave it out"),
        ({"hot_words": ["a" * 201]}, "201 characters", "at most 200"),
        ({"hot_words": ["Ann"] * 10_001}, "10,001 phrases", "at most 10,000"),
        ({"hot_words": ["Ann\tmuch"]}, "'much'", "from 0 to 20 after the tab"),
        ({"hot_words": ["Ann\t21"]}, "'21'", "from 0 to 20 after the tab"),
        ({"initial_prompt": "five " * 10**6}, "5,000,000 characters", "give at most 1,000,000"),
        ({"prefix": "five " * 300}, "300 tokens", "give at most 216"),
        ({"hot_words": ["Ann", 5]}, "line 2 is 5", "give a text"),
        ({"hot_words": 5}, "5", "give a text or a list"),
        ({"hot_words": "no/such/file"}, "no/such/file cannot be read", "give a text file"),
        ({"hot_word_bonus": 21}, "21", "from 0 to 20"),
        ({"clip_timestamps": "0,x"}, "'0,x'", "such as '0,12.5,60'"),
        ({"clip_timestamps": [-1.0]}, "(-1.0,)", "start,end,start,end"),
        ({"clip_timestamps": 5}, "5", "give a text or a list"),
        ({"hallucination_silence_threshold": 2.0}, "needs", "word_timestamps"),
        ({"parallel": True, "vad_filter": True}, "parallel", "drop vad_filter"),
        ({"task": "summarize"}, "'summarize'", "transcribe, translate"),
        ({"language": "xx"}, "'xx'", "use a code such as 'en'"),
        ({"language": "Germann"}, "'Germann'", "did you mean german"),
        ({"languages": ("de", "xx")}, "'xx'", "use a code such as 'en'"),
        ({"language": np.str_("xx")}, "'xx'", "use a code such as 'en'"),
        ({"languages": "de"}, "'de'", "give a list"),
        ({"languages": ["de"], "language": "de"}, "language", "not both"),
        ({"vad_threshold": 1.0, "parallel": True}, "1.0", "between 0 and 1"),
        ({"vad_speech_pad_ms": 5}, "needs", "vad_filter or parallel"),
        ({"sample_len": 225}, "225", "between 1 and 224"),
    ],
    ids=lambda v: str(v)[:60] if isinstance(v, dict) else "",
)
def test_what_is_wrong_and_what_would_work(values: dict[str, Any], value: str, remedy: str) -> None:
    message = refusal(MULTILINGUAL, **values)
    assert next(iter(values)) in message
    assert value in message
    assert remedy in message


def test_hot_words_are_read_from_a_file(tmp_path: Path) -> None:
    """With its own bonus where a line has one; a list is the same as a file of its lines."""
    path = tmp_path / "words.txt"
    path.write_text("Lagrange\nAnn  Lee\t4\n", encoding="utf-8-sig")
    lines = ("Lagrange", "Ann  Lee\t4")
    for given in (path, str(path), list(lines)):
        assert make_options(facts_of(MULTILINGUAL), hot_words=given).hot_words == lines
    assert make_options(facts_of(MULTILINGUAL), hot_words=None).hot_words == ()
    assert parse_hot_words(lines, 2.0) == {"Lagrange": 2.0, "Ann Lee": 4.0}
    assert parse_hot_words(("a\t1", "a\t3", "a"), 2.0) == {"a": 3.0}
    path.write_bytes(b"\xff")
    assert "is not UTF-8" in refusal(MULTILINGUAL, hot_words=path)


def test_spellings_of_a_hot_word() -> None:
    """By case, and with a space or without, which not every script has."""
    vocabulary = get_vocabulary(MULTILINGUAL)
    tokenizer = vocabulary.tokenizer()

    def spelled(line: str) -> dict[str, bool]:
        found = spellings(vocabulary, (line,), 2.0)
        return {tokenizer.decode(list(s.tokens)): s.anywhere for s in found}

    assert spelled("ann Lee") == {
        " ann Lee": True,
        "ann Lee": False,
        " ann lee": True,
        "ann lee": False,
        " Ann Lee": True,
        "Ann Lee": False,
    }
    assert spelled("東京") == {" 東京": True, "東京": True}
    assert spelled("서울") == {" 서울": True, "서울": False}


@pytest.mark.parametrize(
    ("dims", "values", "reason"),
    [
        (TURBO, {"task": "translate"}, "turbo cannot translate; use large-v3 or medium"),
        (MULTILINGUAL, {"language": "yue"}, "not in this model"),
    ],
)
def test_what_the_model_cannot(dims: Dims, values: dict[str, Any], reason: str) -> None:
    assert reason in refusal(dims, **values)


def test_an_english_only_model_warns_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """As `whisper` does; a language that nobody knows is still an error."""
    given = {"language": "German", "task": "translate", "multilingual": True}
    for _ in range(2):
        made = make_options(facts_of(ENGLISH, "tiny-model"), **given)
        assert (made.language, made.task, made.multilingual) == ("en", "transcribe", False)
    assert [record.getMessage() for record in caplog.records] == [
        "tiny-model is English-only: language 'en' is used, not 'German'",
        "tiny-model is English-only: task 'transcribe' is used, not 'translate'",
        "tiny-model is English-only: multilingual False is used, not True",
    ]
    assert "'xx'" in refusal(ENGLISH, language="xx")
    assert (
        make_options(facts_of(ENGLISH), language="<|en|>", task="transcribe")
        and len(caplog.records) == 3
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hotwords": ["five"]}, "hotwords ['five'] is of type list; give a text"),
        ({"prefix": 3}, "prefix 3 is of type int; give a text or a list"),
        ({"prefix": [-1]}, "prefix (-1,): give a text, or token ids"),
        ({"audio_track": 0}, "audio_track 0: give a number from 1, or a language"),
        ({"audio_track": True}, "audio_track True: give a number from 1"),
        ({"language": 5}, "language 5 is of type int; give a text"),
        ({"no_speech_threshold": "0.6"}, "no_speech_threshold '0.6' is of type str; give a number"),
        ({"temperature": "0"}, "temperature '0' is of type str; give a number or a list"),
        ({"temperature": ["0"]}, "temperature ('0',): give one number"),
        ({"word_timestamps": "no"}, "word_timestamps 'no' is of type str; give True or False"),
        ({"initial_prompt": 1936}, "initial_prompt 1936 is of type int; give a text or a list"),
        ({"sample_len": "5"}, "sample_len '5' is of type str; give a whole number"),
        ({"task": 3}, "task 3 is not one of"),
        ({"task": "rm"}, "task 'rm' is not one of: transcribe, translate"),
        ({"task": ""}, "task '' is not one of: transcribe, translate"),
    ],
)
def test_wrong_types_are_named(values: dict[str, Any], message: str) -> None:
    for dims in (ENGLISH, MULTILINGUAL):
        assert message in refusal(dims, **values)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_numbers_and_arrays_of_numpy_and_torch_are_as_good(kind: Any) -> None:
    values = {
        "temperature": (0.0, 0.5),
        "clip_timestamps": (0.0, 2.0),
        "initial_prompt": (1936, 11),
        "suppress_tokens": (-1,),
        "beam_size": 2,
        "best_of": 3,
        "seed": 4,
        "sample_len": 50,
        "logprob_threshold": -1.5,
        "patience": 1.0,
        "word_timestamps": True,
        "hallucination_silence_threshold": 2.0,
        "hot_word_bonus": 1.5,
    }
    expected = make_options(facts_of(ENGLISH), **values)
    given = {name: kind(value) for name, value in values.items()}
    assert make_options(facts_of(ENGLISH), **given) == expected
    given["temperature"] = [kind(each) for each in values["temperature"]]  # type: ignore[attr-defined]
    assert make_options(facts_of(ENGLISH), **given) == expected
    assert "beam_size 0 is not" in refusal(ENGLISH, beam_size=kind(0))


@pytest.mark.parametrize("word", ["auto", "Auto", " AUTO ", "", "und", "None"])
def test_the_word_auto_detects_the_language(word: str) -> None:
    detected = make_options(facts_of(MULTILINGUAL))
    for values in (
        {"language": word},
        {"languages": [word]},
        {"languages": np.array(["de", word])},
    ):
        assert make_options(facts_of(MULTILINGUAL), **values) == detected
    own = GenerationSettings(language="de")
    assert make_options(facts_of(MULTILINGUAL, settings=own), language=word).language is None
    assert make_options(facts_of(ENGLISH), language=word).language is None
    assert live_options(language=word).language is None


@pytest.mark.parametrize("name", ["initial_prompt", "prefix", "hotwords", "hot_words"])
def test_names_of_special_tokens_are_text(name: str) -> None:
    """In every text of a user's, wherever it goes."""
    text, vocabulary = "five <|en|> <|0.00|> <|endoftext|>", get_vocabulary(MULTILINGUAL)
    tokenizer = vocabulary.tokenizer()
    if name == "hot_words":
        tokens = spellings(
            vocabulary, make_options(facts_of(MULTILINGUAL), hot_words=[text]).hot_words, 2.0
        )[0].tokens
    else:
        prompts = Prompts(
            tokenizer, MULTILINGUAL, make_options(facts_of(MULTILINGUAL), **{name: text})
        )
        prompt, start = prompts.of_window(tokenizer)
        tokens = prompt[start + 3 :] if name == "prefix" else prompt[1:start]
    assert all(map(vocabulary.is_text, tokens))
    assert tokenizer.decode(list(tokens)).strip().startswith(text)


def test_a_misspelt_name_gets_a_suggestion() -> None:
    assert "did you mean 'beam_size'" in refusal(ENGLISH, beamsize=5)
    message = refusal(ENGLISH, colour="red")
    assert "unknown option 'colour'" in message
    assert all(f.name in message for f in fields(Options))


def test_bounds_belong_to_what_is_allowed() -> None:
    made = make_options(
        facts_of(MULTILINGUAL),
        temperature=[0, 10],
        beam_size=100,
        best_of=1,
        patience=0.01,
        length_penalty=1,
        sample_len=224,
        clip_timestamps="0,1.5,",
        language="German",
        task="translate",
        word_timestamps=True,
        hallucination_silence_threshold=0.5,
    )
    of_range = make_options(facts_of(ENGLISH), temperature=range(0, 11, 10)).temperature
    assert made.temperature == of_range == (0, 10) and made.beam_size == 100
    assert (
        make_options(
            facts_of(ENGLISH), length_penalty=0, sample_len=1, language="English"
        ).sample_len
        == 1
    )


def test_sentences_need_the_words() -> None:
    assert make_options(
        facts_of(ENGLISH), sentences=True, hallucination_silence_threshold=2
    ).word_timestamps
    assert not make_options(facts_of(ENGLISH)).word_timestamps
