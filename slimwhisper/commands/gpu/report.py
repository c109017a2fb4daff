"""`slimwhisper report --device`: costs on a GPU, computed, and measured ones beside them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from slimwhisper.commands.costs import Report, known_dims
from slimwhisper.commands.gpu.costs import FORMS, STEPS, Costs, Decoding
from slimwhisper.commands.gpu.devices import DEVICES
from slimwhisper.commands.gpu.measured import MEASURED, Measured, read_measured
from slimwhisper.commands.gpu.scenarios import SCENARIOS
from slimwhisper.errors import OptionError

DTYPES = ("float16", "bfloat16")
NOTE = (
    "Computed: from the model's dimensions, the GPU's data sheet and assumed efficiencies. Nothing "
    "was timed for it. Limit: weights and caches read once, at the rate of a copy. Desk check: the "
    "code before it was made ready for a GPU. docs/gpu.md explains all three."
)


@dataclass(frozen=True, slots=True)
class Times:
    """What one form of one model costs on one device."""

    model: str
    device: str  # a name of `DEVICES`
    form: str  # one of `FORMS`
    batch: int
    beams: int
    dtype: str
    layers: int  # of the decoder
    computed: Mapping[str, Costs]  # by scenario
    measured: Mapping[str, Measured]  # by what

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: seconds, bytes, operations and launches, numbers not rounded."""
        costs = {
            name: {**asdict(c), "window": asdict(c.window), "speed": c.speed}
            for name, c in self.computed.items()
        }
        return {
            "model": self.model,
            "device": self.device,
            "gpu": DEVICES[self.device].gpu,
            "form": self.form,
            "batch": self.batch,
            "beams": self.beams,
            "dtype": self.dtype,
            "steps": STEPS,
            "computed": costs,
            "measured": [asdict(row) for row in self.measured.values()],
        }


def check_dtype(report: Report) -> None:
    """Raises `OptionError` for a dtype that is not computed."""
    if report.dtype not in DTYPES:
        raise OptionError(f"--device computes {' and '.join(DTYPES)}, not {report.dtype}")


def compute_times(
    report: Report, device: str, beams: int = 1, path: Path = MEASURED
) -> list[Times]:
    """Every form of the report's model, at its batch and dtype, on a GPU of `DEVICES`.

    beams: texts of a window. path: of the measurements, which are of one text each; there need be
    none. Raises `OptionError` for a dtype that is not computed, `MeasuredError` for the
    measurements.
    """
    check_dtype(report)
    rows = [
        row
        for row in read_measured(path)
        if beams == 1
        and row.device == device
        and row.dtype == report.dtype
        and known_dims(row.model) == report.dims
    ]

    def times(form: str) -> Times:
        computed = {
            name: Decoding(
                report.dims, form, report.batch, DEVICES[device], scenario, beams
            ).costs()
            for name, scenario in SCENARIOS.items()
        }
        fitting = sorted(_fitting(rows, form, report.batch), key=lambda row: row.batch)
        return Times(
            report.model,
            device,
            form,
            report.batch,
            beams,
            report.dtype,
            report.dims.n_text_layer,
            computed,
            {row.what: row for row in fitting},
        )

    return [times(form) for form in FORMS]


def _fitting(rows: Sequence[Measured], form: str, batch: int) -> Iterator[Measured]:
    """The rows to show beside a form. What comes before decoding is done in smaller batches, and
    the encoder is the same for all forms.
    """
    for row in rows:
        before = row.what in ("encoder", "prompt")
        if (row.batch <= batch if before else row.batch == batch) and (
            row.form == form or row.what == "encoder"
        ):
            yield row


def print_times(times: Sequence[Times], file: TextIO) -> None:
    """One table for each form of each model."""
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    for t in times:
        name, gpu = Path(t.model).name, DEVICES[t.device].gpu
        batch = f"batch {t.batch}" + (f", {t.beams} beams" if t.beams > 1 else "")
        console.print(f"{name}, {t.form}, {t.dtype}, {batch}, {gpu}: computed", style="bold")
        table = Table(box=None, header_style="bold", padding=(0, 0, 0, 1), pad_edge=False)
        table.add_column(min_width=32)
        for scenario in t.computed:
            table.add_column(scenario, justify="right", min_width=8, no_wrap=True)
        if t.measured:
            table.add_column("measured", justify="right", min_width=8, no_wrap=True)
        for label, cell, what in _rows(t):
            cells = [cell(name, costs) for name, costs in t.computed.items()]
            if t.measured:
                row = t.measured.get(what)
                unit = 1000 if what in ("cross", "self") else 1
                cells.append(_number(row.milliseconds * unit) if row else "-" if what else "")
            table.add_row(label, *cells)
        console.print(table)
        console.print()
    console.print(NOTE)


Row = tuple[str, Callable[[str, Costs], str], str]  # label, cell of a scenario, what is measured


def _rows(t: Times) -> Iterator[Row]:
    def row(label: str, value: Callable[[Costs], float], what: str = "") -> Row:
        return label, lambda _, costs: _number(value(costs)), what

    def launches(value: Callable[[Costs], float]) -> Row:
        """Of the limit there are none."""

        def cell(name: str, costs: Costs) -> str:
            return "-" if SCENARIOS[name].limit else f"{value(costs):,.0f}"

        return "  launches", cell, ""

    yield "in a step, us a layer", lambda *_: "", ""
    yield row("  cross-attention", lambda c: c.layer["cross"].seconds * 1e6, "cross")
    yield row("  self-attention", lambda c: c.layer["self"].seconds * 1e6, "self")
    yield row("  combining parts", lambda c: c.layer["combine"].seconds * 1e6)
    yield row("  products", lambda c: c.layer["products"].seconds * 1e6)
    yield row("  other kernels", lambda c: c.layer["other"].seconds * 1e6)
    yield launches(lambda c: sum(part.launches for part in c.layer.values()))
    yield row(f"a step of {t.layers} layers, ms", lambda c: c.step.seconds * 1e3, "step")
    yield row("  GB", lambda c: c.step.bytes / 1e9)
    yield row("  GFLOP", lambda c: c.step.operations / 1e9)
    yield launches(lambda c: c.step.launches)
    yield row("a window, ms", lambda c: c.window.seconds * 1e3, "window")
    yield row(f"  {STEPS} steps", lambda c: c.decode.seconds * 1e3)
    yield row("  encoder", lambda c: c.encoder.seconds * 1e3, "encoder")
    yield row("  prompt", lambda c: c.prompt.seconds * 1e3, "prompt")
    yield row("  host, GPU idle", lambda c: c.host * 1e3)
    yield row("  GB", lambda c: c.window.bytes / 1e9)
    yield row("  TFLOP", lambda c: c.window.operations / 1e12)
    yield launches(lambda c: c.window.launches)
    yield row("x real time", lambda c: c.speed)


def _number(value: float) -> str:
    """With three digits, or more before the point."""
    digits = 0 if value >= 100 or value == 0 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"
