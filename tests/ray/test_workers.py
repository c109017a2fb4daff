"""How workers are counted, and the scheduler on simulated ones: every item ends once."""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from math import inf
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from slimwhisper.cli import build_parser
from slimwhisper.cores import Cores
from slimwhisper.errors import OptionError
from slimwhisper.jobs.flags import check_engine
from slimwhisper.jobs.plan import JobPlan
from slimwhisper.ray.work_scheduler import WorkScheduler
from slimwhisper.ray.worker_plan import WorkerPlan, plan_workers


def given(scheduler: WorkScheduler[str], items: Iterator[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for worker, item in scheduler.assign(lambda: next(items, None)):
        found.setdefault(worker, []).append(item)
    return found


def filled(*rooms: int) -> WorkScheduler[str]:
    scheduler: WorkScheduler[str] = WorkScheduler()
    for worker, room in enumerate(rooms):
        scheduler.up(worker, room)
    return scheduler


@pytest.mark.parametrize("seed", range(4))
def test_random_deaths(seed: int) -> None:
    """Items that kill their worker are given up, others only if their worker died twice by chance;
    each ends once.
    """
    rng = random.Random(seed)
    items = [str(n) for n in range(3000)]
    poison = set(rng.sample(items, 5))
    source, ended, running = iter(items), Counter[str](), dict[int, list[str]]()
    scheduler, given_up = filled(*[24] * 8), set[str]()
    started, chances = 8, Counter[str]()
    while True:
        for worker, load in given(scheduler, source).items():
            running.setdefault(worker, []).extend(load)
        if scheduler.finished:
            break
        worker = rng.choice([w for w, load in running.items() if load])
        item = running[worker].pop(rng.randrange(len(running[worker])))
        by_chance = rng.random() < 0.003
        if item not in poison and not by_chance:
            scheduler.done(worker, item)
            ended[item] += 1
            continue
        chances.update([item] if by_chance else [])
        lost, last = scheduler.down(worker)
        assert lost == {item, *running.pop(worker)} and (not last or len(lost) == 1)
        given_up |= lost if last else set()
        ended.update(lost if last else [])
        scheduler.up(started, 24)
        started += 1
    assert ended == Counter(items) and started > 18
    assert poison <= given_up
    assert all(chances[item] for item in given_up - poison)


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
        ("--workers 2", "--workers needs --engine ray"),
        ("--devices all", "--devices needs --engine ray"),
        ("--engine ray --devices 0;1", "give all, or numbers such as 0,2"),
        ("--engine ray --devices 0 --ray_address auto", "--devices is for this host"),
    ],
)
def test_wrong_usage(flags: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check_engine(build_parser().parse_args(["transcribe", "x", *flags.split()]))


def test_without_the_extra() -> None:
    code = (
        "import sys; sys.modules['ray'] = None; from slimwhisper.cli import main; "
        "sys.exit(main(['transcribe', '.', '--engine', 'ray']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = "slimwhisper: --engine ray needs ray; pip install 'ray[data]"
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(line)


def test_actors_that_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps to its part of the memory before its engine is made. A stand-in for Ray."""
    context = SimpleNamespace(worker=SimpleNamespace(mode=1), get_assigned_resources=dict)
    ray = MagicMock(is_initialized=lambda: True, get_runtime_context=lambda: context, WORKER_MODE=1)
    for name in ("ray", "ray.util", "ray.util.metrics"):
        monkeypatch.setitem(sys.modules, name, ray)
    for name in ("transcriber", "metrics"):
        monkeypatch.delitem(sys.modules, f"slimwhisper.ray.{name}", raising=False)
    from slimwhisper.ray import transcriber

    done: list[object] = []
    model = SimpleNamespace(device=torch.device("cuda", 0))
    monkeypatch.setattr(transcriber, "load_model", lambda _: model)
    monkeypatch.setattr(transcriber, "EngineFeed", lambda *_: done.append("engine"))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, _: done.append(share)
    )
    for resources in ({"GPU": 0.5}, {"GPU": 1.0}, {}):
        context.get_assigned_resources = lambda resources=resources: resources
        transcriber.Transcriber()
    context.worker.mode = 0  # a driver has no resources of its own
    transcriber.Transcriber()
    assert done == [0.5, *["engine"] * 4]
    for name in ("transcriber", "metrics"):
        del sys.modules[f"slimwhisper.ray.{name}"]
