"""The back end `embedding` on made-up voices: turns, changes at pauses, and names."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from slimwhisper.audio.samples import ArraySamples
from slimwhisper.errors import AudioError
from slimwhisper.options import Options
from slimwhisper.speakers import embedding
from slimwhisper.speakers.diarize import find_speakers, prepare
from slimwhisper.speakers.embedding import FIELD, FRAME, FRAMES, find_centres, find_turns, unit
from slimwhisper.speakers.known import name_known
from tests.support.voices import BandSegmentation, sound

pytestmark = pytest.mark.usefixtures("made_up_voices")

ANY = 1, 20  # speakers
SAID = [(0, 0.5, 4.5), (2, 5.5, 9.0), (0, 10.0, 13.0), (4, 14.0, 17.0), (2, 18.0, 21.0)]
NAMES = {0: "SPEAKER_00", 2: "SPEAKER_01", 4: "SPEAKER_02"}


def conversation() -> ArraySamples:
    return ArraySamples(sound(SAID, 22.0))


@pytest.mark.parametrize("between", [ANY, (3, 3)])
def test_who_speaks_when(between: tuple[int, int]) -> None:
    turns = find_turns(conversation(), between)
    assert [t.speaker for t in turns] == [NAMES[voice] for voice, _, _ in SAID]
    for turn, (_, start, end) in zip(turns, SAID, strict=True):
        assert (turn.start, turn.end) == pytest.approx((start, end), abs=0.05)


def test_one_person_of_the_network_may_be_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their pieces have voices of their own."""

    class AsOne(BandSegmentation):
        def __call__(self, audio: np.ndarray) -> np.ndarray:
            any_of_them = super().__call__(audio).max(axis=1, keepdims=True)
            return any_of_them * np.eye(1, 3, dtype=np.float32)

    monkeypatch.setattr("slimwhisper.speakers.embedding.load_segmentation", AsOne)
    test_who_speaks_when(ANY)


def test_two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network hears both; neither voice is told by what they say together."""
    said = [(0, 0.5, 6.0), (3, 4.0, 9.5)]

    class Both:
        def __call__(self, audio: np.ndarray) -> np.ndarray:
            times = (np.arange(FRAMES) * FRAME + FIELD / 2) / 16_000
            return np.stack([(a < times) & (times < b) for _, a, b in [*said, (0, 9, 0)]], 1) * 1.0

    monkeypatch.setattr("slimwhisper.speakers.embedding.load_segmentation", Both)
    turns = find_turns(ArraySamples(sound(said, 10.0)), ANY)
    assert [t.speaker for t in turns] == ["SPEAKER_00", "SPEAKER_01"]
    for turn, (_, start, end) in zip(turns, said, strict=True):
        assert (turn.start, turn.end) == pytest.approx((start, end), abs=0.05)


def test_short_silent_and_empty_recordings() -> None:
    assert find_turns(ArraySamples(np.zeros(0, np.float32)), ANY) == []
    assert find_turns(ArraySamples(np.zeros(160_000, np.float32)), (2, 2)) == []
    (turn,) = find_turns(ArraySamples(sound([(1, 0.2, 0.5)], 0.8)), (2, 2))
    assert (turn.speaker, round(turn.end, 1)) == ("SPEAKER_00", 0.5)


def test_known_speakers_have_their_names(references: dict[str, str]) -> None:
    options = Options(diarize="embedding", known_speakers=tuple(references.items()))
    prepare(options)
    turns = find_speakers(conversation(), options)
    expected = {0: "SPEAKER_00", 2: "Zoë", 4: "SPEAKER_01"}
    assert [t.speaker for t in turns] == [expected[voice] for voice, _, _ in SAID]


def test_a_name_is_given_once(references: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    turns = find_turns(conversation(), ANY)
    twice = [("Zoë", references["Zoë"]), ("Twin", references["Zoë"])]
    named = name_known(conversation(), turns, twice)
    assert len({t.speaker for t in named} & {"Zoë", "Twin"}) == 1
    assert len({t.speaker for t in named}) == 3
    assert name_known(conversation(), [], twice) == []
    others = [turn for turn in turns if turn.speaker != "SPEAKER_01"]  # Zoë's, by first speech
    assert all(t.speaker[:9] == "SPEAKER_0" for t in name_known(conversation(), others, twice))
    assert "close to that of Zoë or Twin" in caplog.text


def test_a_reference_without_speech(tmp_path: Path) -> None:
    path = tmp_path / "silent.wav"
    soundfile.write(path, np.zeros(32_000), 16_000)
    options = Options(diarize="embedding", known_speakers=(("Ann", str(path)),))
    with pytest.raises(AudioError, match=r"silent\.wav: has no speech; give a few seconds"):
        prepare(options)
    soundfile.write(path, sound([(2, 0.5, 4.0)], 5.0), 16_000)
    prepare(options)  # it was read anew


# Voices told apart, on embeddings made for it

pytest.importorskip("scipy", reason="the extra `diarize`, or `dev`, has scipy")


def voices(sizes: list[int]) -> np.ndarray:
    """Unit vectors [sum, 64] around orthogonal voices, one voice after the other."""
    middles = np.eye(64)[np.repeat(np.arange(len(sizes)), sizes)]
    return unit(middles + 0.05 * np.random.default_rng(0).standard_normal(middles.shape))


def centres(sizes: list[int], between: tuple[int, int] = (1, 20)) -> np.ndarray:
    vectors = voices(sizes)
    return find_centres(vectors, np.ones(len(vectors), np.float32), between)


@pytest.mark.parametrize("sizes", [[1], [40], [30, 30], [80, 9], [20, 25, 30], [12] * 8])
def test_the_number_and_the_voices_are_found(sizes: list[int]) -> None:
    found = centres(sizes)
    assert found.shape == (len(sizes), 64)
    nearest = (voices(sizes) @ found.T).argmax(axis=1)
    pairs = zip(nearest.tolist(), np.repeat(range(len(sizes)), sizes), strict=True)
    assert len(set(pairs)) == len(sizes)


def test_stray_many_and_few_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(centres([60, 60, 1])) == 2, "a stray one is no speaker"
    assert len(centres([60, 60, 1], (3, 3))) == 3, "but where three are known"
    assert [len(centres([30, 30], (n, n))) for n in (3, 1)] == [3, 1]
    assert len(centres([1], (4, 4))) == 1
    assert [len(centres([30, 30, 30], b)) for b in ((1, 2), (4, 9), (2, 4))] == [2, 4, 3]
    assert len(centres([3] * 30)) <= embedding.MOST_SPEAKERS
    monkeypatch.setattr(embedding, "MAX_LINKED", 50)
    assert len(centres([300, 200, 100])) == 3, "many are counted by a part"


def test_weights() -> None:
    """A heavy embedding counts for more, in the centre and in whether a voice is counted."""
    assert len(find_centres(voices([1, 60, 60]), np.array([20] + 120 * [1], "f4"), (1, 20))) == 3


def test_a_voice_has_one_centre_though_some_are_far_apart() -> None:
    angles = np.radians([0, 40, 78])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert len(find_centres(vectors, np.array([3, 94, 3], "f4"), (1, 20))) == 1
