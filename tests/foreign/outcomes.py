"""Checks, their outcomes, and the table of them."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

NUMBER = r"\d+(?:\.\d+)+|\d{8}"  # of a release


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Check:
    """One case of one suite. reason: why it did not pass; if that is not explained, its message."""

    suite: str
    name: str
    status: Status = Status.PASSED
    reason: str = ""
    explained: bool = True


class Known(NamedTuple):
    """Why checks do not pass. name, message: regular expressions for the check and its failure."""

    suite: str
    reason: str
    name: str = ""
    message: str = ""
    status: Status = Status.FAILED


class NotApplicableError(Exception):
    """The check cannot be made here; the reason."""


def failed(suite: str, name: str, message: str) -> Check:
    """A check whose failure is not explained."""
    return Check(suite, name, Status.FAILED, message, explained=False)


def attempt(suite: str, name: str, check: Callable[[], object]) -> Check:
    """What comes of a check that is a function: what it raises is its failure."""
    try:
        check()
    except NotApplicableError as reason:
        return Check(suite, name, Status.NOT_APPLICABLE, str(reason))
    except Exception as error:
        return failed(suite, name, f"{type(error).__name__}: {error}")
    return Check(suite, name)


def needs(*packages: str) -> None:
    """packages: names to import, or "to import: to install". Raises NotApplicableError."""
    for package in packages:
        name, _, other = package.partition(": ")
        try:
            import_module(name)
        except (ImportError, OSError) as error:  # OSError: a library for another machine
            why = f"{name} does not import ({error})"
            raise NotApplicableError(f"{why}: pip install {other or name}") from None


def explain(checks: Iterable[Check], known: Sequence[Known]) -> list[Check]:
    """The checks, where failures that are known have their reasons."""
    return [_explained(check, known) for check in checks]


def _explained(check: Check, known: Sequence[Known]) -> Check:
    if check.explained:
        return check
    for row in known:
        matches = row.suite == check.suite and re.search(row.name, check.name)
        if matches and re.search(row.message, check.reason):
            return replace(check, status=row.status, reason=row.reason, explained=True)
    return check


def unused(checks: Sequence[Check], known: Sequence[Known]) -> list[str]:
    """The reasons that explained nothing, of suites that were run."""
    run = {check.suite for check in checks if check.status is not Status.NOT_APPLICABLE}
    reasons = {(check.suite, check.reason) for check in checks}
    return [
        f"{k.suite}: {k.reason}"
        for k in known
        if k.suite in run and (k.suite, k.reason) not in reasons
    ]


def version(folder: Path) -> str:
    """Of a checkout: its commit, else the release that its files name."""
    head = folder / ".git" / "HEAD"
    if head.is_file():
        text = head.read_text().strip().removeprefix("ref: ")
        commit = folder / ".git" / text
        return (commit.read_text() if commit.is_file() else text)[:9]
    files = ("pyproject.toml", "package.json", "setup.py", "CMakeLists.txt")
    patterns = [*files, "*/version.py", "*/_version.py", "*/__init__.py", "*/common.py"]
    for path in (path for pattern in patterns for path in sorted(folder.glob(pattern))):
        text = path.read_text()
        if parts := re.findall(r"VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text):
            return ".".join(parts)
        for line in text.splitlines():
            found = re.search(rf"(?<![a-z-])version[_\" ]*[=: ][\"' ]*({NUMBER})\b", line, re.I)
            if found and "cmake_minimum" not in line:
                return found[1]
    return "?"


def table(checks: Sequence[Check], versions: dict[str, str]) -> str:
    """Counts by suite, then the reasons, in Markdown."""
    lines = ["| suite | version | passed | failed | not applicable |", "|---|---|---|---|---|"]
    for suite in dict.fromkeys(check.suite for check in checks):
        counts = Counter(check.status for check in checks if check.suite == suite)
        cells = [suite, versions.get(suite, ""), *(str(counts[status]) for status in Status)]
        lines.append(f"| {' | '.join(cells)} |")
    total = Counter(check.status for check in checks)
    lines.append(f"| all | | {' | '.join(str(total[status]) for status in Status)} |")
    reasons = Counter((c.suite, c.status, c.reason) for c in checks if c.explained and c.reason)
    lines += ["", *(f"- {s}: {n} {status}: {why}" for (s, status, why), n in reasons.items())]
    for check in checks:
        if not check.explained:
            lines.append(
                f"UNEXPLAINED {check.suite}: {check.name}: {check.reason.splitlines()[:1]}"
            )
    return "\n".join(lines)
