"""How workers are counted, and which flags are refused."""

from math import inf

import pytest

from slimwhisper.cli import build_parser
from slimwhisper.cores import Cores
from slimwhisper.errors import OptionError
from slimwhisper.jobs.flags import check_engine
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.ray.worker_plan import WorkerPlan, plan_workers
from tests.support.command import python

GPUS = {"CPU": 64.0, "GPU": 8.0}
CPUS = {"CPU": 16.0}


def asked(flags: str) -> JobPlan:
    given = ["transcribe", "x", "--engine", "ray", *flags.split()]
    return JobPlan.of(build_parser().parse_args(given))


@pytest.mark.parametrize(
    ("flags", "resources", "hosts", "plan"),
    [
        ("", GPUS, 1, WorkerPlan(8, 1, 1, 0)),
        ("--workers 3", GPUS, 1, WorkerPlan(3, 1, 1, 0)),
        ("--device cuda --threads 2", GPUS, 4, WorkerPlan(8, 1, 1, 2)),
        ("--device cpu", GPUS, 2, WorkerPlan(2, 32, 0, 32)),
        ("", CPUS, 1, WorkerPlan(1, 16, 0, 16)),
        ("--workers 5", CPUS, 1, WorkerPlan(5, 3, 0, 3)),
        ("--workers 4 --threads 2", CPUS, 1, WorkerPlan(4, 2, 0, 2)),
        ("--workers 32", CPUS, 1, WorkerPlan(32, 0.5, 0, 1)),
        ("--workers 3", CPUS, 2, WorkerPlan(3, 4, 0, 4)),  # two on one host
        ("--workers 32 --ray_address auto", GPUS, 1, WorkerPlan(32, 1, 1, 0)),
        ("--workers 32 --ray_address auto --device cuda", CPUS, 1, WorkerPlan(32, 1, 1, 0)),
    ],
)
def test_workers(
    flags: str,
    resources: dict[str, float],
    hosts: int,
    plan: WorkerPlan,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Cores(64, 64, 64, inf)
    monkeypatch.setattr("slimwhisper.ray.worker_plan.find_cores", lambda: here)
    assert plan_workers(asked(flags), resources, hosts) == plan


@pytest.mark.parametrize(("flags", "threads"), [("", 8), ("--workers 5", 1), ("--threads 3", 3)])
def test_hyper_threads(flags: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray counts them as CPUs; they get no thread of torch unless asked."""
    here = Cores(16, 16, 8, inf)
    monkeypatch.setattr("slimwhisper.ray.worker_plan.find_cores", lambda: here)
    assert plan_workers(asked(flags), CPUS, 1).threads == threads


@pytest.mark.parametrize(
    ("flags", "resources", "words"),
    [
        ("--device cuda:2", GPUS, "use --devices 2"),
        ("--device cuda", CPUS, "Ray sees no GPU"),
        ("--workers 9", GPUS, "--workers 9: Ray sees 8 GPUs"),
    ],
)
def test_devices_that_do_not_work(flags: str, resources: dict[str, float], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        plan_workers(asked(flags), resources, 1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--devices 0;1", "give all, or numbers such as 0,2"),
        ("--devices 0 --ray_address auto", "--devices is for this host"),
    ],
)
def test_wrong_usage(flags: str, words: str) -> None:
    """What is refused without Ray is in `TABLES["command"]`."""
    with pytest.raises(OptionError, match=words):
        check_engine(build_parser().parse_args(f"transcribe x --engine ray {flags}".split()))


def test_without_the_extra() -> None:
    code = (
        "import sys; sys.modules['ray'] = None; from slimwhisper.cli import main; "
        "sys.exit(main(['transcribe', '.', '--engine', 'ray']))"
    )
    done = python("-c", code)
    line = "slimwhisper: --engine ray needs ray; pip install 'ray[data]"
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(line)
