"""What ships beside the package holds together: Dockerfile, Compose files, locks, notices."""

import io
import json
import re
import runpy
import socket
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from slimwhisper.cli import build_parser
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="needs the source tree")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(python: str | None = None) -> dict[str, str]:
    """The versions for a Python of Linux, or all that are named."""
    lines = (ROOT / "docker" / "requirements.txt").read_text().splitlines()
    found = [Requirement(line.rstrip("\\ ")) for line in lines if re.match(r"[a-z0-9-]+==", line)]
    here = {"python_version": f"{python}", "python_full_version": f"{python}.0"}
    return {
        r.name: str(r.specifier).removeprefix("==")
        for r in found
        if r.marker is None or python is None or r.marker.evaluate(here)
    }


def compose(name: str) -> Any:
    yaml = pytest.importorskip("yaml")

    class Loader(yaml.SafeLoader):
        """Compose's own tags, too."""

    Loader.add_constructor("!reset", lambda loader, node: loader.construct_sequence(node))
    return yaml.load((ROOT / name).read_text(), Loader)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_locks_are_within_bounds(python: str) -> None:
    everything, ours = locked(python), project()
    for line in (*ours["dependencies"], *ours["optional-dependencies"]["app"]):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            version = everything[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}: {version} is locked"


def test_locks_have_hashes_and_no_addresses() -> None:
    text = (ROOT / "docker" / "requirements.txt").read_text()
    for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE):
        assert not block or re.search(r"--hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]
    assert "://" not in text and "index" not in text and "/tmp" not in text


def test_what_is_copied_is_there_and_sent() -> None:
    """Of the Dockerfile's COPY lines, none of which .dockerignore holds back."""
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    sources = [source for line in copied for source in line.split()]
    sent = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M)
    assert {"app", "kernels", "slimwhisper"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists() and source.partition("/")[0] in sent, source


def test_composes_command_is_ours() -> None:
    service = compose("compose.yaml")["services"]["slimwhisper"]
    a = build_parser().parse_args(service["command"])
    assert (a.command, a.host, a.port) == ("serve", "0.0.0.0", 7860)
    assert int(service["stop_grace_period"].removesuffix("s")) > a.patience + 5
    (port,) = service["ports"]
    assert port.startswith("${SLIMWHISPER_ADDRESS:-127.0.0.1}:"), "not open to the network"


def test_one_version() -> None:
    version = project()["version"]
    assert f'version="{version}"' in (ROOT / "Dockerfile").read_text()
    for name in ("compose.yaml", "compose.cpu.yaml"):
        assert f"image: slimwhisper:{version}" in (ROOT / name).read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert version in (ROOT / "CHANGELOG.md").read_text()


def test_the_app_of_home_assistant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is ours, and Home Assistant is told where it listens."""
    config = compose("docker/homeassistant/config.yaml")
    run = runpy.run_path(str(ROOT / "docker/homeassistant/run.py"))
    a = build_parser().parse_args(run["command"](config["options"])[3:])
    assert (a.host, a.model, f"{a.wyoming}/tcp" in config["ports"]) == ("0.0.0.0", "base", True)
    assert config["options"].keys() == config["schema"].keys()
    assert config["timeout"] > a.patience + 5 and config["version"] == project()["version"]
    told: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda r, timeout: told.append(r) or io.BytesIO())
    monkeypatch.setattr("socket.create_connection", lambda address, _: socket.socket())
    run["announce"]("http://supervisor", "T")
    (request,) = told
    assert json.loads(request.data)["config"]["uri"].endswith(f":{a.wyoming}")
    assert request.get_header("Authorization") == "Bearer T"


def test_notices_name_every_package() -> None:
    text = (ROOT / "THIRD_PARTY.md").read_text().lower()
    named = set(re.findall(r"[a-z0-9-]+", text.replace("_", "-")))
    packages = locked()
    elsewhere = {"colorama", "httpx2-jsfetch"}  # Windows, browsers
    assert {p for p in packages if not p.startswith("nvidia-")} - named == elsewhere
