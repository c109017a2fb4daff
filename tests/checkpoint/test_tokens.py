"""The vocabulary and the tokenizer of a folder; what it lacks, and what is damaged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slimwhisper
from slimwhisper.errors import CheckpointError, OptionError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.tokens.vocabulary import Vocabulary, get_tokenizer, get_vocabulary, is_openai_table
from tests.support import damage as d
from tests.support.checkpoints import refusal, tiny_dims
from tests.support.hf_folders import MARKS, STAMPS, Table, hf_folder, trained_table, whisper_table
from tests.support.scripted import TEXTS
from tests.support.sounds import noise_bursts

TABLE = trained_table()
WORDS = (" Zwiebelkuchen", " Käsespätzle")


def vocabulary(folder: Path) -> Vocabulary:
    return load_checkpoint(folder).tokens


@pytest.mark.parametrize(("n_vocab", "old"), [(51_864, True), (51_865, True), (51_866, False)])
def test_whispers_own_table_stays_the_fast_one(tmp_path: Path, n_vocab: int, old: bool) -> None:
    """Also in older folders: <|nocaptions|>, <|iw|>, and no timestamps among the tokens."""
    table = whisper_table(n_vocab)
    if old:
        then = {"<|nospeech|>": "<|nocaptions|>", "<|he|>": "<|iw|>", "<|jw|>": "<|jv|>"}
        names = tuple(then.get(n, n) for n in table.special if n not in STAMPS)
        table = replace(table, special=names, size=n_vocab)
    suppressed = [*get_tokenizer(replace(tiny_dims(), n_vocab=n_vocab)).non_speech_tokens]
    folder = hf_folder(tmp_path / "model", table, generation={"suppress_tokens": suppressed})
    found = load_checkpoint(folder)
    assert found.tokens.is_whispers
    assert found.tokens.timestamps == get_vocabulary(found.dims).timestamps
    assert found.tokens.suppressed == tuple(sorted(suppressed))


def test_a_folder_that_says_what_whisper_does_is_whispers(tmp_path: Path) -> None:
    t = get_tokenizer(tiny_dims())
    prompts = (t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm, t.no_speech)
    usual = {
        "suppress_tokens": [*t.non_speech_tokens, *prompts],
        "begin_suppress_tokens": [220, t.eot],
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "return_timestamps": False,
        "forced_decoder_ids": [[1, None], [2, t.transcribe]],
    }
    folder = hf_folder(tmp_path / "model", whisper_table(), generation=usual)
    found = load_checkpoint(folder)
    assert found.tokens is get_vocabulary(found.dims)
    assert not is_openai_table(whisper_table().ids | {"a second name": 300}, t)
    model = slimwhisper.load_model(folder, device="cpu")
    assert model.settings == []
    assert model.make_options() == slimwhisper.Options()


def test_settings_that_name_other_tokens(tmp_path: Path) -> None:
    for setting in ({"eos_token_id": 100}, {"lang_to_id": {"<|de|>": 50_259}}):
        found = vocabulary(hf_folder(tmp_path / "model", whisper_table(), generation=setting))
        assert not found.is_whispers
    assert found.languages == {50_259: "de"}


def test_a_changed_table_has_whispers_interface(tmp_path: Path) -> None:
    """The same answers as whisper's tokenizer, and the added words are text."""
    found = vocabulary(hf_folder(tmp_path / "model", whisper_table(added=WORDS)))
    whispers = get_vocabulary(tiny_dims())
    assert found.texts == (range(50_257), range(51_865, 51_867))
    assert found.boundaries == (50_257, 50_364, 51_865, 50_363)
    assert (found.timestamps, found.languages) == (whispers.timestamps, whispers.languages)
    for language, text in TEXTS.items():
        ours, theirs = found.tokenizer(language), get_tokenizer(tiny_dims(), language)
        tokens = theirs.encode(text)
        stamped = [50_364, *tokens, 50_500, 50_500, *tokens[:3]]
        assert ours.decode(stamped) == theirs.decode(stamped)
        assert ours.decode_with_timestamps(stamped) == theirs.decode_with_timestamps(stamped)
        whole = [*tokens, theirs.eot]
        assert ours.split_to_word_tokens(whole) == theirs.split_to_word_tokens(whole)
        names = ("sot_sequence", "sot_sequence_including_notimestamps", "language_token")
        for name in (*names, "sot_prev", "sot_lm", "no_speech", "timestamp_begin"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert {*ours.all_language_codes} == {*theirs.all_language_codes}
    assert found.tokenizer().decode([51_865, 51_866]) == "".join(WORDS)


def test_a_trained_table_encodes_as_tokenizers_does(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = hf_folder(tmp_path / "model", TABLE)
    older = hf_folder(tmp_path / "older", TABLE, older=True)
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for found in (vocabulary(folder), vocabulary(older)):
        tokenizer = found.tokenizer("xx", "translate")
        assert tokenizer.encode(" \udcfffox") == tokenizer.encode(" \ufffdfox")
        for text in (" the quick brown fox", " Boxkämpfer", "日本"):
            assert tokenizer.encode(text) == fast.encode(text).ids
            assert tokenizer.decode(tokenizer.encode(text)) == text
        for name in ("<|en|>", "<|0.00|>", "<|endoftext|>"):  # no prompt makes it one
            tokens = tokenizer.encode(f" {name}")
            assert all(map(found.is_text, tokens)) and tokenizer.decode(tokens) == f" {name}"
        names = ("<|startoftranscript|>", "<|xx|>", "<|translate|>")
        assert tokenizer.sot_sequence == tuple(TABLE.ids[n] for n in names)
        assert tuple(found.languages.values()) == ("en", "de", "xx")


@pytest.mark.parametrize(
    ("table", "options", "expected"),
    [
        (trained_table(stamps=0), {"without_timestamps": False}, "no timestamps"),
        (TABLE, {"language": "fr"}, "not in this model"),
        (trained_table(tasks=("<|transcribe|>",)), {"task": "translate"}, "<|translate|>"),
        (trained_table(marks=MARKS[2:]), {"initial_prompt": "hi"}, "<|startofprev|>"),
        (trained_table(marks=MARKS[3:]), {"no_speech_threshold": 0.5}, "<|nospeech|>"),
    ],
)
def test_options_that_need_what_is_missing(
    tmp_path: Path, table: Table, options: dict[str, Any], expected: str
) -> None:
    model = slimwhisper.load_model(hf_folder(tmp_path / "model", table), device="cpu")
    with pytest.raises(OptionError, match=expected.replace("|", r"\|")) as caught:
        model.transcribe(noise_bursts(2, seed=0), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        trained_table(added=WORDS),
        trained_table(first=True, size=2_000),
        trained_table(languages=(), tasks=(), marks=(), stamps=0),
    ],
)
def test_all_of_transcribe_works(tmp_path: Path, table: Table) -> None:
    """Beams, samples, words, prompts, and detection with what there is."""
    model = slimwhisper.load_model(hf_folder(tmp_path / "model", table), device="cpu")
    audio = noise_bursts(35, seed=1)
    for options in (
        {"word_timestamps": True},
        {"beam_size": 3},
        {"temperature": 0.7, "best_of": 2},
    ):
        found = model.transcribe(audio, sample_len=5, no_speech_threshold=None, **options)
        assert found["text"]
        assert found["language"] in ("en", "de", "xx")
        tokens = [t for s in found["segments"] for t in s["tokens"]]
        assert all(0 <= t < table.n_vocab for t in tokens)
    code, probabilities = model.detect_language(audio)
    assert probabilities[code] == max(probabilities.values())


def test_a_pattern_that_backtracks_without_end_is_an_error(tmp_path: Path) -> None:
    """`tokenizers` gives up after a moment, with a panic, which ends a program of no care."""
    folder, content = hf_folder(tmp_path / "model", TABLE), TABLE.content()
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
    steps = [split | {"invert": False}, content["pre_tokenizer"]]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = vocabulary(folder).tokenizer()
    assert tokenizer.encode(" aaa")
    with pytest.raises(CheckpointError, match=r"tokenizer fails: .*correct the patterns"):
        tokenizer.encode(f"{'a' * 60}!")


FILE, WHOLE = "tokenizer.json", json.dumps(TABLE.content())
GAP = TABLE.content()
GAP["added_tokens"][5]["id"] += 3_000


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (d.cut(FILE, 5_000), "cannot be read as JSON"),
        (d.write(FILE, "{}"), "not a tokenizer"),
        (d.write(FILE, WHOLE.replace('"type": "ByteLevel"', '"type": "Other"')), "cannot be read"),
        (d.write(FILE, json.dumps(GAP)), "copy the tokenizer"),
        (trained_table(added=WORDS).save, "copy the tokenizer"),
        (d.remove(FILE), "no tokenizer.json"),
    ],
)
def test_damage_costs_one_line(tmp_path: Path, damage: d.Damage, expected: str) -> None:
    folder = hf_folder(tmp_path / "model", TABLE)
    damage(folder)
    message = refusal(folder)
    assert expected in message and str(folder) in message
