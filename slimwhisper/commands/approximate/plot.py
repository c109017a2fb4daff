"""The picture of a sweep: word errors against what is kept and what is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.cache.settings import split_spec
from slimwhisper.commands.approximate.front import pareto_front
from slimwhisper.commands.approximate.ladders import PARTNERS
from slimwhisper.commands.approximate.measured import Measured
from slimwhisper.errors import DependencyError, OutputError
from slimwhisper.text import one_line, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME, SUFFIXES = "tradeoff", (".png", ".svg")
MARKERS = {"cross": "o", "self": "s", "": "D"}  # by what is not slim's; both or neither
COLORS = "tab20"  # by form


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
    figure = Figure(figsize=(13, 6.5), layout="constrained")
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
    from matplotlib import colormaps

    places = [(amount / 1e6, max(0.0, row.loss)) for amount, row in zip(amounts, rows, strict=True)]
    methods: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(rows):
        methods.setdefault(method_of(row), []).append(i)
    forms = sorted({form for _, form in methods})
    for part, form in sorted(methods):
        x, y = zip(*(places[i] for i in methods[part, form]), strict=True)
        color = colormaps[COLORS](forms.index(form) * 2 % 20 + forms.index(form) // 10 % 2)
        label = f"{part} {form}".strip()
        axes.scatter(x, y, s=28, marker=MARKERS[part], color=color, label=label, alpha=0.85)
    front = sorted({places[i]: rows[i].title for i in reversed(pareto_front(places))}.items())
    x, y = zip(*(place for place, _ in front), strict=True)
    axes.plot(x, y, color="0.4", linewidth=1, drawstyle="steps-post", zorder=0)
    axes.scatter(x, y, s=95, facecolor="none", edgecolor="black", label="Pareto front")
    where: dict[str, Any] = {"xytext": (4, 7), "textcoords": "offset points"}
    for place, name in front:
        label = name.replace("+", "\n+")
        axes.annotate(label, place, **where, fontsize=6.5, rotation=20, zorder=9)
    _scale(axes, rows, max(loss for _, loss in places))
    axes.set_xlabel(f"MB {what}")


def _scale(axes: "Axes", rows: Sequence[Measured], largest: float) -> None:
    """Logarithmic axes with plain numbers; that of the losses is linear down from one word."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    one_word = 100 / max(row.words for row in rows)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=one_word, linscale=0.3)
    axes.set_ylim(-0.2 * one_word, 2 * max(largest, one_word))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(True, which="both", color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)


def method_of(row: Measured) -> tuple[str, str]:
    """(part, form) of what stands beside slim's other part; ("", both forms) else."""
    cross, own = split_spec(row.cross)[0], split_spec(row.self_)[0]
    if own == PARTNERS["cross"] and cross != PARTNERS["self"]:
        return "cross", cross
    if cross == PARTNERS["self"] and own != PARTNERS["cross"]:
        return "self", own
    return "", f"{cross}+{own}"
