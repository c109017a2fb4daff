"""Chooses the number of workers, and the CPUs and GPUs of each."""

from dataclasses import dataclass
from math import ceil

from slimwhisper.cores import find_cores
from slimwhisper.errors import OptionError
from slimwhisper.jobs.plan import JobPlan


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The number of workers, and the resources that Ray reserves for each."""

    workers: int
    cpus: float
    gpus: int
    threads: int  # as in `set_threads`


def plan_workers(plan: JobPlan, resources: dict[str, float], hosts: int) -> WorkerPlan:
    """One worker for each GPU; on CPUs, --workers of them, or one on each host.

    A cluster may still grow, so --workers may exceed its GPUs. CPUs are divided between the
    workers, so that these do not compete. Raises OptionError.
    """
    workers, device = plan.workers, plan.load["device"]
    kind = (device or "").partition(":")
    if kind[1]:
        raise OptionError(f"--device {device}: Ray assigns the GPUs; use --devices {kind[2]}")
    gpus, cpus = int(resources.get("GPU", 0)), resources.get("CPU", 1.0)
    grows = bool(plan.ray_address and workers)
    if kind[0] == "cuda" and not gpus and not grows:
        raise OptionError("--device cuda: Ray sees no GPU; drop the flag, or use cpu")
    if kind[0] == "cuda" or (kind[0] != "cpu" and gpus):
        if workers and workers > gpus and not grows:
            what = f"Ray sees {gpus} GPUs, and each worker needs one"
            raise OptionError(f"--workers {workers}: {what}")
        return WorkerPlan(workers or gpus, 1, 1, plan.threads)
    workers = workers or hosts
    share = cpus / hosts / ceil(workers / hosts)
    here = find_cores()  # as the other hosts, most likely; Ray counts hyper-threads
    threads = plan.threads or max(1, int(share * here.threads / here.usable))
    return WorkerPlan(workers, min(threads, share), 0, threads)
