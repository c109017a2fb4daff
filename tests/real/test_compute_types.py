"""Words that int8 and bfloat16 change, on each path that this processor has."""

from collections.abc import Iterator

import jiwer
import numpy as np
import pytest
from whisper.normalizers import EnglishTextNormalizer

import slimwhisper
from slimwhisper.kernels.cpu.library import library
from slimwhisper.kernels.linear import describe_paths
from tests.support.parity import transcribe_each
from tests.support.real_models import real_model

pytestmark = [
    pytest.mark.slow,
    # openai-whisper's normalizer leaves its file open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CLEAN = (
    *(f"spk{speaker}_snt{number}" for speaker in (1, 2) for number in range(1, 7)),
    *("LDC93S1", "LJ050-0131", "jfk", "aboutSpeechSdk", "enrollment_audio_katie", "katiesteve"),
    *("whatstheweatherlike-mulaw", "commercial_mono"),
)  # 20 recordings in English
MOST = {"int8": 0.006, "bfloat16": 0.013}  # of 493 words
# where more was measured, by path
MORE = {"int8 PyTorch": 0.011, "bfloat16 PyTorch": 0.027}


def texts(recordings: dict[str, np.ndarray], dtype: str) -> list[str]:
    model = slimwhisper.load_model(real_model("base"), device="cpu", dtype=dtype)
    found = transcribe_each(model, [recordings[n] for n in CLEAN], language="en")
    return [EnglishTextNormalizer()(r["text"]) for r in found]


@pytest.fixture(scope="module")
def exact(recordings: dict[str, np.ndarray]) -> list[str]:
    return texts(recordings, "float32")


@pytest.fixture(params=["C", "PyTorch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kernels in C, by the widest instructions that there are, or PyTorch's."""
    if request.param == "PyTorch":
        monkeypatch.setenv("SLIMWHISPER_KERNELS", "torch")
    library.cache_clear()
    assert ("float32 PyTorch" in describe_paths()) == (request.param == "PyTorch")
    yield request.param
    library.cache_clear()


@pytest.mark.parametrize("dtype", MOST)
def test_few_words_change(
    recordings: dict[str, np.ndarray], exact: list[str], path: str, dtype: str
) -> None:
    found = texts(recordings, dtype)
    assert sum(len(text.split()) for text in exact) > 450
    share = jiwer.wer(exact, found)
    (taken,) = (name for name in describe_paths().split(", ") if name.startswith(dtype))
    assert share <= MORE.get(taken, MOST[dtype]), (taken, share)
