"""Other people's unit tests, run on copies in which names of models and addresses are replaced."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.foreign.outcomes import Check, NotApplicableError, Status, failed, needs
from tests.foreign.places import Places

TABLE = tomllib.loads(Path(__file__).with_name("suites.toml").read_text(encoding="utf-8"))
SETTINGS = {"addopts": "", "asyncio_mode": "auto", "filterwarnings": ""}
PYTEST = [
    *(sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
    "--continue-on-collection-errors",
]
NODE_SOUND = {"Buffer.from('Example data')": "require('fs').readFileSync('{sound}')"}
PACKAGE = Path("openai-python")


@dataclass(frozen=True)
class UnitTests:
    """Tests of one checkout."""

    folder: str
    files: Sequence[str]
    changes: Mapping[str, str] = field(default_factory=dict)
    packages: Sequence[str] = ()
    source: str = ""  # a folder on the Python path
    conftest: str = ""  # a file beside this one, in place of theirs
    server: str = "url"  # a field of Places
    chosen: str = ""  # of the tests: pytest's -k
    left_out: Mapping[str, str] = field(default_factory=dict)  # files: why


SUITES = [UnitTests(**row) for row in TABLE["unit_tests"]]


def run_python(suite: UnitTests, places: Places) -> Iterator[Check]:
    """The outcomes of pytest. Raises NotApplicableError."""
    needs(*suite.packages)
    here = Path(__file__).parent
    copy = places.copy(suite.folder, suite.files, suite.changes)
    if suite.conftest:
        shutil.copy(here / suite.conftest, copy / "tests" / "conftest.py")
    paths = [str(copy / suite.source)] if suite.source else []
    report = places.work / f"{suite.folder}.xml"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, str(here.parents[1])]),
        "TEST_API_BASE_URL": f"{getattr(places, suite.server)}/v1",
        "FOREIGN_URL": places.url,
        "FOREIGN_LOCKED_URL": places.locked_url,
        "OPENAI_API_KEY": "any",
        "HF_HUB_OFFLINE": "1",
    }
    files = [str(path) for pattern in suite.files for path in sorted(copy.glob(pattern))]
    settings = [part for item in SETTINGS.items() for part in ("-o", "=".join(item))]
    chosen = ["-k", suite.chosen] if suite.chosen else []
    command = [*PYTEST, *settings, *chosen, f"--junitxml={report}", *files]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if not report.is_file():
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
        problem = next((p for p in case if p.tag in ("failure", "error", "skipped")), None)
        if problem is None:
            yield Check(suite.folder, name)
        else:
            text = f"{problem.get('message')}\n{problem.text}"
            yield failed(suite.folder, name, text)
    for name, reason in suite.left_out.items():
        yield Check(suite.folder, name, Status.NOT_APPLICABLE, reason)


def run_node(places: Places) -> Iterator[Check]:
    """The outcomes of jest, with the packages in node_modules. Raises NotApplicableError."""
    folder = "openai-node"
    modules = [places.foreign / folder / "node_modules", places.foreign / "node_modules"]
    installed = next((path for path in modules if (path / ".bin/jest").exists()), None)
    if installed is None or shutil.which("node") is None:
        raise NotApplicableError(
            "jest is not installed: npm install --no-save jest ts-jest ts-node typescript "
            "@swc/core @swc/jest"
        )
    files = (
        *("tests/api-resources/audio/tran*.ts", "tests/api-resources/models.test.ts"),
        "tests/api-resources/realtime/client-secrets.test.ts",
    )
    copy = places.copy(folder, files, {**NODE_SOUND, "'gpt-4o-mini'": "'digits'"})
    (copy / "node_modules").symlink_to(installed.resolve())
    report = places.work / "node.json"
    paths = [str(path) for pattern in files for path in sorted(copy.glob(pattern))]
    command = ["node", "node_modules/.bin/jest", "--json", f"--outputFile={report}", *paths]
    environment = {**os.environ, "TEST_API_BASE_URL": f"{places.multilingual_url}/v1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if not report.is_file():
        raise RuntimeError(done.stderr[-2000:])
    for file in json.loads(report.read_text())["testResults"]:
        for case in file["assertionResults"]:
            message = "\n".join(case["failureMessages"])
            if case["status"] == "passed":
                yield Check(folder, case["fullName"])
            else:
                yield failed(folder, case["fullName"], message or case["status"])
        if not file["assertionResults"]:
            yield failed(folder, Path(file["name"]).name, file["message"])
