"""The examples of README and docs are run; files, tests and links that they name exist."""

import ast
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openai import OpenAI

import slimwhisper
from recipes.digits.voices import WORDS
from slimwhisper.api import SlimWhisper
from slimwhisper.app.page.files import page_folder
from slimwhisper.cli import build_parser
from slimwhisper.loading import load_model
from tests.support.command import RunCLI, python
from tests.support.live import Live, served
from tests.support.paths import BROKEN, ROOT, modules
from tests.support.spoken import SAMPLES

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
OTHERS = [ROOT / "SECURITY.md", ROOT / "THIRD_PARTY.md"]
FOLDERS = "slimwhisper|kernels|app|tests|bench|recipes|docker|samples"
# what the examples call their recordings
RECORDINGS = {
    "talk.mp3": "door-code.mp3",
    "interview.mp3": "door-code.mp3",
    "interview.mp4": "flight.m4a",
    "a.wav": "phone-number.wav",
    "b.flac": "countdown.flac",
    "broken.m4a": BROKEN,
}
SERVER = "http://127.0.0.1:7860"
# by docs/tools/pages.py, when the site is built
GENERATED = {ROOT / f"docs/reference/{name}.md" for name in ("cli", "http", "python")}
DIGIT = re.compile(rf"\b({'|'.join(WORDS)})\b")


def blocks(page: Path, language: str) -> str:
    """All examples of a page in one language, one after the other."""
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M))


def commands(program: str) -> list[str]:
    """The shell examples of all pages that call `program`, each in one line."""
    lines = "\n".join(blocks(p, "sh") for p in PAGES).replace("\\\n", " ").splitlines()
    return sorted({line.partition("  #")[0] for line in lines if line.startswith(f"{program} ")})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of an example."""
    for name, sample in RECORDINGS.items():
        shutil.copy(SAMPLES / sample, tmp_path / name)
    (tmp_path / "more").mkdir()
    shutil.copy(SAMPLES / "flight.m4a", tmp_path / "more" / "interview.mp4")
    shutil.copytree(SAMPLES, tmp_path / "TALKS", ignore=shutil.ignore_patterns("[!df]*"))
    (tmp_path / "samples").symlink_to(SAMPLES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def live(digits: SlimWhisper) -> Iterator[Live]:
    with page_folder() as page:
        yield from served(digits, page=page)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Gradio's client
@pytest.mark.parametrize("page", [pytest.param(p, id=p.name) for p in PAGES if blocks(p, "python")])
def test_python(
    page: Path,
    folder: Path,
    digits: SlimWhisper,
    live: Live,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load(name: str, *args: Any, **options: Any) -> SlimWhisper:
        assert name in slimwhisper.available_models()
        return load_model("digits", *args, **options) if options else digits

    monkeypatch.setattr(slimwhisper, "load_model", load)
    # its thread outlives the example, with a socket that is never closed
    monkeypatch.setattr("gradio_client.Client._stream_heartbeat", lambda *_: None)
    source = blocks(page, "python").replace(SERVER, live.url)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, page.name, "exec"), names)
    # a page gives each client its own name; sockets would be closed with a warning, some time
    for client in names.values():
        if isinstance(client, OpenAI | httpx.Client):
            client.close()
    assert DIGIT.search(capsys.readouterr().out)


@pytest.mark.parametrize("line", commands("slimwhisper"))
def test_command_lines(line: str, folder: Path, run_cli: RunCLI) -> None:
    """They are understood; those that transcribe are run, with the bundled model."""
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True
    ).stdout.split("\n")[1:-1]
    asked = build_parser().parse_args(words)
    if words[0] == "transcribe" and asked.engine == "local":  # Ray: tests/ray/
        if "--model" in words:
            words[words.index("--model") + 1] = "digits"
        run = run_cli(*words)
        assert run.status == 0, run.err
        assert list(Path(asked.output_dir).rglob("*.srt"))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("line", commands("curl"))
def test_curl(line: str, folder: Path, live: Live) -> None:
    asked = f"{line.replace(SERVER, live.url)} --silent --show-error --fail"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert DIGIT.search(done.stdout)


def test_what_is_not_run_is_well_formed() -> None:
    parsers = {"py": ast.parse, "json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
    for page in PAGES:
        for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.S | re.M):
            if language in ("bash", "sh"):
                subprocess.run(["bash", "-n"], input=block, text=True, check=True)
            elif parse := parsers.get(language):
                parse(block)


@pytest.mark.parametrize("page", [pytest.param(p, id=p.name) for p in (*PAGES, *OTHERS)])
def test_what_is_named_exists(page: Path) -> None:
    """Links to files, and paths such as `tests/cache/test_every_form.py::test_self_forms`."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", text):
        path = (page.parent / target).resolve()
        assert path in GENERATED or path.exists(), target
    for named in re.findall(rf"`((?:{FOLDERS})/[\w./]*(?:::\w+)?)`", text):
        path, _, test = named.partition("::")
        assert (ROOT / path).exists(), named
        assert not test or f"def {test}(" in (ROOT / path).read_text(), named


def test_messages_are_those_of_the_source() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    code = "".join(path.read_text() for path in modules())
    parts = "...".join(re.findall(r"^\| (?:\d+ )?`(.+?)` \|", page, re.M)).split("...")
    assert len(parts) >= 30 and not [part for part in parts if part.strip() not in code]


def test_the_picture_is_up_to_date() -> None:
    done = python(f"{ROOT}/docs/tools/architecture_svg.py", "--check")
    assert done.returncode == 0, done.stderr
