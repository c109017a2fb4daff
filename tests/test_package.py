"""Wheel and editable install: all modules, nothing else on the import path, and no network."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT, SAMPLES

FOLDERS = ("slimwhisper", "app", "kernels")
NATIVE = "slimwhisper/kernels/cpu/_native.so"  # where there is a compiler
PROBE = """
import importlib.util
import slimwhisper, slimwhisper.app.api.access
import slimwhisper.cache.decoder_cache, slimwhisper.kernels.attention
for name in ("kernels", "app", "tests", "cache"):
    assert importlib.util.find_spec(name) is None, name
print(slimwhisper.kernels.attention.__file__)
"""

ALONE = ["unshare", "--map-root-user", "--net"]  # a network namespace of its own
LISTEN_HERE = """
import fcntl, socket, struct
UP = struct.pack("16sh", b"lo", 0x41) + bytes(14)  # SIOCSIFFLAGS: the loopback is up
fcntl.ioctl(socket.socket(), 0x8914, UP)
"""
# of every Python that runs: writes down each name and address that is not this machine's
WATCH = """
import sys
def watch(event, arguments):
    if event in ("socket.getaddrinfo", "socket.connect"):
        host = arguments[0] if event == "socket.getaddrinfo" else arguments[1][0]
        if isinstance(host, str) and host not in ("127.0.0.1", "::1", "localhost", ""):
            open("sought.txt", "a").write(f"{host}\\n")
sys.addaudithook(watch)
"""
JOB = """
import subprocess, sys, time, httpx, slimwhisper
assert "/site/" in slimwhisper.__file__
sample = sys.argv[1]
cli = [sys.executable, "-m", "slimwhisper"]
subprocess.run([*cli, "transcribe", sample, "--model", "digits", "-o", "out"], check=True)
server = subprocess.Popen([*cli, "serve", "--model", "digits", "--port", "7861"])
try:
    url = "http://127.0.0.1:7861"
    for _ in range(1200):
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                break
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    answer = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": open(sample, "rb")})
    print(answer.json()["text"])
    assert httpx.get(url).status_code == 200  # the page
finally:
    server.terminate()
    assert server.wait(60) == 0
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the source tree"),
]


def run(*command: str | Path, **environment: str) -> str:
    words, cwd = [str(c) for c in command], environment.pop("cwd", str(ROOT))
    variables = os.environ | environment
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True)
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


def shipped() -> set[str]:
    """Every file of the tree, where it is installed, but for the sources in C."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS)
    files = [name for name in listed.splitlines() if not name.endswith((".c", ".h"))]
    files = [name for name in files if (ROOT / name).is_file()]
    return {name if name.startswith("slimwhisper/") else f"slimwhisper/{name}" for name in files}


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheels")
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", out, source)
    run(*build, CFLAGS="-O0")  # compiled in a sixth of the time
    (made,) = out.glob("*.whl")
    return made


def test_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {n for n in names if ".dist-info/" not in n} - {NATIVE} == shipped()
    assert (NATIVE in names) == (shutil.which("gcc") is not None)
    assert wheel.name.split("-")[2:4] == ["py3", "none"], "it serves every Python"
    assert wheel.stat().st_size < 7e6  # unused embedding rows pack to nothing
    assert any(n.endswith("licenses/LICENSE") for n in names)

    installed = tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--target", installed, wheel)
    place = run(sys.executable, "-c", PROBE, cwd=str(tmp_path), PYTHONPATH=str(installed))
    assert place.startswith(str(installed))

    library = installed / NATIVE
    load = f"import ctypes; print(ctypes.CDLL({str(library)!r}).usable() >= 0)"
    for name in ("python3.11", "python3.12", "python3.13"):
        python, other = shutil.which(name), tmp_path / name
        if python is None or subprocess.run([python, "-V"], capture_output=True).returncode:
            continue  # a launcher of one that is not installed
        run(*pip[:3], "--python", python, *pip[3:], "--no-compile", "--target", other, wheel)
        found = {str(p.relative_to(other)) for p in (other / "slimwhisper").rglob("*.*")}
        assert found - {NATIVE} == shipped()
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


ALONE_FAILS = (
    shutil.which("unshare") is None
    or subprocess.run([*ALONE, "true"], capture_output=True).returncode
)


@pytest.mark.skipif(bool(ALONE_FAILS), reason="needs unshare, and network namespaces for users")
def test_without_a_network(wheel: Path, tmp_path: Path) -> None:
    """Installed from a folder of wheels, started, asked. Nothing looks for another machine, so
    nothing waits for one.
    """
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WATCH)
    install = f"{sys.executable} -m pip install -q --no-deps --no-index --find-links {wheel.parent}"
    steps = [
        f"{sys.executable} -c '{LISTEN_HERE}'",
        f"{install} --target site slimwhisper",
        f"PYTHONPATH=site {sys.executable} -c '{JOB}' {SAMPLES / 'phone-number.wav'}",
    ]
    said = run(*ALONE, "sh", "-ec", "\n".join(steps), cwd=str(tmp_path))
    assert "five five five" in said
    assert (tmp_path / "out/phone-number.txt").exists()
    assert not (tmp_path / "sought.txt").exists(), (tmp_path / "sought.txt").read_text()
