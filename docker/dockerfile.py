"""A parser for the part of the Dockerfile language that ours uses."""

import json
import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]


@dataclass
class Step:
    """One instruction: its name, such as `RUN`, its --flags, and the rest."""

    keyword: str
    flags: list[str]
    text: str

    def mounts(self) -> list[dict[str, str]]:
        """The fields of each --mount=type=bind,source=a,target=b."""
        given = [f.removeprefix("--mount=") for f in self.flags if f.startswith("--mount=")]
        return [dict(part.partition("=")[::2] for part in each.split(",")) for each in given]


@dataclass
class Image:
    """An image's settings, and the steps that build it from `parent`."""

    parent: str
    steps: list[Step] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def child(self, parent: str) -> "Image":
        """A new image based on this one, whose name is `parent`; so far equal to it."""
        return replace(self, parent=parent, steps=[], env=dict(self.env), args={})


def read_steps(text: str) -> list[Step]:
    """All instructions, with continuation lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            keyword, _, rest = line.strip().partition(" ")
            flags = []
            while match := re.match(r"(--[a-z-]+=\S+)\s*", rest):
                flags.append(match[1])
                rest = rest[match.end() :]
            found.append(Step(keyword.upper(), flags, rest))
    return found


def expand(text: str, values: dict[str, str]) -> str:
    """Replace ${NAME} and $NAME by their values, as Docker does."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: values[m[1] or m[2]], text)


def read_images(text: str, build_args: dict[str, str]) -> dict[str, Image]:
    """Every stage by name, in order; an `Image` has inherited its parents' settings."""
    images: dict[str, Image] = {}
    outer: dict[str, str] = {}
    image: Image | None = None
    for step in read_steps(text):
        if image is None and step.keyword == "ARG":
            name, _, default = step.text.partition("=")
            outer[name] = build_args.get(name, default)
        elif step.keyword == "FROM":
            parent, _, name = expand(step.text, outer).partition(" AS ")
            image = images[name] = images.get(parent, Image(parent)).child(parent)
        else:
            assert image is not None, step
            tell(image, step, build_args)
            image.steps.append(step)
    return images


def tell(image: Image, step: Step, build_args: dict[str, str]) -> None:
    """Apply a step to the settings of its image. Raises ValueError for an unknown step."""
    values = image.args | image.env
    match step.keyword:
        case "ARG":
            name, _, default = step.text.partition("=")
            image.args[name] = build_args.get(name, default)
        case "ENV":
            for name, value in re.findall(r"(\w+)=(\S+)", step.text):
                image.env[name] = expand(value, values)
        case "WORKDIR":
            image.workdir = expand(step.text, values)
        case "USER":
            image.user = step.text
        case "ENTRYPOINT":
            image.entrypoint = json.loads(step.text)
        case "CMD":
            image.command = json.loads(step.text)
        case "HEALTHCHECK":
            image.health = json.loads(step.text.removeprefix("CMD"))
        case "RUN" | "COPY" | "LABEL" | "VOLUME" | "EXPOSE" | "STOPSIGNAL":
            pass
        case other:
            raise ValueError(f"{other} is not known here")


def chain(images: dict[str, Image], name: str) -> list[str]:
    """A stage and the stages that it is based on or copies files from, in build order."""
    needed = [images[name].parent]
    needed += [m["from"] for step in images[name].steps for m in step.mounts() if "from" in m]
    found: list[str] = []
    for each in [n for n in needed if n in images]:
        found += [n for n in chain(images, each) if n not in found]
    return [*found, name]


def is_ignored(path: PurePosixPath, patterns: list[str]) -> bool:
    """Whether .dockerignore excludes a file, or a folder above it, from the build."""
    ignored = False
    for pattern in patterns:
        wanted = pattern.lstrip("!").removeprefix("**/")
        anywhere = pattern.lstrip("!").startswith("**/")
        for part in (path, *path.parents[:-1]):
            if fnmatch(part.name if anywhere else str(part), wanted):
                ignored = not pattern.startswith("!")
    return ignored


def context() -> list[PurePosixPath]:
    """The files and links that would be sent to an engine."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    tops = [p for p in sorted(ROOT.iterdir()) if not is_ignored(PurePosixPath(p.name), patterns)]
    found = []
    for top in tops:
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            name = PurePosixPath(path.relative_to(ROOT))
            if (path.is_symlink() or path.is_file()) and not is_ignored(name, patterns):
                found.append(name)
    return found
