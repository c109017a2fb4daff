"""Draws the charts of docs/how/performance.md from the tables in docs/how/data/.

    python docs/tools/charts.py

The backgrounds are transparent, and the colours are readable on white and on black.
"""

import csv
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

HOW = Path(__file__).parents[1] / "how"
GREY, LIGHT, BLUE, PALE, ORANGE = "#7d8694", "#b9bfc9", "#4c72e0", "#93aaf0", "#d9822b"
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "slimwhisper",  # the same file each time
    "font.family": "sans-serif",
    "font.size": 12,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.left": False,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), GREY),
}


def table(name: str, **where: str) -> list[dict[str, str]]:
    """The rows of a table that have these values."""
    with (HOW / f"data/{name}.csv").open(encoding="utf-8", newline="") as file:
        return [r for r in csv.DictReader(file) if all(r[k] == v for k, v in where.items())]


def save(name: str, axes: Axes, label: str) -> None:
    """The chart as docs/how/NAME.svg."""
    axes.set_xlabel(label)
    axes.invert_yaxis()
    axes.figure.savefig(
        HOW / f"{name}.svg", transparent=True, metadata={"Date": None, "Creator": None}
    )
    plt.close()


def bars(axes: Axes, names: list[str], groups: dict[str, tuple[list[str], list[str]]]) -> None:
    """A bar of each group, with its number, for each name."""
    height = 0.8 / len(groups)
    for number, (group, (values, colours)) in enumerate(groups.items()):
        places = [i + (number - (len(groups) - 1) / 2) * height for i in range(len(names))]
        widths = [float(value) for value in values]
        drawn = axes.barh(places, widths, height * 0.92, color=colours, label=group)
        axes.bar_label(drawn, values, padding=4, color=GREY, fontsize=11)
    axes.set_yticks(range(len(names)), names)
    axes.margins(x=0.08)


def memory() -> None:
    """Megabytes of a window's cache, with a text of 104 tokens."""
    rows = table("memory", text_tokens="104")
    models = list(dict.fromkeys(r["model"] for r in rows))
    colours = {"baseline": GREY, "slim": BLUE, "slim in float8": PALE}
    _, axes = plt.subplots(figsize=(8, 5.4))
    groups = {}
    for cache, colour in colours.items():
        values = [r["megabytes_a_window"] for r in rows if r["cache"] == cache]
        groups[cache] = (values, [colour] * len(values))
    bars(axes, models, groups)
    axes.legend(["keys and values (baseline)", "slim, the default", "slim in float8"])
    save("memory", axes, "MB a window, float16, 104 tokens of text; less is better")


def beside_others() -> None:
    """Seconds of the same job, idle and beside two busy processes."""
    rows = table("beside_others", machine="EPYC Zen 4")
    names = [f"{r['engine']} {r['dtype']}" for r in rows]
    ours = [r["engine"] == "slimwhisper" for r in rows]
    _, axes = plt.subplots(figsize=(8, 4.8))
    groups = {
        "idle": ([r["idle_s"] for r in rows], [PALE if own else LIGHT for own in ours]),
        "beside two": ([r["beside_two_s"] for r in rows], [BLUE if own else GREY for own in ours]),
    }
    bars(axes, names, groups)
    save(
        "beside-others", axes, "seconds: idle (pale) and beside two busy processes; less is better"
    )


def gpu_windows() -> None:
    """Windows a second on an H200; MLPerf's rows are of other lengths."""
    rows = [
        r
        for r in table("gpu_windows")
        if r["gpu"].startswith("H200") and r["tokens_written"] != "50 to 150"
    ]
    names, colours = [], []
    for row in rows:
        ours = row["engine"] == "slimwhisper"
        names.append(
            f"slimwhisper, {row['windows_at_a_time']} at a time\n100 tokens after 4 to 227"
            if ours
            else f"{row['engine']}, MLPerf\n75 tokens after 4"
        )
        colours.append(BLUE if ours else ORANGE)
    _, axes = plt.subplots(figsize=(8, 3.2))
    bars(axes, names, {"": ([r["windows_a_second"] for r in rows], colours)})
    save("gpu-windows", axes, "windows a second, large-v3 on one H200; more is better")


def main() -> None:
    with mpl.rc_context(STYLE):
        memory()
        beside_others()
        gpu_windows()


if __name__ == "__main__":
    main()
