"""Rows of results, for `gpu_results.py`: python bench/rows.py --results FILE

The benchmarks append a row to the file as soon as it is measured, so that one that is stopped loses
only what it has not measured yet. A row is one line of JSON, with the machine in it. As a command,
appends the machine alone, and prints it.
"""

import argparse
import json
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from timing import machine


def short_name(gpu: str) -> str:
    """A GPU's model: "NVIDIA H100 80GB HBM3" -> "h100", "NVIDIA GeForce RTX 4090" -> "4090"."""
    words = re.findall(r"\w+", gpu.lower())
    return next((w for w in words if re.fullmatch(r"[a-z]{0,2}\d+s?", w)), "-".join(words))


class Rows:
    """Appends rows to a file; with no file, does nothing."""

    def __init__(self, path: Path | None, bench: str, device: torch.device) -> None:
        """bench: which one measured, such as "decode"."""
        self._path = path
        found = machine(device)
        gpu = str(found.get("gpu", found["processor"]))
        self.common = {
            "bench": bench,
            "device": short_name(gpu) if device.type == "cuda" else device.type,
            "gpu": gpu,
            "driver": found.get("driver"),
            "torch": found["torch"],
            "triton": _triton(),
        }

    def add(self, **values: Any) -> None:
        """Append one row. `model`, `preset`, `cache_dtype`, `dtype`, `batch`, `what` and
        `milliseconds` mean what they mean in docs/gpu-bench.md.
        """
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.common | values) + "\n")


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"


def preset_of(form: str | None) -> dict[str, str | None]:
    """A form's two columns: "slim fp8" -> preset "slim", cache_dtype "fp8"; None -> both None."""
    preset, _, number = (form or "").partition(" ")
    return {"preset": preset or None, "cache_dtype": number or None}


def add_results_flag(parser: argparse.ArgumentParser) -> None:
    """--results, the file that the rows are appended to."""
    parser.add_argument("--results", type=Path, help="append each row to this file, as JSON")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_results_flag(parser)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    Rows(asked.results, "machine", device).add(machine=machine(device))
    print(*(f"{key}: {value}" for key, value in machine(device).items()), sep="\n")


if __name__ == "__main__":
    main()
