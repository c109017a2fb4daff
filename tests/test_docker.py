"""What ships beside the package holds together: Dockerfile, Compose files, locks, notices."""

import re
import sys
import tomllib
from pathlib import PurePosixPath
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from slimwhisper.cli import build_parser
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="needs the source tree")
sys.path.insert(0, str(ROOT / "docker"))
import dockerfile  # noqa: E402

VARIANTS = ("cuda", "cpu")


def images(variant: str) -> dict[str, dockerfile.Image]:
    text = (ROOT / "Dockerfile").read_text()
    return dockerfile.read_images(text, {"VARIANT": variant})


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(name: str, python: str | None = None) -> dict[str, str]:
    """The versions for a Python of Linux, or all that are named."""
    lines = (ROOT / "docker" / name).read_text().splitlines()
    found = [Requirement(line.rstrip("\\ ")) for line in lines if re.match(r"[a-z0-9-]+==", line)]
    here = {"python_version": f"{python}", "python_full_version": f"{python}.0"}
    return {
        r.name: str(r.specifier).removeprefix("==")
        for r in found
        if r.marker is None or python is None or r.marker.evaluate(here)
    }


def wanted() -> list[Requirement]:
    p = project()
    return [Requirement(r) for r in (*p["dependencies"], *p["optional-dependencies"]["app"])]


def compose(name: str) -> Any:
    yaml = pytest.importorskip("yaml")

    class Loader(yaml.SafeLoader):
        """Compose's own tags, too."""

    Loader.add_constructor("!reset", lambda loader, node: loader.construct_sequence(node))
    return yaml.load((ROOT / name).read_text(), Loader)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_locks_are_within_bounds(python: str) -> None:
    files = ("torch-cuda.txt", "build.txt", "requirements.txt")
    everything = {name: v for file in files for name, v in locked(file, python).items()}
    for requirement in wanted():
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            version = everything[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}: {version} is locked"
    assert locked("torch-cpu.txt", python) == {"torch": everything["torch"]}


@pytest.mark.parametrize("name", ["torch-cuda.txt", "build.txt", "requirements.txt"])
def test_locks_have_hashes_and_no_addresses(name: str) -> None:
    text = (ROOT / "docker" / name).read_text()
    for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]
    assert "://" not in text and "index" not in text and "/tmp" not in text


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_steps_read_is_sent(variant: str) -> None:
    """.dockerignore leaves what COPY and bind mounts name, and nothing large or private."""
    sent = dockerfile.context()
    for name in dockerfile.chain(images(variant), "final"):
        for step in images(variant)[name].steps:
            sources = [m["source"] for m in step.mounts() if "from" not in m]
            if step.keyword == "COPY":
                sources += step.text.split()[:-1]
            for source in map(PurePosixPath, sources):
                assert any(f == source or source in f.parents for f in sent), source
    modules = {PurePosixPath(p.relative_to(ROOT)) for p in (ROOT / "app").glob("*.py")}
    assert modules <= set(sent)
    assert PurePosixPath("slimwhisper/models/digits.pt") in sent
    assert PurePosixPath("slimwhisper/app") in sent  # a link
    assert not [f for f in sent if ".git" in f.parts or "__pycache__" in f.parts]
    assert sum((ROOT / f).lstat().st_size for f in sent) < 30e6


@pytest.mark.parametrize("variant", VARIANTS)
def test_stages(variant: str) -> None:
    """torch comes before other packages, and those before the code."""
    found = dockerfile.chain(images(variant), "final")
    assert found == ["base", variant, "wheel", "final"]
    runs = [s.text for s in images(variant)["final"].steps if s.keyword == "RUN"]
    assert "requirements.txt" in runs[0] and "/dist/" in runs[-1]
    assert any("torch.txt" in s.text for s in images(variant)[variant].steps)


def test_it_runs_as_a_user_without_rights() -> None:
    image = images("cuda")["final"]
    assert image.user == "1000:1000" and image.workdir == "/outputs"
    assert image.env["XDG_CACHE_HOME"] == "/models"


def test_commands_are_ours() -> None:
    """The image's and Compose's commands parse, and the health check asks where they listen."""
    image = images("cuda")["final"]
    assert image.entrypoint == ["slimwhisper"]
    a = build_parser().parse_args(image.command)
    assert (a.command, a.host, a.port) == ("serve", "0.0.0.0", 7860)
    assert f"'127.0.0.1', {a.port}" in image.health[-1] and "'/health'" in image.health[-1]
    compile(image.health[-1], "HEALTHCHECK", "exec")
    service = compose("compose.yaml")["services"]["slimwhisper"]
    a = build_parser().parse_args(service["command"])
    assert (a.command, a.host, a.port) == ("serve", "0.0.0.0", 7860)
    assert int(service["stop_grace_period"].removesuffix("s")) > a.patience + 5
    assert build_parser().parse_args(["transcribe", "/data"]).output_dir == "."


def test_compose() -> None:
    service = compose("compose.yaml")["services"]["slimwhisper"]
    (port,) = service["ports"]
    assert port.startswith("${SLIMWHISPER_ADDRESS:-127.0.0.1}:") and port.endswith(":7860")
    devices = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    places = [volume.removesuffix(":ro").rsplit(":", 1)[-1] for volume in service["volumes"]]
    assert places == ["/models", "/outputs", "/data"]
    assert "SLIMWHISPER_API_KEY" in service["environment"]  # passed on, unset where it is unset
    over = compose("compose.cpu.yaml")["services"]["slimwhisper"]
    assert over["build"]["args"] == {"VARIANT": "cpu"}
    assert over["deploy"]["resources"]["reservations"]["devices"] == []


def test_one_version() -> None:
    version = project()["version"]
    assert f'version="{version}"' in (ROOT / "Dockerfile").read_text()
    for name in ("compose.yaml", "compose.cpu.yaml"):
        assert f"image: slimwhisper:{version}" in (ROOT / name).read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert version in (ROOT / "CHANGELOG.md").read_text()


def test_base_image_is_a_python_that_is_supported() -> None:
    tag = images("cuda")["base"].parent
    found = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+", tag)
    assert found and f"Programming Language :: Python :: {found[1]}" in project()["classifiers"]


def test_notices_name_every_package() -> None:
    text = (ROOT / "THIRD_PARTY.md").read_text().lower()
    named = set(re.findall(r"[a-z0-9-]+", text.replace("_", "-")))
    packages = locked("torch-cuda.txt") | locked("build.txt") | locked("requirements.txt")
    elsewhere = {"colorama", "httpx2-jsfetch"}  # Windows, browsers
    assert {p for p in packages if not p.startswith("nvidia-")} - named == elsewhere


def test_links_lead_somewhere() -> None:
    pages = ["SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "THIRD_PARTY.md"]
    for page in [*(ROOT / p for p in pages), ROOT / "docs" / "deployment.md"]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
