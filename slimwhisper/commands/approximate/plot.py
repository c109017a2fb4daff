"""The picture of a sweep: word errors against what is kept and what is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slimwhisper.cache.settings import split_spec
from slimwhisper.commands.approximate.front import pareto_front
from slimwhisper.commands.approximate.ladders import PARTNERS
from slimwhisper.commands.approximate.measured import Measured
from slimwhisper.errors import DependencyError, OutputError
from slimwhisper.text import one_line, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME, SUFFIXES = "tradeoff", (".png", ".svg")
MARKERS = "osD^v<>Phdp*X"
LINEAR = 0.1  # percent; below it, the axis of errors is linear, so that it has a 0


def kept_front(rows: Sequence[Measured]) -> list[int]:
    """The Pareto front of bytes kept and loss."""
    return pareto_front([(row.kept, row.loss) for row in rows])


def draw(rows: Sequence[Measured], folder: Path, title: str) -> list[Path]:
    """Writes the picture in each format. Raises DependencyError and OutputError."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError(
            "no plot: it needs matplotlib; pip install 'slimwhisper[bench]', and run it again"
        ) from error
    figure = Figure(figsize=(13, 6), layout="constrained")
    kept, read = figure.subplots(1, 2, sharey=True)
    _panel(kept, rows, [row.kept for row in rows], "kept of a window")
    _panel(read, rows, [row.read for row in rows], "read by a step")
    kept.set_ylabel("loss in word error, percentage points")
    handles, labels = kept.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    paths = [folder / f"{NAME}{suffix}" for suffix in SUFFIXES]
    try:
        for path in paths:
            figure.savefig(path, dpi=130)
    except OSError as error:
        raise OutputError(f"{shown(folder)}: cannot be written ({one_line(error)})") from error
    return paths


def _panel(axes: "Axes", rows: Sequence[Measured], amounts: Sequence[float], what: str) -> None:
    """One cloud of points, by method, with its front."""
    losses = [max(0.0, row.loss) for row in rows]
    methods: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        methods.setdefault(method_of(row), []).append(i)
    for n, (method, points) in enumerate(methods.items()):
        axes.scatter(
            [amounts[i] / 1e6 for i in points],
            [losses[i] for i in points],
            s=30,
            marker=MARKERS[n % len(MARKERS)],
            color=f"C{n % 10}",
            label=method,
            alpha=0.85,
        )
    front = pareto_front(list(zip(amounts, losses, strict=True)))
    axes.plot(
        [amounts[i] / 1e6 for i in front],
        [losses[i] for i in front],
        color="0.35",
        linewidth=1.2,
        drawstyle="steps-post",
        label="Pareto front",
        zorder=0,
    )
    named: set[tuple[float, float]] = set()
    for i in front:
        if (place := (amounts[i], losses[i])) in named:
            continue
        named.add(place)
        axes.annotate(
            rows[i].title,
            (amounts[i] / 1e6, losses[i]),
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=6,
            rotation=25,
        )
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.set_ylim(-LINEAR / 10, max([*losses, LINEAR]) * 1.6)
    axes.set_xlabel(f"MB {what}")
    axes.grid(True, which="both", color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)


def method_of(row: Measured) -> str:
    """The forms without their settings, and without slim's own part beside another."""
    cross, own = split_spec(row.cross)[0], split_spec(row.self_)[0]
    if own == PARTNERS["cross"] and cross != PARTNERS["self"]:
        return f"cross {cross}"
    if cross == PARTNERS["self"] and own != PARTNERS["cross"]:
        return f"self {own}"
    return f"{cross}+{own}"
