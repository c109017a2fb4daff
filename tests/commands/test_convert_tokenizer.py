"""The tokenizer that `slimwhisper convert` writes is openai-whisper's, token by token."""

from pathlib import Path

import pytest
import whisper
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from slimwhisper.commands.conversion.convert import convert
from tests.support.checkpoints import DIMS, random_state, save_openai, tiny_dims
from tests.support.conversion import read

ENGLISH = tiny_dims(width=8, multilingual=False, audio_layers=1, text_layers=1)
LARGE = tiny_dims(width=8, n_mels=128, audio_layers=1, text_layers=1)


def test_tokenizer_of_three_vocabularies(tmp_path: Path, folder: Path) -> None:
    """Every token's text, and its id where a file names it, are openai-whisper's."""
    for dims, place in ((DIMS, folder), (LARGE, tmp_path / "large"), (ENGLISH, tmp_path / "en")):
        if place != folder:
            source = save_openai(tmp_path / "in.pt", dims, random_state(dims, seed=0))
            convert(str(source), place)
        multilingual = dims is not ENGLISH
        tokenizer = whisper.tokenizer.get_tokenizer(
            multilingual, num_languages=100 if dims is LARGE else 99
        )
        vocabulary, added = read(place / "vocab.json"), read(place / "added_tokens.json")
        assert sorted([*vocabulary.values(), *added.values()]) == list(range(dims.n_vocab))
        special = dict(tokenizer.special_tokens)
        assert vocabulary.pop("<|endoftext|>") == special.pop("<|endoftext|>")
        assert added == special
        letters = {v: k for k, v in _bytes_of_letters().items()}
        for i in range(0, tokenizer.eot, 7):
            text = tokenizer.encoding.decode_single_token_bytes(i)
            assert vocabulary["".join(letters[byte] for byte in text)] == i
        fast = read(place / "tokenizer.json")
        assert fast["model"]["vocab"] == read(place / "vocab.json")
        assert {t["content"]: t["id"] for t in fast["added_tokens"]} == {
            **special,
            "<|endoftext|>": tokenizer.eot,
        }
        timestamps = [t["content"] for t in fast["added_tokens"] if not t["special"]]
        assert timestamps == [f"<|{i * 0.02:.2f}|>" for i in range(1501)]


def _bytes_of_letters() -> dict[str, int]:
    """GPT-2's letters of the 256 bytes, by the rule of its own encoder."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(others)}


@pytest.mark.parametrize("old", [False, True])
def test_merges_encode_as_tiktoken_does(folder: Path, old: bool) -> None:
    """Words of several scripts, by `tokenizers` with the new file, and with the two older ones."""
    theirs = whisper.tokenizer.get_tokenizer(True, num_languages=99)
    files = [str(folder / name) for name in ("vocab.json", "merges.txt")]
    new = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = ByteLevelBPETokenizer.from_file(*files) if old else new
    for word in (" transcription", " Grüße", "こんにちは世界", " Привет", " สวัสดี", "🎉👩‍👧"):
        assert ours.encode(word, add_special_tokens=False).ids == theirs.encode(word)
