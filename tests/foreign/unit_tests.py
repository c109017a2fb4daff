"""Other people's unit tests, run on copies in which names of models and addresses are replaced."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.foreign.outcomes import Check, NotApplicableError, Status, failed, needs
from tests.foreign.places import Places

SETTINGS = {"addopts": "", "asyncio_mode": "auto", "filterwarnings": ""}
PYTEST = [
    *(sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
    "--continue-on-collection-errors",
]
# what openai's tests send in place of sound is for a server that does not look at it
PYTHON_SOUND = {'b"Example data"': 'open("{sound}", "rb").read()', '"language"': '"en"'}
NODE_SOUND = {"Buffer.from('Example data')": "require('fs').readFileSync('{sound}')"}
PACKAGE = Path("openai-python")


@dataclass(frozen=True)
class UnitTests:
    """Tests of one checkout."""

    folder: str
    files: tuple[str, ...]
    changes: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    source: str = ""  # a folder on the Python path
    conftest: str = ""  # a file beside this one, in place of theirs
    server: str = "url"  # a field of Places
    chosen: str = ""  # of the tests: pytest's -k
    left_out: Mapping[str, str] = field(default_factory=dict)  # files: why


SUITES = (
    UnitTests(
        "whisper",
        ("tests/test_*.py",),
        {
            "import whisper": "import slimwhisper as whisper",
            "from whisper": "from slimwhisper",
            "whisper.load_model(model_name)": (
                'whisper.load_model("{english}" if ".en" in model_name else "{multilingual}")'
            ),
        },
        ("scipy",),
    ),
    UnitTests(
        "faster-whisper",
        ("tests/test_*.py",),
        {
            "from faster_whisper": "from slimwhisper.faster_whisper",
            'WhisperModel("tiny")': 'WhisperModel("{multilingual}")',
            'WhisperModel("tiny.en")': 'WhisperModel("{english}")',
        },
    ),
    UnitTests(
        "openai-python",
        (
            "tests/api_resources/audio/test_tran*.py",
            "tests/api_resources/test_models.py",
            "tests/api_resources/realtime/test_client_secrets.py",
        ),
        {**PYTHON_SOUND, '"gpt-4o-mini"': '"digits"'},
        (
            *("pytest_asyncio: pytest-asyncio", "httpx2", "httpx_aiohttp: httpx-aiohttp"),
            *("rich", "respx"),
        ),
        "src",
        server="multilingual_url",
        # "loose" asks for less than "strict"; the others send nothing
        chosen="(strict or aiohttp) and not path_params",
        left_out={"audio/test_speech.py": "speech is not made here"},
    ),
    UnitTests(
        "speaches",
        tuple(
            f"tests/{name}_test.py"
            for name in (
                *("api_model", "api_timestamp_granularities", "openai_timestamp_granularities"),
                *("openai_transcription", "sse", "auth", "diarization", "vad"),
            )
        ),
        {"Systran/faster-whisper-tiny.en": "digits"},
        (
            *("pytest_asyncio: pytest-asyncio", "pytest_mock: pytest-mock"),
            *("httpx_sse: httpx-sse", "srt", "webvtt: webvtt-py"),
        ),
        conftest="speaches_conftest.py",
        left_out={
            **dict.fromkeys(
                ("api_chat_test.py", "speech_test.py", "speech_embedding_test.py"),
                "chat, speech and embeddings are not served here",
            ),
            **dict.fromkeys(
                ("model_manager_test.py", "realtime_api_test.py", "text_utils_test.py"),
                "calls functions of speaches, and no server",
            ),
        },
    ),
    UnitTests(
        "wyoming",
        ("tests/test_event.py",),
        {
            "PAYLOAD = b": "from tests.foreign.servers import read_ours\n\nPAYLOAD = b",
            "await async_read_event(reader)": "await read_ours(reader)",
        },
        ("pytest_asyncio: pytest-asyncio",),
        ".",
        chosen="async_read_event",  # by our reader; the others ask nothing of us
    ),
)


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
