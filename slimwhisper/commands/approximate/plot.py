"""The picture of a sweep: word errors against what is kept, and the pairs that nothing beats."""

from collections.abc import Sequence
from pathlib import Path

from slimwhisper.cache.settings import split_spec
from slimwhisper.commands.approximate.measured import Measured
from slimwhisper.errors import DependencyError, OutputError
from slimwhisper.text import one_line, shown

SUFFIXES = (".png", ".svg")


def pareto_front(rows: Sequence[Measured]) -> list[Measured]:
    """The rows that no other beats in bytes kept and loss, by rising bytes.

    One beats another if it is no worse in both and better in one. Equal rows are all kept.
    """
    costs = {(row.kept, row.loss) for row in rows}

    def beaten(kept: int, loss: float) -> bool:
        return any(k <= kept and e <= loss and (k, e) != (kept, loss) for k, e in costs)

    return sorted((r for r in rows if not beaten(r.kept, r.loss)), key=lambda r: r.kept)


def draw(rows: Sequence[Measured], folder: Path, title: str) -> list[Path]:
    """Writes the picture in each format. Raises DependencyError and OutputError."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError(
            "no plot: it needs matplotlib; pip install 'slimwhisper[bench]', and run it again"
        ) from error

    def place(row: Measured) -> tuple[float, float]:
        return row.kept / 1e6, max(0.0, row.loss)

    figure = Figure(figsize=(11, 6.5), layout="constrained")
    axes = figure.subplots()
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        forms = "+".join(split_spec(spec)[0] for spec in (row.cross, row.self_))
        points.setdefault(forms, []).append(place(row))
    for forms, found in sorted(points.items()):
        x, y = zip(*found, strict=True)
        axes.scatter(x, y, s=28, label=forms, alpha=0.85)
    front = pareto_front(rows)
    x, y = zip(*map(place, front), strict=True)
    axes.plot(x, y, color="0.4", linewidth=1, drawstyle="steps-post", zorder=0)
    for where, name in {place(row): row.title for row in front}.items():
        axes.annotate(name, where, fontsize=6.5, rotation=20)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=100 / max(row.words for row in rows))  # one word
    axes.set_xlabel("MB kept of a window")
    axes.set_ylabel("loss in word error, percentage points")
    axes.grid(True, color="0.92")
    axes.set_title(title, fontsize=11)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    paths = [folder / f"tradeoff{suffix}" for suffix in SUFFIXES]
    try:
        for path in paths:
            figure.savefig(path, dpi=130)
    except OSError as error:
        raise OutputError(f"{shown(folder)}: cannot be written ({one_line(error)})") from error
    return paths
