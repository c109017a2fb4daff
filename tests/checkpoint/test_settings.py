"""The settings and the tokens that came with a model: followed, shown, or refused in one line."""

import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import whisper
from hypothesis import given
from hypothesis import strategies as st

import slimwhisper
from slimwhisper import cli
from slimwhisper.checkpoint.load import GenerationSettings, default_heads, parse_head_dump
from slimwhisper.commands.convert import convert
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.errors import CheckpointError, OptionError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.formats.names import ALIGNMENT_DUMPS
from slimwhisper.formats.settings import parse_head_pairs
from slimwhisper.longform.requests import make_rules
from slimwhisper.model.model import Model
from slimwhisper.options import Options
from slimwhisper.tokens.vocabulary import Vocabulary, get_tokenizer, get_vocabulary, is_openai_table
from slimwhisper.types import Dims
from tests.support import damage as d
from tests.support.checkpoints import DIMS, random_state, refusal, save_hf, save_openai, tiny_dims
from tests.support.fuzz import examples
from tests.support.hf_folders import MARKS, STAMPS, Table, hf_folder, trained_table, whisper_table
from tests.support.scripted import TEXTS
from tests.support.sounds import noise_bursts

TABLE = trained_table()
IDS = TABLE.ids


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"language": "German"}, {"language": "German"}),
        ({"language": "<|xx|>"}, {"language": "xx"}),
        ({"task": "translate"}, {"task": "translate"}),
        ({"max_initial_timestamp_index": 5}, {"max_initial_timestamp": 0.1}),
        ({"max_length": 9}, {"sample_len": 9}),
        ({"audio_window": "auto"}, {"audio_window": "auto"}),
        (
            {"forced_decoder_ids": [[1, IDS["<|de|>"]], [2, IDS["<|translate|>"]]]},
            {"language": "de", "task": "translate"},
        ),
        ({"forced_decoder_ids": [[1, None], [2, IDS["<|transcribe|>"]]]}, {}),
        # as in transformers
        ({"forced_decoder_ids": [[1, IDS["<|de|>"]]], "task": "transcribe"}, {}),
        ({"return_timestamps": False}, {}),
    ],
)
def test_settings_are_the_defaults(
    tmp_path: Path, generation: dict[str, Any], expected: dict[str, Any]
) -> None:
    folder = hf_folder(tmp_path / "model", TABLE, generation=generation)
    model = slimwhisper.load_model(folder, device="cpu")
    assert model.make_options() == Options(**expected)  # type: ignore[arg-type]
    given = {"language": None, "task": "transcribe", "sample_len": 4, "max_initial_timestamp": 2.0}
    given["audio_window"] = "full"
    assert model.make_options(**given) == Options(**given)  # type: ignore[arg-type]
    assert len(model.settings) == len(expected)
    assert model.transcribe(noise_bursts(3, seed=0), sample_len=3)["language"]


def test_lists_of_tokens(tmp_path: Path) -> None:
    lists = {"suppress_tokens": [3, 1, 9_999, -1], "begin_suppress_tokens": []}
    found = load_checkpoint(hf_folder(tmp_path / "model", TABLE, generation=lists))
    rules = make_rules(found.dims, Options(), found.tokens)
    assert (rules.suppress.tolist(), rules.suppress_first.tolist()) == ([1, 3], [])
    rules = make_rules(found.dims, Options(suppress_tokens="-1,7"), found.tokens)
    assert rules.suppress.tolist() == [7, 1, 3]
    assert not len(make_rules(found.dims, Options(suppress_tokens=""), found.tokens).suppress)


def test_what_is_not_followed_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    generation = {"num_beams": 5, "forced_decoder_ids": [[1, 7]]}
    load_checkpoint(hf_folder(tmp_path / "model", TABLE, generation=generation))
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 2
    assert all("not followed" in line and "generation_config.json" in line for line in lines)


def test_config_is_read_where_there_is_no_generation_config(tmp_path: Path) -> None:
    config = {"suppress_tokens": [5], "forced_decoder_ids": [[1, IDS["<|de|>"]]]}
    whole = hf_folder(tmp_path / "whole", TABLE, config=config)
    old = hf_folder(tmp_path / "old", TABLE, config=config, without=("generation_config.json",))
    assert load_checkpoint(whole).settings.language is None
    assert load_checkpoint(old).settings.language == "de"
    assert load_checkpoint(old).tokens.suppressed == (5,)


REFUSED = tomllib.loads(Path(__file__).with_name("settings.toml").read_text())["refused"]


@pytest.mark.parametrize(("file", "key", "value"), REFUSED)
def test_values_that_cannot_be_used(tmp_path: Path, file: str, key: str, value: Any) -> None:
    message = refusal(hf_folder(tmp_path / "model", TABLE, **{file: {key: value}}))
    assert key in message and file in message


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON |= st.lists(JSON, max_size=3) | st.dictionaries(st.text(max_size=5), JSON, max_size=3)
NAMES = [f.name for f in fields(GenerationSettings)] + ["forced_decoder_ids", "num_beams"]


@pytest.fixture(scope="module")
def any_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_folder(tmp_path_factory.mktemp("any") / "model", TABLE)


@examples(60)
@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3))
def test_any_settings_are_read_or_refused(any_folder: Path, generation: dict[str, Any]) -> None:
    """Of any kind, in one line that names the file."""
    (any_folder / "generation_config.json").write_text(json.dumps(generation))
    try:
        load_checkpoint(any_folder)
    except CheckpointError as error:
        assert str(any_folder) in str(error) and str(error).isprintable()


