"""Every configuration of the table compiles for GPUs that are not here, and fits them."""

import json
import os
import subprocess
import sys

import pytest

from slimwhisper.kernels.compilation import FIXED, SHARED, variants
from slimwhisper.kernels.configurations import configurations

pytest.importorskip("triton")


@pytest.mark.slow
def test_every_configuration_compiles_without_spills() -> None:
    """In another process: here Triton interprets."""
    done = subprocess.run(
        [sys.executable, "-m", "slimwhisper.kernels.compilation"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    made = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [
        c
        for c in configurations()
        for capability, limit in SHARED.items()
        if c.shared <= limit and c.capability <= capability
        for _ in variants(c)
    ]
    assert len(made) == len(expected) + len(FIXED) * len(SHARED)
    for one in made:
        limit = SHARED[one["capability"]]
        assert one["stack"] == 0, one
        assert one["shared"] <= min(one["configuration"].get("shared", limit), limit), one
