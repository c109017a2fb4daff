"""Every kernel compiles as it is launched, for GPUs that are not here, and fits them."""

import json
from itertools import product
from typing import Any

import pytest

pytest.importorskip("triton")

from bench.compilation import ROCM_SHARED, SHARED, Variant, jobs
from slimwhisper.kernels.configurations import TritonDevice, configurations, find_configuration
from tests.support.command import python
from tests.support.paths import ROOT

FEW = "--width 1280 --capabilities 100 120"


def compiled(*flags: str) -> list[dict[str, Any]]:
    """In another process: here Triton interprets."""
    done = python(f"{ROOT}/bench/compilation.py", "--some", *flags, TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("flags", [FEW, pytest.param("", marks=pytest.mark.slow)], ids=str)
def test_it_compiles_without_spills(flags: str) -> None:
    """A tenth of the variants, and a few of large-v3 on a B200 and on a GeForce 5090."""
    made = compiled(*flags.split())
    assert len(made) == (2 if flags else len(jobs(every=False)))
    for one in made:
        row, limit = one["configuration"] or {}, SHARED[one["capability"]]
        assert one["stack"] == 0, one
        bias = 8 * row["block_t"] if "HAS_BIAS" in one["flags"] else 0  # passes through it
        assert one["shared"] <= min(row.get("shared", limit) + bias, limit), one


@pytest.mark.slow
def test_it_compiles_for_rocm() -> None:
    """Those kernels that an MI300 holds, which has never run them."""
    made = compiled("--rocm", "gfx942")
    assert {one["kernel"] for one in made} >= {"latent", "heads", "combine"}
    assert max(one["shared"] for one in made) <= ROCM_SHARED


def ways(chosen: list[tuple[int, Variant]]) -> set[tuple[str, ...]]:
    return {(v.kernel, v.dtype, *sorted(v.flags)) for _, v in chosen}


def test_each_way_of_launching_is_compiled() -> None:
    """Each row of the table for every capability that chooses it."""
    for kernel in ("latent", "heads"):
        for dtype in ("float16", "bfloat16", "float32"):
            assert {(kernel, dtype), (kernel, dtype, "PAGE")} <= ways(jobs())
    assert ("latent", "float32", "HAS_BIAS") in ways(jobs())
    chosen = {
        (at, find_configuration(c.kernel, c.dtype, c.width, c.block_q, TritonDevice(limit, 1, at)))
        for (at, limit), c in product(SHARED.items(), configurations())
    }
    assert chosen <= {(at, v.configuration) for at, v in jobs()}
    assert {v.kernel for _, v in jobs()} == {
        *("latent", "heads", "combine", "combine_mapped", "add_norm", "choose_token")
    }


def test_some_are_of_every_kind() -> None:
    """All ways of launching, for all capabilities, in less than a sixth of the jobs."""
    some = jobs(every=False)
    assert ways(some) == ways(jobs())
    assert {at for at, v in some if v.kernel == "latent"} == set(SHARED)
    assert set(some) < set(jobs()) and 6 * len(some) < len(jobs())
