"""What imports cost and offer: the command line starts, and finds faults, without torch."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import slimwhisper

PUBLIC = (
    "AudioError CacheError CheckpointError DecodingOptions DecodingResult DependencyError "
    "ModelDimensions OptionError Options OutputError Segment SlimWhisper SlimWhisperError "
    "Transcript Whisper available_models decode detect_language load_audio load_model "
    "log_mel_spectrogram pad_or_trim transcribe"
).split()
FLIGHT = Path(__file__).parents[1] / "samples" / "flight.m4a"
# openai-whisper's names for what has another one here
ALIASES = {"ModelDimensions": "Dims", "Whisper": "SlimWhisper"}

DOCTOR_WITHOUT = """
import sys
from importlib import import_module

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from slimwhisper.cli import main
sys.exit(main(["doctor"]))
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter's answer."""
    command, variables = [sys.executable, *arguments], os.environ | environment
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("module", ["slimwhisper", "slimwhisper.cli"])
def test_imports_nothing_slow(module: str) -> None:
    slow = {"torch", "whisper", "av", "numpy", "triton", "soundfile", "rich", "huggingface_hub"}
    done = python("-c", f"import sys, {module}; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert module in loaded and not loaded & slow


@pytest.mark.parametrize("module", ["torch", pytest.param("av", marks=pytest.mark.slow)])
def test_doctor_without(module: str, tmp_path: Path) -> None:
    """A package that does not import is named, with what to do, and is no traceback."""
    places = ("XDG_CACHE_HOME", "HF_HUB_CACHE", "TRITON_CACHE_DIR")
    done = python(
        *("-c", DOCTOR_WITHOUT.format(module=module)),
        **{place: str(tmp_path / place) for place in places},
        COLUMNS="1000",
    )
    assert done.returncode == 1 and done.stderr == ""
    lines = done.stdout.splitlines()
    (row,) = [i for i, line in enumerate(lines) if line.startswith(f"BAD  {module} ")]
    assert version(module) in lines[row] and f"No module named '{module}'" in lines[row]
    assert f"pip install '{module}" in lines[row + 1]
    assert module in lines[-1].split(": ")[1].rstrip(".").split(", ")


@pytest.mark.parametrize(
    ("module", "use"), [("torch", "load_model"), ("av", f"load_audio({str(FLIGHT)!r})")]
)
def test_library_without(module: str, use: str) -> None:
    """`import slimwhisper` succeeds; what needs the package names it."""
    code = f"import sys; sys.modules[{module!r}] = None; import slimwhisper; slimwhisper.{use}"
    done = python("-c", code)
    assert done.returncode == 1 and f"import of {module} halted" in done.stderr.splitlines()[-1]


def test_public_names() -> None:
    assert slimwhisper.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(slimwhisper, name).__name__ == ALIASES.get(name, name)
    assert {*PUBLIC, "__version__"} <= set(dir(slimwhisper))
    assert slimwhisper.__version__ == version("slimwhisper")


def test_runs_as_a_module() -> None:
    done = python("-m", "slimwhisper", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version('slimwhisper')}\n", "")
    assert python("-m", "slimwhisper", "--help").stdout.startswith("usage: slimwhisper ")


@pytest.mark.parametrize("package", ["slimwhisper", "slimwhisper.engine"])
def test_type_checkers_see_the_same_names(package: str) -> None:
    """What a package imports for type checkers is what it gives when it is asked."""
    module = import_module(package)
    assert module.__file__ is not None
    (block,) = [
        node
        for node in ast.parse(Path(module.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imported = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert imported
    for node in imported:
        for name in node.names:
            theirs = getattr(import_module(str(node.module)), name.name)
            assert getattr(module, name.asname or name.name) is theirs, name.name