@pytest.mark.slow
def test_audio_window_in_every_format(tmp_path: Path) -> None:
    """In either file of a folder, in a .pt file, and kept by `convert`."""
    folder = hf_folder(tmp_path / "model", TABLE, config={"audio_window": "auto"})
    assert load_checkpoint(folder).settings.audio_window == "auto"
    state = random_state(DIMS, seed=2)
    paths = [save_openai(tmp_path / f"{i}.pt", DIMS, state) for i in range(2)]
    content = torch.load(paths[1], weights_only=True)
    torch.save(content | {"audio_window": "auto"}, paths[1])
    for path, setting in zip(paths, (None, "auto"), strict=True):
        assert load_checkpoint(path).settings.audio_window == setting
        converted = convert(path, tmp_path / f"{path.stem}-folder").path
        assert load_checkpoint(converted).settings.audio_window == setting
        again = convert(converted, tmp_path / f"again-{path.name}")
        assert load_checkpoint(again.path).settings.audio_window == setting
        assert "audio_window" not in again.dropped
    torch.save(content | {"audio_window": 10}, paths[1])
    assert "audio_window is 10" in refusal(paths[1])


def test_audio_window_may_be_chosen(tmp_path: Path) -> None:
    """But approximate caches hold whole windows."""
    folder = hf_folder(tmp_path / "model", TABLE, config={"audio_window": "auto"})
    assert load_checkpoint("digits").settings.audio_window == "auto", "the bundled model"
    for window in ("auto", "near", "full"):
        model = slimwhisper.load_model(folder, device="cpu", audio_window=window)
        assert model.make_options().audio_window == window
    with pytest.raises(OptionError, match="audio_window 'short' is not one of auto, near"):
        slimwhisper.load_model(folder, device="cpu", audio_window="short")
    model = slimwhisper.load_model(folder, device="cpu", cross_cache="sparq:r=4,k=16")
    assert model.make_options().audio_window is None
    for ask in (
        lambda: model.transcribe(noise_bursts(1, 0), audio_window="auto"),
        lambda: slimwhisper.load_model(folder, cross_cache="sparq:r=4,k=16", audio_window="auto"),
    ):
        with pytest.raises(OptionError, match="audio_window auto: not with cross_cache sparq"):
            ask()


def test_report_and_transcribe_show_them(tmp_path: Path, capsys: Any) -> None:
    generation = {"language": "de", "suppress_tokens": [1, 2], "return_timestamps": False}
    folder = hf_folder(tmp_path / "model", TABLE, generation=generation)
    assert cli.main(["report", str(folder), "--json"]) == 0
    rows = {r["name"]: r for r in json.loads(capsys.readouterr().out)[0]["settings"]}
    assert (rows["language"]["value"], rows["language"]["flag"]) == ("de", "--language")
    assert not rows["return_timestamps"]["followed"]
    assert cli.main(["report", str(folder)]) == 0
    assert "--suppress_tokens" in capsys.readouterr().out
    suppressed, language = slimwhisper.load_model(folder, device="cpu").settings
    assert "suppress_tokens" in suppressed and "--language overrides it" in language


# Which heads words' times are read from


def as_whisper(dims: Dims, dump: bytes | None) -> dict[int, list[int]]:
    """The heads that openai-whisper's model holds."""
    heads, layers = dims.n_text_head, dims.n_text_layer
    small = whisper.model.ModelDimensions(80, 4, 8, 1, 1, 10, 4, 4 * heads, heads, layers)
    model = whisper.model.Whisper(small)
    if dump is not None:
        model.set_alignment_heads(dump)
    found: dict[int, list[int]] = {}
    for layer, head in model.alignment_heads.coalesce().indices().T.tolist():
        found.setdefault(layer, []).append(head)
    return found


def plain(heads) -> dict[int, list[int]]:
    return {layer: list(own) for layer, own in heads.items()}


@pytest.mark.parametrize("name", ["tiny", "base.en", "large-v3", "turbo"])
def test_official_heads(name: str) -> None:
    dims = OFFICIAL_DIMS[name]
    heads = parse_head_dump(ALIGNMENT_DUMPS[name], dims)
    assert plain(heads) == as_whisper(dims, whisper._ALIGNMENT_HEADS[name])


def test_unknown_weights_use_the_upper_half() -> None:
    dims = replace(OFFICIAL_DIMS["tiny"], n_text_layer=5, n_text_head=2)
    assert plain(default_heads(dims)) == as_whisper(dims, None) == {2: [0, 1], 3: [0, 1], 4: [0, 1]}


def test_heads_of_a_folder() -> None:
    dims = OFFICIAL_DIMS["tiny"]
    assert parse_head_pairs([[3, 5], [1, 2], [3, 0]], dims) == {1: [2], 3: [0, 5]}
    for wrong in (None, [], [[4, 0]], [[float("inf"), 0]], 3):
        assert parse_head_pairs(wrong, dims) is None


def test_checkpoints_bring_their_heads(tmp_path: Path) -> None:
    dims = tiny_dims(width=64, heads=2, multilingual=False)
    state = random_state(dims, seed=0)
    folder = save_hf(tmp_path / "model", dims, state)
    (folder / "generation_config.json").write_text('{"alignment_heads": [[0, 1]]}')
    file = save_openai(tmp_path / "model.pt", dims, state)
    for path, expected in ((folder, {0: [1]}), (file, plain(default_heads(dims)))):
        model = Model(load_checkpoint(path), torch.device("cpu"), torch.float32)
        assert plain(model.alignment_heads) == expected


# The vocabulary and the tokenizer of a folder; what it lacks, and what is damaged


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
