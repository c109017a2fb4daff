"""Runs other people's test suites against slimwhisper: python bench/foreign.py CHECKOUTS [SUITE]

CHECKOUTS has the suites of foreign.toml, each under its repository's name; nothing is fetched. In
copies of their tests, names of models and addresses are replaced. Prints a table in Markdown, and
ends with 1 if a check failed that foreign.toml does not explain, or if there was none.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from rows import table
from serve import serving

from slimwhisper.commands.random_weights import random_state
from slimwhisper.types import Dims

ROOT = Path(__file__).parents[1]
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LEFT_OUT = (".git", "node_modules", "docs", "benchmark", "notebooks", "ecosystem-tests")
PYTEST = "-P -m pytest -q -p no:cacheprovider -p no:xdist --continue-on-collection-errors".split()
PLAIN = "-o addopts= -o asyncio_mode=auto -o filterwarnings=".split()
Outcome = tuple[str, str]  # a check's name, and why it did not pass; "": it did


def random_model(path: Path, n_vocab: int) -> Path:
    """Its context is short: random weights do not know when a text ends."""
    dims = Dims(80, 1500, 8, 1, 1, n_vocab, 32, 8, 1, 1)
    torch.save({"dims": asdict(dims), "model_state_dict": random_state(dims, seed=3)}, path)
    return path


def copied(checkouts: Path, work: Path, suite: dict[str, Any], names: dict[str, str]) -> Path:
    """A copy of a checkout, in whose files texts are replaced."""
    ignored = shutil.ignore_patterns(*LEFT_OUT)
    name = suite["folder"]
    target = Path(shutil.copytree(checkouts / name, work / name, ignore=ignored))
    for path in (path for pattern in suite["files"] for path in target.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        for old, new in suite.get("changes", {}).items():
            text = text.replace(old, new.format(**names))
        path.write_text(text, encoding="utf-8")
    return target


def run(copy: Path, suite: dict[str, Any], url: str) -> Iterator[Outcome]:
    """The outcomes of a suite, by pytest or jest."""
    report, node = copy / "report", suite.get("node_modules", False)
    environment = os.environ | {"TEST_API_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any"}
    environment |= {"PYTHONPATH": f"{copy / suite.get('source', '')}{os.pathsep}{ROOT}"}
    environment |= {"HF_HUB_OFFLINE": "1"}
    files = [str(path) for pattern in suite["files"] for path in sorted(copy.glob(pattern))]
    if node:
        command = ["node", "node_modules/.bin/jest", "--json", f"--outputFile={report}", *files]
    else:
        chosen = ["-k", suite["chosen"]] if "chosen" in suite else []
        command = [sys.executable, *PYTEST, *PLAIN, *chosen, f"--junitxml={report}", *files]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if not report.is_file():
        yield "all", done.stdout[-2000:] + done.stderr[-2000:]
    elif node:
        for file in json.loads(report.read_text())["testResults"]:
            for case in file["assertionResults"]:
                failed = case["status"] != "passed"
                yield case["fullName"], f"{case['failureMessages']}" if failed else ""
    else:
        for case in ElementTree.parse(report).iter("testcase"):
            problem = next((p for p in case if p.tag in ("failure", "error", "skipped")), None)
            why = "" if problem is None else f"{problem.get('message')}\n{problem.text}"
            yield f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}", why


def explained(suite: str, name: str, message: str) -> tuple[str, str]:
    """A failure's status and reason, by the table; "UNEXPLAINED" without one."""
    for row in TABLE["known"]:
        of_suite = row["suite"] == suite and re.search(row.get("name", ""), name)
        if of_suite and re.search(row.get("message", ""), message):
            return row.get("status", "failed"), row["reason"]
    return "UNEXPLAINED", f"{name}: {message.splitlines()[0]}"


def main(checkouts: Path, chosen: Sequence[str]) -> int:
    """chosen: suites; none: all."""
    counts, reasons = Counter[tuple[str, str]](), Counter[tuple[str, str, str]]()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        english, multilingual = (random_model(work / f"{n}.pt", n) for n in (51_864, 51_865))
        names = {"english": str(english), "multilingual": str(multilingual)}
        names["sound"] = str(ROOT / "samples" / "phone-number.wav")
        with serving("--no-page", "--model", str(multilingual)) as (url, _):
            for suite in TABLE["suites"]:
                label = suite["folder"]
                if (chosen and label not in chosen) or not (checkouts / label).is_dir():
                    continue
                copy = copied(checkouts, work, suite, names)
                if suite.get("node_modules"):
                    (copy / "node_modules").symlink_to(checkouts / label / "node_modules")
                for name, why in run(copy, suite, url):
                    status, reason = explained(label, name, why) if why else ("passed", "")
                    counts[label, status] += 1
                    reasons[label, status, reason] += bool(reason)
    ends = ("passed", "failed", "not applicable")
    labels = dict.fromkeys(label for label, _ in counts)
    lines = ([label, *(counts[label, end] for end in ends)] for label in labels)
    print(table(["suite", *ends], lines))
    for (label, status, why), count in reasons.items():
        print(*[f"- {label}: {count} {status}: {why}"] * bool(count))
    return int(not counts or any(status == "UNEXPLAINED" for _, status in counts))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
