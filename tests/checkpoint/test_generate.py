"""Greedy windows of constructed folders say what transformers' `generate` says, in float32."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from whisper.tokenizer import TO_LANGUAGE_CODE

import slimwhisper
from slimwhisper.audio.mel import first_window
from tests.support.hf_folders import MARKS, Table, dims_of, hf_folder, trained_table, whisper_table
from tests.support.oracle import first_window_of, transformers
from tests.support.sounds import noise_bursts

pytestmark = pytest.mark.slow  # importing transformers takes longer than the tests
TOKENS = 16  # of a window
PLAIN: dict[str, Any] = {"suppress_tokens": [], "begin_suppress_tokens": []}
CODES = "".join(chr(c) for c in range(97, 123))


@dataclass(frozen=True)
class Case:
    """A folder, and how both decode with it."""

    table: Callable[[], Table]
    generation: dict[str, Any] = field(default_factory=dict)
    ask: dict[str, Any] = field(default_factory=dict)  # of `generate`: language, task
    timestamps: bool = False
    folder: dict[str, Any] = field(default_factory=dict)  # of `hf_folder`
    length: int | None = TOKENS  # None: as the settings say


def small(**changes: Any) -> Callable[[], Table]:
    return lambda: trained_table(**changes)


def whole(size: int, **changes: Any) -> Callable[[], Table]:
    return lambda: whisper_table(size, **changes)


EN = {"language": "en", "task": "transcribe"}
ENGLISH = small(languages=(), tasks=())
ADDED = tuple(f" word{letter}" for letter in CODES) + tuple(f"nine{i}" for i in range(9))
# an English-only model's
SINGLE = {"is_multilingual": False, "lang_to_id": None, "task_to_id": None}
CASES: dict[str, Case] = {
    # vocabularies
    "51,864": Case(whole(51_864), SINGLE),
    "51,865, timestamps": Case(whole(51_865), ask=EN, timestamps=True),
    "51,866, 128 bands": Case(whole(51_866), ask=EN),
    "small, timestamps": Case(small(), ask=EN, timestamps=True),
    "words behind": Case(small(added=ADDED), ask=EN),
    "pieces, timestamps": Case(small(pieces=True), ask=EN, timestamps=True),
    "no timestamps, no <|notimestamps|>": Case(small(stamps=0, marks=MARKS[:3]), ask=EN),
    "no languages": Case(ENGLISH),
    "no <|nospeech|>": Case(small(marks=(*MARKS[:2], MARKS[3])), ask=EN, timestamps=True),
    "a language of one's own": Case(small(), ask={"language": "<|xx|>", "task": "transcribe"}),
    # settings
    "suppress_tokens, timestamps": Case(
        small(), {"suppress_tokens": list(range(0, 320, 3))}, EN, True
    ),
    "begin_suppress_tokens": Case(small(), {"begin_suppress_tokens": list(range(300))}, EN),
    "forced_decoder_ids": Case(small(), {"forced_decoder_ids": [[1, 323], [2, 325]]}),
    "forced_decoder_ids, detected": Case(small(), {"forced_decoder_ids": [[1, None], [2, 326]]}),
    "lang_to_id of two": Case(
        small(), {"lang_to_id": {"<|de|>": 323, "<|xx|>": 324}, "task": "transcribe"}
    ),
    "no_timestamps_token_id": Case(small(), {"no_timestamps_token_id": 327}, EN),
    "max_initial_timestamp_index": Case(small(), {"max_initial_timestamp_index": 3}, EN, True),
    "max_length": Case(small(), {"max_length": 9}, EN, length=None),
    "is_multilingual": Case(small(), SINGLE),
    "eos_token_id": Case(small(), {"eos_token_id": 100}, EN),
    "decoder_start_token_id": Case(small(), {"decoder_start_token_id": 5}, EN),
    "no generation_config.json": Case(
        small(languages=(), tasks=(), marks=MARKS[:3], stamps=0),
        folder={"without": ("generation_config.json",)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_windows_are_those_of_generate(name: str, tmp_path: Path) -> None:
    case, theirs = CASES[name], transformers()
    table = case.table()
    bands = 128 if "128" in name else 80
    dims = dims_of(table, n_mels=bands)
    silent = {} if "generation_config.json" in case.folder.get("without", ()) else PLAIN
    folder = hf_folder(
        tmp_path / "model", table, generation=silent | case.generation, dims=dims, **case.folder
    )
    reference = theirs.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    kind = theirs.PreTrainedTokenizerFast if table.pieces else theirs.WhisperTokenizer
    tokenizer = kind.from_pretrained(folder)
    model = slimwhisper.load_model(folder, device="cpu", dtype="float32")
    network = model.network
    options = dict(case.ask)
    if case.length is not None:
        options["sample_len"] = case.length
    if "max_initial_timestamp_index" not in case.generation:
        options["max_initial_timestamp"] = None
    if network.settings.suppress_tokens is None:
        options |= {"suppress_tokens": "", "suppress_blank": False}
    asked = case.ask | ({} if case.length is None else {"max_new_tokens": case.length + 1})
    for seed in range(2):
        mel = first_window(noise_bursts(5, seed=seed), bands)
        expected = first_window_of(
            reference, mel, case.length, return_timestamps=case.timestamps, **asked
        )
        found = model.decode(mel, without_timestamps=not case.timestamps, **options)
        assert not isinstance(found, list)
        chosen = model.make_options(without_timestamps=not case.timestamps, **options)
        code = found.language.strip("<|>")
        voice = network.vocabulary.tokenizer(TO_LANGUAGE_CODE.get(code, code), chosen.task)
        sot = voice.sot_sequence if case.timestamps else voice.sot_sequence_including_notimestamps
        assert list(sot) == expected.prompt
        last = found.tokens[len(expected.tokens) :]
        assert found.tokens[: len(expected.tokens)] == expected.tokens
        assert len(last) <= (case.length is None), "the last one of max_length is not seen"
        assert case.length is None or expected.ended == (len(found.tokens) < case.length)
        spoken = [t for t in found.tokens if t not in network.vocabulary.timestamps]
        text = tokenizer.decode(spoken, skip_special_tokens=True)
        assert found.text == text.strip()
        assert len(set(found.tokens)) > 2
