"""What imports cost and offer, and what happens before the first text: nothing here is timed."""

import ast
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import tiktoken.core
import torch
import whisper
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import slimwhisper
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.model.model import Model
from slimwhisper.tokens.encoding import Tokenizer, get_encoding
from tests.support.checkpoints import DIMS, mapped, random_state, save_openai
from tests.support.command import python
from tests.support.paths import SAMPLES


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


def test_text_needs_no_pattern_of_all_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tiktoken compiles for the first text: 1,608 of them."""
    monkeypatch.setattr(tiktoken.core, "_special_token_regex", None)  # would fail
    tokenizer = Tokenizer(get_encoding("multilingual"), 99)
    assert len(tokenizer.non_speech_tokens) > 80
    with pytest.raises(TypeError):
        whisper.tokenizer.get_encoding("multilingual").encode("five")


PUBLIC = (
    "AudioError CacheError CheckpointError DecodingOptions DecodingResult DependencyError "
    "ModelDimensions OptionError Options OutputError Segment SlimWhisper SlimWhisperError "
    "Transcript Whisper available_models decode detect_language load_audio load_model "
    "log_mel_spectrogram pad_or_trim save_transcript transcribe"
).split()
# openai-whisper's names for what has another one here
ALIASES = {"ModelDimensions": "Dims", "Whisper": "SlimWhisper"}


@pytest.mark.parametrize("module", ["slimwhisper", "slimwhisper.cli"])
def test_imports_nothing_slow(module: str) -> None:
    slow = {"torch", "whisper", "av", "numpy", "triton", "tqdm", "rich", "huggingface_hub"}
    help_code = f"getattr({module}, 'build_parser', object)()"
    done = python("-c", f"import sys, {module}; {help_code}; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert module in loaded and not loaded & slow


@pytest.mark.parametrize("module", ["torch", pytest.param("av", marks=pytest.mark.slow)])
def test_doctor_without(module: str, tmp_path: Path) -> None:
    """A package that does not import is named, with what to do, and is no traceback."""
    code = f"import sys; sys.modules[{module!r}] = None; from slimwhisper.cli import main"
    places = ("XDG_CACHE_HOME", "HF_HUB_CACHE", "TRITON_CACHE_DIR")
    variables = {place: str(tmp_path / place) for place in places} | {"COLUMNS": "1000"}
    done = python("-c", f"{code}; sys.exit(main(['doctor']))", **variables)
    assert done.returncode == 1 and done.stderr == ""
    lines = done.stdout.splitlines()
    (row,) = [i for i, line in enumerate(lines) if line.startswith(f"BAD  {module} ")]
    assert version(module) in lines[row] and f"import of {module} halted" in lines[row]
    assert f"pip install '{module}" in lines[row + 1]
    assert module in lines[-2].split(": ")[1].rstrip(".").split(", ")


def test_library_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import slimwhisper` succeeds; what needs the package names it."""
    code = "import sys; sys.modules['torch'] = None; import slimwhisper; slimwhisper.load_model"
    done = python("-c", code)
    assert done.returncode == 1 and "import of torch halted" in done.stderr.splitlines()[-1]
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "slimwhisper.audio_formats.ffmpeg", raising=False)
    with pytest.raises(ModuleNotFoundError, match="import of av halted"):
        slimwhisper.load_audio(SAMPLES / "flight.m4a")


def test_public_names() -> None:
    assert slimwhisper.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(slimwhisper, name).__name__ == ALIASES.get(name, name)
    assert {*PUBLIC, "__version__"} <= set(dir(slimwhisper))
    assert slimwhisper.__version__ == version("slimwhisper")


def test_runs_as_a_module() -> None:
    done = python("-m", "slimwhisper", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version('slimwhisper')}\n", "")


def test_type_checkers_see_the_same_names() -> None:
    """What a package imports for type checkers is what it gives when it is asked."""
    assert slimwhisper.__file__ is not None
    (block,) = [
        node
        for node in ast.parse(Path(slimwhisper.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imported = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert imported
    for node in imported:
        for name in node.names:
            theirs = getattr(import_module(str(node.module)), name.name)
            assert getattr(slimwhisper, name.asname or name.name) is theirs, name.name
