"""Do the tests notice a mistake? Small mistakes are made in the code, one at a time, and counted.

A mutant is a module with one small change: `<=` for `<`, + for -, `and` for `or`, a condition
turned round, a number one larger, True for False, a call or an assignment dropped, None returned,
`break` for `continue`; not in annotations, decorators, assertions, logging, `raise`, f-strings. It
is killed if the module's tests fail then, or take three times as long and 20 s. One that survives
is equivalent, a change that nobody could see, or a test is missing.

The code and the seed alone decide which mutants are made. They are made in a copy of the working
tree. A test file that fails without a mutant is left out, and the exit status is 1.

    python bench/mutants.py [--areas cache rules] [--count 12] [--seed 0] [--list] [--json FILE]
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def _tests(folder: str, *names: str) -> list[str]:
    return [f"tests/{folder}/test_{name}.py" for name in names]


AREAS = {  # area: (modules, their test files, quick ones first, mutants a module)
    "cache": (
        [f"slimwhisper/cache/{m}.py" for m in ("base", "kv", "latent", "plan")],
        [*_tests("cache", "float8", "caches"), *_tests("engine", "engine")],
        3,
    ),
    "forms": (
        [f"slimwhisper/cache/{m}.py" for m in ("fold", "guard", "forms")],
        _tests("cache", "float8", "caches", "guard"),
        3,
    ),
    "rules": (["slimwhisper/engine/rules.py"], _tests("engine", "rules", "fallback"), 12),
    "session": (["slimwhisper/longform/session.py"], _tests("longform", "prompts", "session"), 14),
    "journal": (["slimwhisper/jobs/journal.py"], _tests("jobs", "jobs", "journal"), 12),
    "access": (["app/api/access.py"], _tests("app", "access", "api", "page_routes"), 8),
}
EQUIVALENT = {  # (function, change) that no test could notice
    *(("Rows", f"first_{what}: int = [0 => 1]") for what in ("row", "slot")),  # always given
    ("Access.__init__", "[str, str] | None=None, max_bytes: int=[1 => 2] << 30"),  # so is this
    ("BannedTokens.start", "[self.tokens[rows] = 0 => pass]"),  # their penalties are 0
    ("Session.__init__", "[self._attempt = 0 => pass]"),  # `_open` sets it
    *(("", f"MERGE = {n}") for n in ("[1 => 2] << 15", "1 << [15 => 16]")),  # later, and the same
    ("Journal.__init__", "orn = size > 0 and os.pread(self._file, [1 => 2], size - 1) != b'\\n'"),
}

_PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    *((ast.Add, ast.Sub), (ast.And, ast.Or), (ast.Break, ast.Continue)),
)
SWAPS: dict[type[ast.AST], type[ast.AST]] = dict(_PAIRS) | {b: a for a, b in _PAIRS}


@dataclass(frozen=True)
class Mutant:
    line: int
    function: str  # "Class.method", "" outside of any
    kind: str
    change: str
    source: str  # of the whole module


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of the text."""
    tree, found = ast.parse(source), []
    for parent, field, held, key, function, shown in _places(tree):
        old, before = held[key], ast.unparse(shown)
        for new, kind in _variants(old, parent, field):
            held[key] = new
            change = _change(before, ast.unparse(new if shown is old else shown))
            line = getattr(old, "lineno", getattr(parent, "lineno", 0))  # an operator has none
            found.append(Mutant(line, function, kind, change, ast.unparse(tree)))
        held[key] = old
    return found


def chosen(source: str, count: int, seed: int) -> list[Mutant]:
    """So many of them, of every kind in turn, and no equivalent ones."""
    every, kinds = mutants(source), defaultdict(list)
    random.Random(seed).shuffle(every)
    for mutant in every:
        if (mutant.function, mutant.change) not in EQUIVALENT:
            kinds[mutant.kind].append(mutant)
    turns = [m for turn in zip_longest(*kinds.values()) for m in turn if m is not None]
    return sorted(turns[:count], key=lambda m: (m.line, m.change))


def _change(before: str, after: str) -> str:
    """Where two texts differ, and a little around it."""
    old, new = (re.findall(r"\w+|\s|[^\w\s]+", text) for text in (before, after))
    steps = [s for s in SequenceMatcher(None, old, new, False).get_opcodes() if s[0] != "equal"]
    (_, a, _, b, _), (_, _, c, _, d) = steps[0], steps[-1]
    left, right = "".join(old[:a])[-40:], "".join(old[c:])[:40]
    return " ".join(f"{left}[{''.join(old[a:c])} => {''.join(new[b:d])}]{right}".split())


