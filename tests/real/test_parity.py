"""What OpenAI's own weights make of real speech, equal to `whisper.transcribe`'s."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import whisper

import slimwhisper
from slimwhisper.cache.forms import PRESETS
from slimwhisper.live.types import UtteranceEnded
from slimwhisper.types import SAMPLE_RATE
from tests.support.parity import differences, transcribe_each, whisper_transcribe
from tests.support.real_models import real_model

pytestmark = pytest.mark.slow

Recordings = dict[str, np.ndarray]
SHORT = ("LDC93S1", "bonjour_vous_allez_bien", "es-mx", "japanese", "ru", "spk1_snt1")
ENGLISH = ("LDC93S1", "jfk", "spk2_snt1", "whatstheweatherlike-mulaw", "wreck-a-nice-beach")
TIE = 1e-3  # of two logits: less than what rounding in float32 may make of equal ones


def different(model: Any, audio: np.ndarray, found: Any, expected: Any) -> list[str]:
    """The differences, but for texts that part at a near tie of the model in float64."""
    wrong = differences(found, expected)
    return [] if wrong and parts_at_a_tie(model, audio, found, expected) else wrong


def parts_at_a_tie(model: Any, audio: np.ndarray, found: Any, expected: Any) -> bool:
    """Whether the first window's tokens part where the two next ones are equally good."""
    ours, theirs = ([t for s in r["segments"] for t in s["tokens"]] for r in (found, expected))
    part = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if part is None or expected["language"] != found["language"] or found["segments"][0]["seek"]:
        return False
    tokenizer = whisper.tokenizer.get_tokenizer(
        model.is_multilingual, language=found["language"], task="transcribe"
    )
    exact = whisper.model.Whisper(model.dims).double()
    exact.load_state_dict(model.state_dict())
    mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(audio), model.dims.n_mels).double()
    tokens = torch.tensor([[*tokenizer.sot_sequence, *theirs[:part]]])
    with torch.inference_mode():
        logits = exact.logits(tokens, exact.embed_audio(mel[None]))[0, -1]
    return abs(float(logits[ours[part]] - logits[theirs[part]])) < TIE


def check(model: Any, found: list[Any], recordings: Recordings, names: Any, options: Any) -> None:
    """Compare each recording's result with openai-whisper's."""
    wrong = {}
    for name, result in zip(names, found, strict=True):
        audio = recordings[name]
        expected = whisper_transcribe(model, audio, **options)
        wrong[name] = different(model, audio, result, expected)
    assert not {name: what for name, what in wrong.items() if what}


def test_all_recordings_in_a_batch(recordings: Recordings, whispers: Callable[[str], Any]) -> None:
    ours = slimwhisper.load_model(real_model("base"), device="cpu")
    found = transcribe_each(ours, list(recordings.values()), batch_size=16)
    check(whispers("base"), found, recordings, recordings, {})
    assert len({result["language"] for result in found}) >= 7


@pytest.mark.parametrize(
    ("name", "names", "options"),
    [
        ("base", SHORT, {"beam_size": 5}),
        ("base", SHORT, {"word_timestamps": True}),
        ("base", SHORT[1:5], {"task": "translate"}),
        ("base", SHORT[1:5], {"language": "en", "initial_prompt": "Bonjour, Kitty."}),
        ("base", ("aboutSpeechSdk",), {"clip_timestamps": "0.5,9,14,30", "word_timestamps": True}),
        ("base", ("multilingual",), {"carry_initial_prompt": True, "initial_prompt": "Systran."}),
        ("tiny.en", ENGLISH, {}),
        ("tiny.en", ENGLISH, {"word_timestamps": True, "beam_size": 5}),
    ],
    ids=str,
)
def test_one_by_one(
    recordings: Recordings,
    whispers: Callable[[str], Any],
    name: str,
    names: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    ours = slimwhisper.load_model(real_model(name), device="cpu")
    if "word_timestamps" in options:
        ours.set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
    found = [ours.transcribe(recordings[n], temperature=0, **options) for n in names]
    check(whispers(name), found, recordings, names, options)


def test_every_exact_form(recordings: Recordings) -> None:
    """Each says what the baseline says; the guard refuses what this model's keys cannot carry."""
    audio = [recordings[n] for n in SHORT]
    folder = real_model("base")
    baseline = transcribe_each(
        slimwhisper.load_model(folder, device="cpu", cache="baseline"), audio
    )
    for preset in sorted(set(PRESETS) - {"baseline"}):
        model = slimwhisper.load_model(folder, device="cpu", cache=preset)
        found = transcribe_each(model, audio)
        wrong = [differences(a, b) for a, b in zip(found, baseline, strict=True)]
        assert not any(wrong), (preset, wrong)
    assert sum(map(len, audio)) > 20 * SAMPLE_RATE


def test_live_speech_right_after_a_sentence(recordings: Recordings) -> None:
    """base takes the sentence for the end of the text."""
    model = slimwhisper.load_model(real_model("base"), device="cpu", dtype="int8")
    sound = np.concatenate([recordings["LJ050-0131"], recordings["jfk"]])[99_200:204_800]
    events = model.live(np.array_split(sound, 200), language="en")
    ended = [event for event in events if isinstance(event, UtteranceEnded)]
    assert "regard. And so my fellow Americans" in ended[0].text
