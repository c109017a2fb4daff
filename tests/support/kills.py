"""Kill and resume a job repeatedly, and check that nothing is lost or done twice."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from slimwhisper.jobs.journal import JOURNAL_NAME


class Forked:
    """A job in its own process; see kill_child.py."""

    def __init__(self, parent: subprocess.Popen[str], log: Path) -> None:
        assert parent.stdin is not None and parent.stdout is not None
        self._answers = parent.stdout
        print(log, file=parent.stdin, flush=True)
        self.pid = int(self._answers.readline())

    def wait(self) -> int:
        """The exit status; negative: the signal that killed the job."""
        return int(self._answers.readline())


@contextmanager
def forking(*arguments: str, delay: float = 0.005) -> Iterator[Callable[[Path], Forked]]:
    """A process that forks jobs with these arguments; gives what starts one. delay: seconds that
    each recording takes.
    """
    script = Path(__file__).with_name("kill_child.py")
    with subprocess.Popen(
        [sys.executable, str(script), str(delay), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        yield partial(Forked, parent)
        parent.stdin.close()


@dataclass(frozen=True)
class Ended:
    """How one run ended, and what was in the journal by then."""

    status: int
    reports: list[str]  # the error lines
    recorded: set[str]  # paths with a line in the journal


@dataclass
class Kills:
    """All runs of one job, and the outputs of each file when it was first done."""

    start: Callable[[Path], Forked]  # writes its standard error to this file
    inputs: Path
    out: Path
    logs: Path
    formats: tuple[str, ...]
    runs: list[Ended] = field(default_factory=list)
    seen: dict[str, dict[Path, tuple[int, int]]] = field(default_factory=dict)

    def run(self, moments: Iterable[float]) -> None:
        """Start and kill the job after so many seconds until it ends, then run it once more."""
        for seconds in moments:
            child = self.start(self._log())
            time.sleep(seconds)
            with suppress(ProcessLookupError):
                os.kill(child.pid, 9)
            self._ended(child)
            if self.runs[-1].status != -9:
                break
        self._ended(self.start(self._log()))

    @property
    def kills(self) -> int:
        return sum(run.status == -9 for run in self.runs)

    def _log(self) -> Path:
        """The file for the standard error of the current run."""
        path = self.logs / f"{len(self.runs)}.log"
        path.touch()
        return path

    def _ended(self, child: Forked) -> None:
        status = child.wait()
        log = self._log().read_text(errors="surrogateescape")
        reports = [line for line in log.splitlines() if line.startswith("slimwhisper: ")]
        lines = journal_lines(self.out)
        self.runs.append(Ended(status, reports, {line["path"] for line in lines}))
        for path in {line["path"] for line in lines if line["status"] == "done"} - self.seen.keys():
            self.seen[path] = self.states(Path(path))

    def states(self, path: Path) -> dict[Path, tuple[int, int]]:
        """Inode and modification time of each output of a recording."""
        place = self.out / path.relative_to(self.inputs).with_suffix("")
        targets = [place.with_name(f"{place.name}.{suffix}") for suffix in self.formats]
        stats = [target.stat() for target in targets]
        return {t: (s.st_ino, s.st_mtime_ns) for t, s in zip(targets, stats, strict=True)}

    def check(self, good: set[Path], bad: set[Path], undisturbed: Path) -> None:
        """That after the last run all is as if it had been the only one, and nothing came twice."""
        assert self.runs[-1].status == (1 if bad else 0)
        statuses = [(line["path"], line["status"]) for line in journal_lines(self.out)]
        wanted = [(path, "done") for path in good] + [(path, "failed") for path in bad]
        assert sorted(statuses) == sorted((str(path), status) for path, status in wanted)
        assert self.seen == {path: self.states(Path(path)) for path in self.seen}, "done twice"
        assert whole_tree(self.out) == whole_tree(undisturbed)
        for path in bad:
            assert sum(self._reports(run, path) for run in self.runs) == 1, path

    def _reports(self, run: Ended, path: Path) -> int:
        """How often a run reported a file.

        The last report before a kill does not count if it is not in the journal: the next run
        repeats it, so that none is lost.
        """
        naming = [report for report in run.reports if f"{path}: " in report]
        cut_off = run.status == -9 and str(path) not in run.recorded
        if cut_off and naming and run.reports[-1] == naming[-1]:
            naming.pop()
        return len(naming)


def journal_lines(out: Path) -> list[dict[str, Any]]:
    """The complete lines of the journal."""
    path = out / JOURNAL_NAME
    lines = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def whole_tree(out: Path) -> dict[str, bytes]:
    """The content of every file below a folder, except the journal."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and path.name != JOURNAL_NAME
    }
