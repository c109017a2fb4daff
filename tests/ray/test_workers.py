"""How workers are counted, and which flags are refused."""

import tomllib
from math import inf
from pathlib import Path
from unittest.mock import patch

import pytest

from slimwhisper.cli import build_parser
from slimwhisper.cores import Cores
from slimwhisper.errors import OptionError
from slimwhisper.jobs.flags import check_engine
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.ray.worker_plan import WorkerPlan, plan_workers
from tests.support.command import python

TABLES = tomllib.loads(Path(__file__).with_name("workers.toml").read_text())


def asked(flags: str) -> JobPlan:
    given = ["transcribe", "x", "--engine", "ray", *flags.split()]
    return JobPlan.of(build_parser().parse_args(given))


@pytest.mark.parametrize(("flags", "resources", "hosts", "plan"), TABLES["workers"])
@patch("slimwhisper.ray.worker_plan.find_cores", lambda: Cores(64, 64, 64, inf))
def test_workers(flags: str, resources: str, hosts: int, plan: list[float]) -> None:
    assert plan_workers(asked(flags), TABLES[resources], hosts) == WorkerPlan(*plan)


@pytest.mark.parametrize(("flags", "threads"), [("", 8), ("--workers 5", 1), ("--threads 3", 3)])
@patch("slimwhisper.ray.worker_plan.find_cores", lambda: Cores(16, 16, 8, inf))
def test_hyper_threads(flags: str, threads: int) -> None:
    """Ray counts them as CPUs; they get no thread of torch unless asked."""
    assert plan_workers(asked(flags), TABLES["cpus"], 1).threads == threads


@pytest.mark.parametrize(("flags", "resources", "words"), TABLES["refused"])
def test_devices_that_do_not_work(flags: str, resources: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        plan_workers(asked(flags), TABLES[resources], 1)


def test_wrong_usage() -> None:
    """What is refused without Ray is in `TABLES["command"]`."""
    for flags, words in (
        ("0;1", "give all, or numbers such as 0,2"),
        ("0 --ray_address auto", "--devices is for this host"),
    ):
        given = f"transcribe x --engine ray --devices {flags}".split()
        with pytest.raises(OptionError, match=words):
            check_engine(build_parser().parse_args(given))


def test_without_the_extra() -> None:
    code = (
        "import sys; sys.modules['ray'] = None; from slimwhisper.cli import main; "
        "sys.exit(main(['transcribe', '.', '--engine', 'ray']))"
    )
    done = python("-c", code)
    line = "slimwhisper: --engine ray needs ray; pip install 'ray[data]"
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(line)
