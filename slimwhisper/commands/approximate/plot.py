"""The picture of a sweep: word errors against what is kept, and the pairs that nothing beats."""

from collections.abc import Sequence
from pathlib import Path

from slimwhisper.cache.settings import split_spec
from slimwhisper.commands.approximate.measured import Measured
from slimwhisper.errors import DependencyError, OutputError
from slimwhisper.text import one_line, shown

NAME, SUFFIXES = "tradeoff", (".png", ".svg")


def pareto_front(costs: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other beats, by rising first cost.

    One beats another if it is no worse in both costs and better in one. Equal points are all kept.
    """
    front: list[int] = []
    best, first = float("inf"), float("nan")  # least second cost so far, and its point's first
    for i in sorted(range(len(costs)), key=costs.__getitem__):
        if costs[i][1] < best or costs[i] == (first, best):
            front.append(i)
            first, best = costs[i]
    return front


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
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    axes = figure.subplots()
    places = [(row.kept / 1e6, max(0.0, row.loss)) for row in rows]
    forms = ["+".join(split_spec(spec)[0] for spec in (row.cross, row.self_)) for row in rows]
    for form in sorted(set(forms)):
        x, y = zip(*(p for p, f in zip(places, forms, strict=True) if f == form), strict=True)
        axes.scatter(x, y, s=28, label=form, alpha=0.85)
    front = sorted({places[i]: rows[i].title for i in kept_front(rows)}.items())
    x, y = zip(*(place for place, _ in front), strict=True)
    axes.plot(x, y, color="0.4", linewidth=1, drawstyle="steps-post", zorder=0)
    for place, name in front:
        axes.annotate(name, place, fontsize=6.5, rotation=20)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=100 / max(row.words for row in rows))  # one word
    axes.set_xlabel("MB kept of a window")
    axes.set_ylabel("loss in word error, percentage points")
    axes.grid(True, color="0.92")
    axes.set_title(title, fontsize=11)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    paths = [folder / f"{NAME}{suffix}" for suffix in SUFFIXES]
    try:
        for path in paths:
            figure.savefig(path, dpi=130)
    except OSError as error:
        raise OutputError(f"{shown(folder)}: cannot be written ({one_line(error)})") from error
    return paths
