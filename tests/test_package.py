"""Wheel and editable install: all modules, and nothing else on the import path."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DATA = {
    *(f"slimwhisper/jobs/report.{suffix}" for suffix in ("css", "html", "js")),
    *("slimwhisper/mel_filters.npz", "slimwhisper/py.typed"),
    *(f"slimwhisper/models/digits.{suffix}" for suffix in ("md", "pt")),
    *(f"slimwhisper/tokens/{name}.tiktoken" for name in ("gpt2", "multilingual")),
    *("slimwhisper/checkpoint/openai_models.json", "slimwhisper/kernels/configurations.json"),
    "slimwhisper/kernels/gpu/hopper_latent.cu",
    *("slimwhisper/subtitles/languages.toml", "slimwhisper/trust/phrases.toml"),
    *(f"slimwhisper/app/page/assets/{p.name}" for p in (ROOT / "app/page/assets").iterdir()),
    *(f"slimwhisper/{p.relative_to(ROOT)}" for p in (ROOT / "app/page/samples").rglob("*.*")),
}
LINKED = {f"slimwhisper/{name}": ROOT / name for name in ("app", "kernels")}
PROBE = """
import importlib.util
import slimwhisper, slimwhisper.app.api.access
import slimwhisper.cache.decoder_cache, slimwhisper.kernels.attention
for name in ("kernels", "app", "tests", "cache"):
    assert importlib.util.find_spec(name) is None, name
print(slimwhisper.kernels.attention.__file__)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the source tree"),
]


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(c) for c in command],
        cwd=environment.pop("cwd", str(ROOT)),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git tracks, so that building leaves the tree alone; symlinks stay links."""
    target = tmp_path_factory.mktemp("source")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        file, copy = ROOT / name, target / name
        if file.is_symlink() or file.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            if file.is_symlink():
                copy.symlink_to(file.readlink())
            else:
                copy.write_bytes(file.read_bytes())
    return target


def modules(names: list[str]) -> set[str]:
    return {n for n in names if n.endswith(".py") and n.startswith("slimwhisper/")}


def compiled(names: Iterable[str]) -> set[str]:
    """The functions in C, which need a compiler."""
    return {n for n in names if n == "slimwhisper/kernels/cpu/_native.so"}


def tracked() -> set[str]:
    """Every module of the tree, where it is installed."""
    folders = {"slimwhisper": ROOT / "slimwhisper", **LINKED}
    return {
        f"{name}/{file.relative_to(folder)}"
        for name, folder in folders.items()
        for file in folder.rglob("*.py")
    }


def test_wheel(source: Path, tmp_path: Path) -> None:
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", tmp_path, source)
    run(*build, CFLAGS="-O0")  # compiled in a sixth of the time
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert modules(names) == tracked()
    others = {n for n in names if ".dist-info/" not in n} - modules(names)
    assert others - compiled(names) == DATA
    assert len(compiled(names)) == (shutil.which("gcc") is not None)
    assert wheel.name.split("-")[2:4] == ["py3", "none"], "it serves every Python"
    assert wheel.stat().st_size < 7e6  # unused embedding rows pack to nothing
    tops = {n.split("/")[0] for n in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"slimwhisper"}
    assert any(n.endswith("licenses/LICENSE") for n in names)

    installed = tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--target", installed, wheel)
    place = run(sys.executable, "-c", PROBE, cwd=str(tmp_path), PYTHONPATH=str(installed))
    assert place.startswith(str(installed))

    library = installed / "slimwhisper/kernels/cpu/_native.so"
    load = f"import ctypes; print(ctypes.CDLL({str(library)!r}).usable() >= 0)"
    for name in ("python3.11", "python3.12", "python3.13"):
        python, other = shutil.which(name), tmp_path / name
        if python is None or subprocess.run([python, "-V"], capture_output=True).returncode:
            continue  # a launcher of one that is not installed
        run(*pip[:3], "--python", python, *pip[3:], "--no-compile", "--target", other, wheel)
        assert modules([str(p.relative_to(other)) for p in other.rglob("*.py")]) == tracked()
        if library.exists():
            assert run(python, "-c", load).strip() == "True"


@pytest.mark.parametrize(
    ("environment", "others"),
    [
        ({"CC": "false"}, {"slimwhisper/kernels/cpu/native.txt"}),
        ({"SLIMWHISPER_NATIVE": "0"}, set()),
    ],
)
def test_wheel_without_the_library(
    source: Path, tmp_path: Path, environment: dict[str, str], others: set[str]
) -> None:
    """A compiler that fails leaves its error for the doctor; without one, any system is served."""
    tree = tmp_path / "tree"
    shutil.copytree(source, tree, symlinks=True, ignore=shutil.ignore_patterns("build"))
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", tmp_path, tree)
    run(*build, **environment)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert {n for n in names if "/cpu/" in n and not n.endswith(".py")} == others
        for name in others:
            assert b"false failed" in archive.read(name)
    assert wheel.name.endswith("py3-none-any.whl") == (not others)


def test_editable_install(source: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # the dependencies of this environment, but not its own editable hooks
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", source)
    # this environment's setuptools builds; test_wheel compiles
    run(*pip, PYTHONPATH=sysconfig.get_path("purelib"), SLIMWHISPER_NATIVE="0")
    place = run(python, "-c", PROBE, cwd=str(tmp_path))
    assert Path(place.strip()).resolve() == (source / "kernels" / "attention.py").resolve()
