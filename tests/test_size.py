"""The size of the whole: numbers in `support/size.json` that may only fall."""

import ast
import json
from functools import cache
from pathlib import Path

import pytest

from tests.support.command import python
from tests.support.paths import PHONE, ROOT, modules

NUMBERS = json.loads((ROOT / "tests/support/size.json").read_text())
SLACK = 0.01  # of a number: what has fallen by more is written down
# what everybody's recording needs
CORE = "audio tokens checkpoint cache model engine longform service".split()
# none of them is needed to read a WAV, load a .pt file and decode: most take 0.1 s or more
HEAVY = {
    *("numba", "llvmlite", "scipy", "whisper", "av", "torchaudio", "tokenizers", "fsspec"),
    *("huggingface_hub", "silero_vad", "onnxruntime", "sklearn", "pandas", "pyarrow", "matplotlib"),
    *("triton", "sympy", "torch._dynamo", "torch._inductor", "transformers", "rich", "gradio"),
    *("slimwhisper.app", "slimwhisper.live.listen", "slimwhisper.audio_formats.ffmpeg"),
    "slimwhisper.research.forms",
}


def is_long(node: ast.AST) -> bool:
    """Whether a part of a program may take several lines."""
    return getattr(node, "end_lineno", 0) != getattr(node, "lineno", 1)


def lines_of_code(text: str) -> int:
    """Without blank lines, comments and docstrings."""
    stripped = (line.lstrip() for line in text.split("\n"))
    lines = {n for n, line in enumerate(stripped, 1) if line and not line.startswith("#")}
    docstrings = set[int]()
    nodes: list[ast.AST] = [ast.parse(text)]
    for node in nodes:
        nodes += filter(is_long, ast.iter_child_nodes(node))
        if isinstance(node, ast.JoinedStr | ast.Constant):
            if node.end_lineno != node.lineno:  # the blank lines of a text
                lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines - docstrings)


@cache
def lines_of(path: Path) -> int:
    return lines_of_code(path.read_text(encoding="utf-8"))


def folder(name: str) -> int:
    """Lines of code of the files in a folder; links are not followed."""
    return sum(lines_of(path) for path in (ROOT / name).rglob("*.py") if not path.is_symlink())


def core() -> int:
    """The core's lines, with those of the library's own modules."""
    library = "api devices loaded_model loading option_group options types errors text windows"
    own = sum(lines_of(ROOT / f"slimwhisper/{name}.py") for name in library.split())
    return own + folder("kernels") + sum(folder(f"slimwhisper/{name}") for name in CORE)


def test_lines() -> None:
    found = {"product": sum(map(lines_of, modules())), "tests": folder("tests"), "core": core()}
    assert_not_larger(found)


def test_modules(tmp_path: Path) -> None:
    """Of one WAV on the command line, in a fresh interpreter."""
    set_here = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TRITON_INTERPRET")  # by conftest
    script = f"{ROOT}/tests/support/one_wav.py"
    done = python(script, str(PHONE), str(tmp_path), without=set_here)
    assert done.returncode == 0, done.stderr
    ran, in_vain, last = (line for line in done.stdout.splitlines() if not line.startswith("["))
    assert "slimwhisper.engine.engine" in ran and "slimwhisper.app" not in ran + in_vain
    collects, frozen, *loaded = last.split()
    assert (collects, frozen) == ("True", "True") and not HEAVY & set(loaded)
    assert_not_larger(
        {"modules run": len(ran.split()), "modules imported in vain": len(in_vain.split())}
    )


def assert_not_larger(found: dict[str, int]) -> None:
    for name, count in found.items():
        most = NUMBERS[name]
        assert count <= most, f"{name}: {count}, where there were {most}: take as many away"
        assert count >= most - max(SLACK * most, 2), f"{name}: write down {count} instead of {most}"


@pytest.mark.parametrize(
    ("text", "lines"), [("", 0), ('"""A.\n\nB."""\n\n# c\nx = 1\n', 1), ("x = (\n  1,\n\n)\n", 3)]
)
def test_what_counts(text: str, lines: int) -> None:
    assert lines_of_code(text) == lines
