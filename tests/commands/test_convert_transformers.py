"""A converted folder in `transformers`: the same tokens, texts and ids. Skipped without it."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import whisper

import slimwhisper
from slimwhisper.commands.convert import convert
from tests.support import oracle
from tests.support.checkpoints import random_state, save_openai, tiny_dims
from tests.support.paths import SAMPLES

pytestmark = pytest.mark.slow  # transformers takes 10 s to import

TEXTS = (
    *("Hello, world! It's 3.14 o'clock...\n\n  don't   you think? ", "Grüße aus „München“"),
    *("こんにちは、世界。今日は良い天気ですね", "Привет, мир! Как дела?", "مرحبا بالعالم ١٢٣"),
    *("你好，世界！", "안녕하세요 세계", "สวัสดีชาวโลก", "नमस्ते दुनिया"),
    "🎉👩‍👩‍👧‍👦\tnaïve\u00a0café \x07",
)
VOCABULARIES = {
    51_864: tiny_dims(width=8, multilingual=False, text_layers=1),
    51_865: tiny_dims(width=8, text_layers=1),
    51_866: tiny_dims(width=8, n_mels=128, text_layers=1),
}


@pytest.fixture(scope="module")
def transformers() -> Any:
    return oracle.transformers()


def random_texts() -> list[str]:
    """Letters of many scripts, digits, marks and spaces."""
    rng = Random(0)
    blocks = ((32, 127), (160, 0x530), (0x5D0, 0x700), (0x900, 0xA00), (0x3040, 0x9FFF), (32, 33))
    return ["".join(chr(rng.randrange(*rng.choice(blocks))) for _ in range(40)) for _ in range(200)]


@pytest.mark.parametrize("size", VOCABULARIES)
def test_the_tokenizer_is_openais(tmp_path: Path, transformers: Any, size: int) -> None:
    """Every single token, texts of several languages, and random texts; special tokens by name."""
    dims = VOCABULARIES[size]
    source = save_openai(tmp_path / "in.pt", dims, random_state(dims, seed=1))
    made = convert(str(source), tmp_path / "m").path
    theirs = transformers.WhisperProcessor.from_pretrained(made).tokenizer
    ours = whisper.tokenizer.get_tokenizer(size != 51_864, num_languages=99 + (size == 51_866))
    assert len(theirs) == size
    for i in range(ours.eot):
        assert theirs.decode([i]) == ours.encoding.decode([i]), i
    for token, i in ours.special_tokens.items():
        assert theirs.convert_tokens_to_ids(token) == i
    for text in (*TEXTS, *random_texts()):
        ids = ours.encode(text)
        assert theirs.encode(text, add_special_tokens=False) == ids, text
        assert theirs.decode(ids) == text
    state = transformers.WhisperForConditionalGeneration.from_pretrained(made).state_dict()
    expected = random_state(dims, seed=1)["decoder.token_embedding.weight"]
    assert torch.equal(state["proj_out.weight"], expected)


@pytest.mark.parametrize("timestamps", [True, False])
def test_digits_says_the_same_words(tmp_path: Path, transformers: Any, timestamps: bool) -> None:
    """Greedy windows in float32, with the folder's own settings: the same tokens, and the text."""
    made = convert("digits", tmp_path / "digits").path
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(made, dtype=torch.float32)
    processor = transformers.WhisperProcessor.from_pretrained(made)
    ours = slimwhisper.load_model("digits", "cpu", dtype="float32")
    options = slimwhisper.DecodingOptions(
        language="en", temperature=0, without_timestamps=not timestamps
    )
    for name in ("phone-number.wav", "countdown.flac", "parcel.ogg"):
        audio = slimwhisper.pad_or_trim(slimwhisper.load_audio(str(SAMPLES / name)))
        made_of = processor(audio, sampling_rate=16_000, return_tensors="pt").input_features
        found = theirs.generate(made_of, return_timestamps=timestamps)[0].tolist()
        expected = slimwhisper.decode(ours, made_of[0], options)
        assert found == expected.tokens and len(found) > 8, name
        assert processor.decode(found, skip_special_tokens=True).strip() == expected.text