def _places(node: ast.AST, function: str = "", shown: ast.AST | None = None) -> Iterator[Any]:
    """Of every node: parent, field, what holds it, by which key, function, the node to show."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        function = f"{function}.{node.name}".lstrip(".")
    for field, value in list(ast.iter_fields(node)):
        many = isinstance(value, list)
        for key, child in list(enumerate(value)) if many else [(field, value)]:
            if isinstance(child, ast.AST) and not _left_alone(child, field):
                around = child if shown is None or hasattr(node, "body") else shown
                yield node, field, value if many else vars(node), key, function, around
                yield from _places(child, function, around)


def _left_alone(node: ast.AST, field: str) -> bool:
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.FunctionDef(name="__repr__"):
            return True
        case ast.If(test=test):
            return "TYPE_CHECKING" in ast.unparse(test)
        case ast.Expr(value=ast.Call(func=func)):
            return ast.unparse(func).partition(".")[0] in ("logger", "logging", "print", "warnings")
    arg = getattr(node, "arg", None)  # strict=True checks what is so
    return field in ("annotation", "returns", "decorator_list") or arg == "strict"


def _variants(node: ast.AST, parent: ast.AST, field: str) -> Iterator[tuple[ast.AST, str]]:
    """What may stand in a node's place, and what kind of mistake that is."""
    if isinstance(node, ast.expr) and field == "test" and isinstance(parent, ast.If | ast.IfExp):
        yield ast.UnaryOp(ast.Not(), node), "condition"
    match node:
        case ast.cmpop() | ast.boolop() | ast.operator() | ast.Break() | ast.Continue():
            if type(node) in SWAPS:
                yield SWAPS[type(node)](), type(node).__bases__[0].__name__
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value), "flag"
        case ast.Constant(value=int(value)) if value <= 16:  # larger ones stand for something else
            yield ast.Constant(value + 1), "number"
        case ast.Return(value=ast.expr() as result) if not isinstance(result, ast.Constant):
            yield ast.Return(ast.Constant(None)), "return"
        case (
            ast.Expr(value=ast.Call() | ast.Await())
            | ast.AugAssign()
            | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.AnnAssign(target=ast.Attribute(), value=ast.expr())
        ):
            yield ast.Pass(), "dropped"


class Copy:
    """A copy of a tree, to be changed and tested."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.root, self._scratch = folder / "tree", folder / "pytest"
        ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "venv")
        shutil.copytree(source, self.root, symlinks=True, ignore=ignored)
        # bytecode of a module of the same second and size would be taken for the mutant's
        fixed = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        self._environment = {"OMP_NUM_THREADS": "1", **os.environ, **fixed}
        self.clean: dict[str, float | None] = {}  # test file: seconds; None: it fails

    def run(self, tests: list[str], limit: float | None = None) -> tuple[str, float]:
        """("survived", "killed" or "timeout", seconds) of the tree as it is."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-m", "not slow", f"--basetemp={self._scratch}", *tests]
        command += ["-n", "0"] if find_spec("xdist") else []
        how: Any = {"cwd": self.root, "env": self._environment, "process_group": 0}
        how |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        began = time.perf_counter()
        with subprocess.Popen(command, **how) as process:
            try:
                result = "killed" if process.wait(limit) else "survived"
            except subprocess.TimeoutExpired:
                result = "timeout"
            finally:
                if process.poll() is None:  # and the programs that its tests have started
                    os.killpg(process.pid, signal.SIGKILL)
        return result, round(time.perf_counter() - began, 1)

    def quick(self, tests: list[str]) -> dict[str, float]:
        """Test files that pass without a mutant, and their seconds."""
        for file in tests:
            if file not in self.clean:
                result, seconds = self.run([file])
                self.clean[file] = seconds if result == "survived" else None
                print(f"{file} alone: {self.clean[file] or 'FAILS, is left out'}", flush=True)
        return {file: s for file in tests if (s := self.clean[file]) is not None}

    def judge(self, module: str, mutant: Mutant, tests: dict[str, float]) -> tuple[str, float]:
        """As `run`, with a mutant in a module's place; tests as from `quick`."""
        path, whole = self.root / module, (self.root / module).read_text()
        path.write_text(mutant.source)
        try:
            return self.run(list(tests), 3 * sum(tests.values()) + 20)
        finally:
            path.write_text(whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--count", type=int, help="mutants a module [as the table says]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="show the mutants and test none")
    parser.add_argument("--json", type=Path, help="a file for the results")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(ROOT, Path(folder))
        for area in arguments.areas:
            modules, tests, usual = AREAS[area]
            passing = {} if arguments.list else copy.quick(tests)
            for module in modules:
                text = (copy.root / module).read_text()
                for mutant in chosen(text, arguments.count or usual, arguments.seed):
                    said = f"{module}:{mutant.line} {mutant.function}: {mutant.change}"
                    if passing:
                        result, seconds = copy.judge(module, mutant, passing)
                        said += f": {result}, {seconds} s"
                        row = {"area": area, "module": module, "result": result, "seconds": seconds}
                        rows.append(row | {k: v for k, v in vars(mutant).items() if k != "source"})
                    print(said, flush=True)
    for kind in ("module", "area"):
        killed = Counter(row[kind] for row in rows if row["result"] != "survived")
        for name, total in Counter(row[kind] for row in rows).items():
            print(f"{name}: {killed[name]} of {total} killed")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"seed": arguments.seed, "mutants": rows}, indent=1))
    return 1 if None in copy.clean.values() else 0


if __name__ == "__main__":
    sys.exit(main())
