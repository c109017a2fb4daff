"""Transcripts of real speech by a trained checkpoint, equal to `whisper.transcribe`'s."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whisper
from parity import differences, transcribe_each, whisper_transcribe

import slimwhisper
from slimwhisper.cache.plan import PRESETS

SILENT = ("silence, 3 s", "silence, 30 s", "silence, 45 s")  # of 0.5 s the probe makes a word
WORDS = "zero one two three four five six seven eight nine".split()


def held_out(folder: Path) -> list[Path]:
    """Recordings 0 to 4 of each digit and speaker: by its convention the test set."""
    return sorted(p for p in folder.glob("fsdd/*.wav") if int(p.stem.split("_")[2]) <= 4)


def joined(parts: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Recordings one after the other with pauses of 0.1 to 0.8 s."""
    pieces = []
    for part in parts:
        pieces += [np.zeros(int(rng.uniform(0.1, 0.8) * 16_000), np.float32), part]
    return np.concatenate(pieces)


class Corpus:
    """At least 100 recordings: single digits, sequences, long files, silence, noise, jfk.flac."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        paths = held_out(folder)
        single = [slimwhisper.load_audio(p) for p in paths]
        digits = [int(p.stem.split("_")[0]) for p in paths]
        speakers = sorted({p.stem.split("_")[1] for p in paths})
        self.names: list[str] = []
        self.audio: list[np.ndarray] = []
        self.words: list[list[str] | None] = []

        def add(name: str, audio: np.ndarray, words: list[int] | None) -> None:
            self.names.append(name)
            self.audio.append(audio.astype(np.float32))
            self.words.append(None if words is None else [WORDS[d] for d in words])

        for i in range(0, len(paths), 4):
            add(paths[i].stem, single[i], [digits[i]])
        for count in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12) * 3:
            speaker = speakers[rng.integers(len(speakers))]
            own = [i for i, p in enumerate(paths) if speaker in p.stem]
            chosen = rng.choice(own, size=count)
            add(
                f"sequence of {count}",
                joined([single[i] for i in chosen], rng),
                [digits[i] for i in chosen],
            )
        for count in (150, 180):
            chosen = rng.integers(len(paths), size=count)
            add(
                f"long, {count} words",
                joined([single[i] for i in chosen], rng),
                [digits[i] for i in chosen],
            )
        for seconds in (0.5, 3, 30, 45):
            add(f"silence, {seconds} s", np.zeros(int(16_000 * seconds)), [])
            add(f"noise, {seconds} s", 0.05 * rng.standard_normal(int(16_000 * seconds)), [])
        add("jfk", slimwhisper.load_audio(folder / "jfk.flac"), None)


@pytest.fixture(scope="module")
def corpus(speech_folder: Path) -> Corpus:
    return Corpus(speech_folder)


@pytest.fixture(scope="module")
def expected(corpus: Corpus, probe_path: Path) -> list[dict[str, Any]]:
    model = whisper.load_model(str(probe_path), device="cpu")
    return [whisper_transcribe(model, audio) for audio in corpus.audio]


def test_the_corpus_is_what_it_says(corpus: Corpus) -> None:
    assert len(corpus.audio) >= 100
    assert sum(len(a) > 120 * 16_000 for a in corpus.audio) >= 2
    assert {"jfk", "silence, 30 s", "noise, 30 s"} <= set(corpus.names)


@pytest.mark.parametrize("cache", PRESETS)
def test_every_preset_says_what_whisper_says(
    corpus: Corpus, expected: list[dict[str, Any]], probe_path: Path, cache: str
) -> None:
    model = slimwhisper.load_model(probe_path, "cpu", cache=cache)
    found = transcribe_each(model, corpus.audio, batch_size=16)
    for name, ours, theirs in zip(corpus.names, found, expected, strict=True):
        assert not differences(ours, theirs), name


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 5},
        {"beam_size": 3, "patience": 2.0, "length_penalty": 0.3, "initial_prompt": "one two"},
        {"clip_timestamps": "0.1,0.35", "without_timestamps": True, "prefix": "four"},
    ],
    ids=",".join,
)
def test_options_say_what_whisper_says(
    corpus: Corpus, probe_path: Path, options: dict[str, Any]
) -> None:
    # whisper loops for ever on a clip that ends beyond the recording
    chosen = [a for a in corpus.audio[::13] if len(a) > 0.4 * 16_000]
    theirs = whisper.load_model(str(probe_path), device="cpu")
    ours = slimwhisper.load_model(probe_path, "cpu")
    for audio, found in zip(chosen, transcribe_each(ours, chosen, **options), strict=True):
        assert not differences(found, whisper_transcribe(theirs, audio, **options))


def test_neighbours_order_and_batch_change_nothing(corpus: Corpus, probe_path: Path) -> None:
    """With the default ladder: some of these windows are decoded at higher temperatures."""
    model = slimwhisper.load_model(probe_path, "cpu")
    options: dict[str, Any] = {"temperature": (0.0, 0.2, 0.4), "best_of": 2, "sample_len": 30}
    order = np.random.default_rng(0).permutation(len(corpus.audio))[:40]
    alone = {i: model.transcribe(corpus.audio[i], **options) for i in order}
    hot = [s for r in alone.values() for s in r["segments"] if s["temperature"] > 0]
    assert hot, "something falls back"
    for batch_size in (3, 64):
        found = transcribe_each(
            model, [corpus.audio[i] for i in order], batch_size=batch_size, **options
        )
        for i, result in zip(order, found, strict=True):
            assert not differences(result, alone[i]), corpus.names[i]
        order = order[::-1]


@pytest.mark.parametrize(("cross", "own"), [("v", "v"), ("hybrid", "x")])
def test_the_other_forms_too(
    corpus: Corpus, expected: list[dict[str, Any]], probe_path: Path, cross: str, own: str
) -> None:
    model = slimwhisper.load_model(probe_path, "cpu", cross_cache=cross, self_cache=own)
    for i in range(0, len(corpus.audio), 6):
        found = model.transcribe(corpus.audio[i], temperature=0)
        assert not differences(found, expected[i]), corpus.names[i]


def word_errors(found: Sequence[str], true: Sequence[str]) -> int:
    """Levenshtein distance in words."""
    row = list(range(len(true) + 1))
    for i, word in enumerate(found, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(true, 1):
            best = min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
            diagonal, row[j] = row[j], best
    return row[-1]


def test_digit_error_rate(
    corpus: Corpus,
    expected: list[dict[str, Any]],
    probe_path: Path,
    speech_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The probe is rough; the rate is reported, and single digits must mostly be right."""
    paths = held_out(speech_folder)
    assert len(paths) == 250
    model = slimwhisper.load_model(probe_path, "cpu")
    texts = {path: result for path, result in model.transcribe_many(paths, temperature=0)}
    single = [0, len(paths)]
    for path in paths:
        result = texts[path]
        assert isinstance(result, slimwhisper.Transcript)
        words = re.findall(r"[a-z]+", result.text.lower())
        single[0] += word_errors(words, [WORDS[int(path.stem[0])]])
    sequences, loops = [0, 0], 0
    for name, true, found in zip(corpus.names, corpus.words, expected, strict=True):
        if true and name.startswith("sequence"):
            words = re.findall(r"[a-z]+", found["text"].lower())
            if len(words) > 100:  # the probe repeats a word to the end of its window
                loops += 1
                continue
            sequences[0] += word_errors(words, true)
            sequences[1] += len(true)
    with capsys.disabled():
        print(
            f"\ndigit error rate of the probe: single digits {single[0]}/{single[1]} = "
            f"{single[0] / single[1]:.1%}; sequences {sequences[0]}/{sequences[1]} = "
            f"{sequences[0] / sequences[1]:.1%}, and {loops} that loop"
        )
    assert single[0] / single[1] < 0.2
    silent = [r["text"] for n, r in zip(corpus.names, expected, strict=True) if n in SILENT]
    assert not "".join(silent).strip()


def test_half_precision_mostly_agrees(corpus: Corpus, probe_path: Path) -> None:
    """bfloat16 changes some words of so rough a model, but no more than openai-whisper's own."""
    wide = slimwhisper.load_model(probe_path, "cpu")
    for cache in ("slim", "baseline"):
        model = slimwhisper.load_model(probe_path, "cpu", dtype="bfloat16", cache=cache)
        same = sum(
            model.transcribe(a, temperature=0)["text"] == wide.transcribe(a, temperature=0)["text"]
            for a in corpus.audio[:40]
        )
        assert same >= 32


def test_results_do_not_depend_on_threads(corpus: Corpus, probe_path: Path) -> None:
    model = slimwhisper.load_model(probe_path, "cpu")
    before = torch.get_num_threads()
    audio = corpus.audio[-3]
    results = []
    try:
        for threads in (1, min(2, os.cpu_count() or 1)):
            torch.set_num_threads(threads)
            results.append(model.transcribe(audio, temperature=0))
    finally:
        torch.set_num_threads(before)
    assert not differences(results[0], results[1])
