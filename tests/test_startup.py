"""What happens before the first text: which modules are imported, and what is copied or computed.

Nothing here is timed: docs/performance.md has times.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiktoken.core
import torch
import whisper
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.model.model import Model
from slimwhisper.tokens import whisper_package as openai_whisper
from slimwhisper.tokens.encoding import Encoding
from slimwhisper.tokens.vocabulary import get_tokenizer
from tests.support.checkpoints import DIMS, random_state, save_openai

SAMPLES = Path(__file__).parents[1] / "samples"
TRANSCRIBE = """
import gc, sys
from slimwhisper.cli import main
status = main(["transcribe", *sys.argv[1:], "--model", "digits", "--device", "cpu"])
print(status, gc.isenabled(), gc.get_freeze_count() > 100_000, *sys.modules)
"""
# None of them is needed to read a WAV, load a .pt file and decode: most take 0.1 s or more.
HEAVY = {
    *("numba", "llvmlite", "scipy", "whisper", "av", "torchaudio", "tokenizers", "fsspec"),
    *("huggingface_hub", "silero_vad", "onnxruntime", "sklearn", "pandas", "pyarrow", "matplotlib"),
    *("triton", "sympy", "torch._dynamo", "torch._inductor", "transformers", "rich", "gradio"),
    *("slimwhisper.app", "slimwhisper.live.listen", "slimwhisper.audio.ffmpeg"),
}


def test_imports_of_a_transcription(tmp_path: Path) -> None:
    """The command on one WAV, in a fresh interpreter."""
    command = [sys.executable, "-c", TRANSCRIBE, str(SAMPLES / "phone-number.wav")]
    done = subprocess.run(
        [*command, "-o", str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *text, last = done.stdout.splitlines()
    assert "five five five" in text[0]
    status, collects, frozen, *loaded = last.split()
    assert (status, collects, frozen) == ("0", "True", "True")
    assert "slimwhisper.engine.engine" in loaded and not HEAVY & set(loaded)


class Made(TorchDispatchMode):
    """Counts the bytes that operations write, views aside."""

    nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        views = [r.alias_info and not r.alias_info.is_write for r in func._schema.returns]
        if not any(views) and func is not torch.ops.aten.set_.source_Storage_storage_offset:
            tensors = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
            self.nbytes += sum(t.nbytes for t in tensors if t.device.type != "meta")
        return out


def mapped(file: Path) -> list[range]:
    """The addresses at which this process has mapped a file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    edges = [line.split()[0].split("-") for line in lines if line.endswith(str(file))]
    return [range(int(start, 16), int(stop, 16)) for start, stop in edges]


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1.2), (torch.float16, 2.2)])
def test_copies_of_the_weights(tmp_path: Path, dtype: torch.dtype, most: float) -> None:
    """Weights are read where the file is mapped, converted if they must be, and packed: once."""
    state = {name: t.to(dtype) for name, t in random_state(DIMS, seed=3).items()}
    file = save_openai(tmp_path / "model.pt", DIMS, state)
    with Made() as made:
        checkpoint = load_checkpoint(file)
    size = sum(t.numel() * 4 for t in state.values())
    assert made.nbytes < size / 100
    places = mapped(file)
    assert all(any(t.data_ptr() in p for p in places) for t in checkpoint.state.values())
    with Made() as made:
        model = Model(checkpoint, torch.device("cpu"), torch.float32)
    assert size / 2 < made.nbytes < most * size
    if dtype == torch.float32:
        assert any(model.decoder.embedding.data_ptr() in p for p in places)


def test_tables_of_openai_whisper() -> None:
    assert openai_whisper.model_urls() == whisper._MODELS
    assert openai_whisper.alignment_dumps() == whisper._ALIGNMENT_HEADS


@pytest.fixture
def encodings() -> tuple[Encoding, tiktoken.Encoding]:
    """Ours and tiktoken's own."""
    ours = get_tokenizer(DIMS).encoding
    assert isinstance(ours, Encoding)
    return ours, whisper.tokenizer.get_encoding("multilingual", DIMS.num_languages)


def test_encodes_as_tiktoken(encodings: tuple[Encoding, tiktoken.Encoding]) -> None:
    ours, theirs = encodings
    for text in ("", " five zero", "♪♪ (( <| |>", "< |en|>", "Grüße, 世界", "\ud800"):
        assert ours.encode(text) == theirs.encode(text), text
    for allowed in ({"<|en|>"}, "all"):
        asked: Any = {"allowed_special": allowed}
        assert ours.encode("a<|en|>", **asked) == theirs.encode("a<|en|>", **asked)
    for encoding in encodings:
        assert encoding.encode("<|en|>", disallowed_special=()) != encoding.encode(" en")
        with pytest.raises(ValueError, match=r"special token '<\|en\|>'"):
            encoding.encode("a<|en|>b")
    assert Encoding.of(ours) is ours


def test_text_needs_no_pattern_of_all_special_tokens(
    encodings: tuple[Encoding, tiktoken.Encoding], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiktoken.core, "_special_token_regex", None)  # would fail
    tokenizer = whisper.tokenizer.Tokenizer(encodings[0], DIMS.num_languages)
    assert len(tokenizer.non_speech_tokens) > 80
    with pytest.raises(TypeError):
        encodings[1].encode("five")
