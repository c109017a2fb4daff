"""Every kernel compiles as it is launched, for GPUs that are not here, and fits them."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

from slimwhisper.kernels.gpu.compilation import SHARED, jobs


@pytest.mark.slow
def test_everything_compiles_without_spills() -> None:
    """In another process: here Triton interprets."""
    done = subprocess.run(
        [sys.executable, "-m", "slimwhisper.kernels.gpu.compilation"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(made) == len(list(jobs()))
    for one in made:
        row, limit = one["configuration"] or {}, SHARED[one["capability"]]
        assert one["stack"] == 0, one
        bias = 8 * row["block_t"] if "HAS_BIAS" in one["flags"] else 0  # passes through it
        assert one["shared"] <= min(row.get("shared", limit) + bias, limit), one


def test_each_way_of_launching_is_compiled() -> None:
    """For some capability; and each row of the table for every capability that holds it."""
    seen = {(v.kernel, v.dtype, *sorted(v.flags)) for _, v in jobs()}
    for kernel in ("latent", "heads"):
        for dtype in ("float16", "bfloat16", "float32"):
            assert {(kernel, dtype), (kernel, dtype, "HAS_SOURCES")} <= seen
    assert {("latent", "float32", "HAS_BIAS"), ("latent8", "float16", "HAS_BIAS")} <= seen
    assert {capability for capability, v in jobs() if v.kernel == "latent8"} == set(SHARED)
    assert {v.kernel for _, v in jobs()} == {
        *("latent", "latent8", "heads", "combine", "combine_mapped", "add_norm", "choose_token"),
    }
