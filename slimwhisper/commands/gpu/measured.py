"""docs/gpu-measured.json: what was timed on GPUs, a list of rows. docs/gpu.md describes it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from slimwhisper.errors import SlimWhisperError

# of a source tree; an installed package has no docs
MEASURED = Path(__file__).parents[3] / "docs" / "gpu-measured.json"
WHATS = {  # what a row's milliseconds are
    "step": "one decoding step of the whole batch, at half of the context",
    "cross": "one layer's cross-attention in a step, without its products",
    "self": "one layer's self-attention in a step, without its products",
    "encoder": "one window's encoding, when `batch` are encoded together",
    "prompt": "one window's prompt of 227 tokens, when `batch` are prompted together",
    "window": "one window: encoder, prompt and 115 steps, when `batch` are decoded together",
}
CACHE_DTYPES = (None, "fp8")


class MeasuredError(SlimWhisperError):
    """A file of measurements, or one of its rows, does not have the format."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One row."""

    device: str  # a name of `devices.DEVICES`, or a new one
    gpu: str  # its full name
    torch: str  # versions
    triton: str
    model: str  # an official name
    preset: str  # of the caches
    cache_dtype: str | None  # "fp8": caches in float8
    dtype: str  # "float16" or "bfloat16"
    batch: int  # windows together
    what: str  # one of `WHATS`
    milliseconds: float

    @property
    def form(self) -> str:
        """The name of its caches in tables, such as "slim fp8"."""
        return f"{self.preset} {self.cache_dtype}" if self.cache_dtype else self.preset

    @staticmethod
    def of(row: Any) -> "Measured":
        """A row of the file. Raises `MeasuredError`, which says what is wrong with it."""
        names = [f.name for f in fields(Measured)]
        if not isinstance(row, dict) or set(row) != set(names):
            raise MeasuredError(f"a row must be an object with just {', '.join(names)}")
        for name in names[:8]:
            if name != "cache_dtype" and not (isinstance(row[name], str) and row[name]):
                raise MeasuredError(f"{name} must be a text, not {row[name]!r}")
        if row["cache_dtype"] not in CACHE_DTYPES:
            raise MeasuredError(f'cache_dtype must be null or "fp8", not {row["cache_dtype"]!r}')
        if type(row["batch"]) is not int or row["batch"] < 1:
            raise MeasuredError(f"batch must be an integer above 0, not {row['batch']!r}")
        if row["what"] not in tuple(WHATS):
            raise MeasuredError(f"what must be one of {', '.join(WHATS)}, not {row['what']!r}")
        time = row["milliseconds"]
        if type(time) not in (int, float) or not 0 < time < float("inf"):
            raise MeasuredError(f"milliseconds must be a number above 0, not {time!r}")
        return Measured(**row)


def read_measured(path: Path = MEASURED) -> tuple[Measured, ...]:
    """All rows; none if there is no such file. Raises `MeasuredError`, naming file and row."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise MeasuredError(f"{path} cannot be read as JSON ({error}); write it again") from error
    if not isinstance(rows, list):
        raise MeasuredError(f"{path} must be a list of rows; see docs/gpu.md")
    found = []
    for number, row in enumerate(rows, 1):
        try:
            found.append(Measured.of(row))
        except MeasuredError as error:
            raise MeasuredError(f"{path}, row {number}: {error}; see docs/gpu.md") from None
    return tuple(found)


def write_measured(rows: Iterable[Measured], path: Path = MEASURED) -> None:
    """Replace the file: one row a line. Raises `MeasuredError` for a row that cannot be read."""
    lines = [json.dumps(asdict(Measured.of(asdict(row)))) for row in rows]
    path.write_text("[" + ",\n ".join(lines) + "]\n", encoding="utf-8")
