"""Runs other people's suites against slimwhisper: FOREIGN=checkouts python -m tests.foreign

FOREIGN has the checkouts, each under its repository's name; nothing is fetched. Prints a table in
Markdown, and ends with 1 if a check failed that suites.toml does not explain.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.foreign import outcomes, readers, servers, unit_tests
from tests.foreign.outcomes import Check, Known, NotApplicableError, Status, failed
from tests.foreign.places import Places, running

Run = Callable[[Places], Iterator[Check]]
# a suite, whether it is a checkout, and what runs it
RUNS: tuple[tuple[str, bool, Run], ...] = (
    *((s.folder, True, partial(unit_tests.run_python, s)) for s in unit_tests.SUITES),
    ("openai-node", True, unit_tests.run_node),
    ("wyoming", True, servers.wyoming),
    ("whisper.cpp", True, servers.whisper_cpp),
    ("transformers", False, servers.transformers),
    *((name, True, partial(readers.read_by, name)) for name in readers.CHECKOUTS),
    *((name, False, partial(readers.read_by, name)) for name in ("ffmpeg", "pandas")),
    ("dscore", True, readers.score),
)
KNOWN = [
    Known(**{**row, "status": Status(row.get("status", "failed"))})
    for row in unit_tests.TABLE["known"]
]
IMPORTED = (*readers.CHECKOUTS, "dscore", "wyoming")  # here, from their checkouts


def outcomes_of(suite: str, checked_out: bool, run: Run, places: Places) -> Iterator[Check]:
    """Of a suite: what cannot be run has its reason."""
    try:
        if checked_out and not (places.foreign / suite).is_dir():
            raise NotApplicableError("no checkout of this name in FOREIGN")
        yield from run(places)
    except NotApplicableError as reason:
        yield Check(suite, "all", Status.NOT_APPLICABLE, str(reason))
    except Exception as error:
        yield failed(suite, "all", f"{type(error).__name__}: {error}")


def main(chosen: Sequence[str]) -> int:
    """chosen: suites; none: all."""
    if "FOREIGN" not in os.environ:
        print("FOREIGN is not set: give the folder of the checkouts", file=sys.stderr)
        return 2
    foreign = Path(os.environ["FOREIGN"]).resolve()
    sys.path[:0] = [str(foreign / name) for name in IMPORTED]
    checks: list[Check] = []
    with tempfile.TemporaryDirectory() as work, running(foreign, Path(work)) as places:
        for suite, checked_out, run in RUNS:
            if not chosen or suite in chosen:
                checks += outcomes_of(suite, checked_out, run, places)
    checks = outcomes.explain(checks, KNOWN)
    suites = {check.suite for check in checks}
    versions = {s: outcomes.version(foreign / s) for s in suites if (foreign / s).is_dir()}
    print(outcomes.table(checks, versions))
    for reason in outcomes.unused(checks, KNOWN):
        print(f"not needed: {reason}")
    return int(any(not check.explained for check in checks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
