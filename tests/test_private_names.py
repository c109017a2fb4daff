"""Private names of other projects, which any release may change: a short list, each with a reason
where it is used.
"""

import ast

import silero_vad
import torch

from tests.support.paths import ROOT

ALLOWED = {
    "_linear_pointwise": "kernels/linear.py",  # oneDNN's products in int8
    "_reorder_linear_weight": "kernels/linear.py",
    "_len_torch_dispatch_stack": "kernels/cpu/library.py",  # whether PyTorch watches what runs
    "_model": "slimwhisper/audio/vad.py",  # silero's network for one sampling rate
}
PUBLIC = {"_exit", "_C"}  # os._exit; torch._C, whose names count
FOLDERS = ("slimwhisper", "app", "kernels")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def test_no_others_are_used() -> None:
    own, used = set[str](), dict[str, set[str]]()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        own.add(path.stem)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    own.add(node.name)
                case ast.Name(id=word, ctx=ast.Store()) | ast.arg(arg=word):
                    own.add(word)
                case ast.Attribute(attr=word, ctx=ast.Store()):
                    own.add(word)
                case ast.Attribute(attr=word) if is_private(word):
                    used.setdefault(word, set()).add(name)
                case ast.ImportFrom(module=str(module), names=names):
                    words = [*module.split("."), *(alias.name for alias in names)]
                    if not module.startswith(("slimwhisper", "__future__")):
                        for word in filter(is_private, words):
                            used.setdefault(word, set()).add(name)
    found = {(word, place) for word in used.keys() - own - PUBLIC for place in used[word]}
    assert found <= set(ALLOWED.items())
    for word, place in ALLOWED.items():
        assert word in (ROOT / place).read_text("utf-8"), f"{place} no longer uses {word}"


def test_they_are_still_there() -> None:
    """oneDNN's: tests/model/test_int8.py."""
    assert hasattr(torch._C, "_len_torch_dispatch_stack"), "PyTorch has another name for it"
    assert hasattr(silero_vad.load_silero_vad(), "_model"), (
        "silero has another name for its network"
    )
