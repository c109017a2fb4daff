"""Transcripts equal to `whisper.transcribe`'s on random checkpoints, which need no file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whisper

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.cache.forms import PRESETS
from tests.support.checkpoints import random_state, save_openai, tiny_dims
from tests.support.marks import slow
from tests.support.parity import differences, whisper_transcribe
from tests.support.reference import set_spectrum
from tests.support.sounds import noise_bursts

RECORDINGS = [noise_bursts(7, 1), noise_bursts(61.3, 3)]
# several at once where none hides another; the first ones are quick
QUICK: list[dict[str, Any]] = [
    {"initial_prompt": "So", "carry_initial_prompt": True, "condition_on_previous_text": False},
    {"no_speech_threshold": 0.0, "logprob_threshold": None},
    {"clip_timestamps": "1,9.5,20,41"},
    {"beam_size": 5, "patience": 2.0, "length_penalty": 0.5, "sample_len": 12},
    {"word_timestamps": True, "hallucination_silence_threshold": 1.0, "sample_len": 25},
]
BEAMS_AND_WORDS: dict[str, Any] = {"word_timestamps": True, "beam_size": 2, "sample_len": 30}
BEAMS_AND_WORDS |= {"prepend_punctuations": "", "append_punctuations": "a!"}
BEAMS_AND_WORDS["initial_prompt"] = "Words."
SLOW: list[dict[str, Any]] = [
    {},
    BEAMS_AND_WORDS,
    {"condition_on_previous_text": False, "suppress_blank": False, "suppress_tokens": None},
    {"suppress_tokens": "-1,300,301", "max_initial_timestamp": 5.0, "no_speech_threshold": None},
    {"max_initial_timestamp": None, "task": "translate", "sample_len": 60},
    {"beam_size": 4, "patience": 0.5, "without_timestamps": True, "sample_len": 25},
    # in whisper, the language is that of the first 30 s, which are left out
    {"clip_timestamps": [30.0, 12.0, 45.5], "prefix": "So", "beam_size": 2, "sample_len": 30}
    | {"language": "en"},
    # the whole ladder, of which temperature 0 is good enough
    {
        "temperature": (0.0, 0.4, 1.0),
        "logprob_threshold": None,
        "compression_ratio_threshold": None,
    },
]


def transcribe(model: SlimWhisper, audio: np.ndarray, **options: Any) -> dict[str, Any]:
    return model.transcribe(audio, **{"temperature": 0, **options})


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, random_paths: dict[str, Path]) -> tuple[Any, SlimWhisper]:
    """(openai-whisper's model, ours) of one checkpoint, the multilingual one unless told."""
    path = random_paths[getattr(request, "param", "multilingual")]
    return whisper.load_model(str(path), device="cpu"), slimwhisper.load_model(path, "cpu")


@pytest.mark.parametrize(
    ("pair", "options"),
    [
        *(("multilingual", options) for options in QUICK),
        *slow(*(("multilingual", options) for options in SLOW), ("english", BEAMS_AND_WORDS)),
    ],
    indirect=["pair"],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "defaults",
)
def test_options(pair: tuple[Any, SlimWhisper], options: dict[str, Any]) -> None:
    theirs, ours = pair
    audio = RECORDINGS[1][: 46 * 16_000]  # two windows
    options = {"sample_len": 16, **options} if options else options
    expected = whisper_transcribe(theirs, audio, **options)
    assert not differences(transcribe(ours, audio, **options), expected)
    assert expected["segments"] or "no_speech_threshold" in options, "not of nothing"


@pytest.fixture(scope="module")
def well_conditioned(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[tuple[np.ndarray, dict[str, Any]]]]:
    """A checkpoint that every form is exact for, recordings and openai-whisper's results."""
    dims = tiny_dims(width=128, heads=2, multilingual=False)
    state = set_spectrum(random_state(dims, seed=5), dims, 3.0)
    path = save_openai(tmp_path_factory.mktemp("well") / "conditioned.pt", dims, state)
    theirs = whisper.load_model(str(path), device="cpu")
    return path, [(a, whisper_transcribe(theirs, a, sample_len=60)) for a in RECORDINGS]


@pytest.mark.slow
@pytest.mark.parametrize("forms", [*PRESETS.values(), ("v", "v"), ("hybrid", "x")], ids="+".join)
def test_every_form_says_the_same(
    well_conditioned: tuple[Path, list[tuple[np.ndarray, dict[str, Any]]]], forms: tuple[str, str]
) -> None:
    """Each one really runs."""
    path, expected = well_conditioned
    cross, own = forms
    ours = slimwhisper.load_model(path, "cpu", cross_cache=cross, self_cache=own)
    assert not ours.fallbacks
    for audio, result in expected:
        assert not differences(transcribe(ours, audio, sample_len=60), result)


@pytest.mark.slow
def test_a_recording_shorter_than_a_frame(pair: tuple[Any, SlimWhisper]) -> None:
    theirs, ours = pair
    for audio in (RECORDINGS[0][:100], RECORDINGS[0][:161]):
        assert not differences(transcribe(ours, audio), whisper_transcribe(theirs, audio))


def test_every_window_in_its_own_language(
    random_paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each window were a clip of its own, in the language that is heard there."""
    ours = slimwhisper.load_model(random_paths["multilingual"], "cpu")
    audio = np.concatenate([noise_bursts(30, 40 + i) * 10**i for i in range(3)]) / 100
    stamps = tuple(range(50_364, 51_865))  # without them all windows are of 30 s
    options: dict[str, Any] = {"without_timestamps": True, "suppress_tokens": stamps}
    options |= {"condition_on_previous_text": False, "sample_len": 12}
    encoded: list[int] = []
    network, encoder = ours.network, ours.network.encoder
    monkeypatch.setattr(network, "encoder", lambda mels: encoded.append(len(mels)) or encoder(mels))
    found = transcribe(ours, audio, multilingual=True, **options)
    assert sum(encoded) == 3  # each once, the first too
    assert [s["start"] for s in found["segments"]] == [0.0, 30.0, 60.0]
    mel = whisper.log_mel_spectrogram(audio, 80)
    languages = []
    for number, segment in enumerate(found["segments"]):
        window = mel[:, 3000 * number :][:, :3000]
        probs = ours.detect_language(window)[1]
        languages.append(max(probs, key=probs.__getitem__))
        clip = [30.0 * number, 30.0 * number + 30]
        alone = transcribe(ours, audio, language=languages[-1], clip_timestamps=clip, **options)
        assert alone["segments"][0]["tokens"] == segment["tokens"]
    assert found["language"] == languages[0]
    assert len(set(languages)) > 1
