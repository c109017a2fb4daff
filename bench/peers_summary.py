"""The results of `peers.py` as a table and a plot."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from peers_engines import Case
from rows import Row, spread
from rows import table as markdown

OURS = "slimwhisper"
MEDIANS = ("hours_an_hour", "tokens_per_second", "first_text_seconds", "memory_mb", "peak_mb")


def summaries(cases: Sequence[Case], results: Mapping[Case, Mapping[int, Row]]) -> list[Row]:
    """A row for each case that was measured: the medians of its rounds, and the ratio of our speed
    to its own in each round that both have.
    """
    rows = []
    for case in cases:
        if not (rounds := results[case]):
            continue
        our_rounds = [results[c] for c in cases if compared(c, case) and c.engine == OURS]
        ours = our_rounds[0] if our_rounds and case.engine != OURS else {}
        both = sorted(rounds.keys() & ours.keys())
        row: Row = {
            "model": case.model,
            "peer": case.name,
            "dtype": case.dtype,
            "batch": case.batch,
            "files": case.files,
        }
        for name in MEDIANS:
            values = [r[name] for r in rounds.values() if r[name] is not None]
            row[name] = statistics.median(values) if values else None
        first = next(iter(rounds.values()))
        row["sampled"] = first["sampled"]
        row["ratios"] = [ours[n]["hours_an_hour"] / rounds[n]["hours_an_hour"] for n in both]
        if first["texts"] is not None:
            reference = next(r for c in cases for r in results[c].values())
            row["same_texts"] = same_texts(reference["texts"], first["texts"])
        rows.append(row)
    return rows


def compared(one: Case, other: Case) -> bool:
    """Whether they took turns."""
    return all(getattr(one, k) == getattr(other, k) for k in ("model", "batch", "dtype"))


def same_texts(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """The share of files for which both have the same words."""
    pairs = list(zip(ours, theirs, strict=False))
    return sum(a.split() == b.split() for a, b in pairs) / len(pairs)


def table(rows: Sequence[Row]) -> str:
    """The summaries as a table in Markdown. A batch with fewer files than places says so."""
    head = ["model", "", "windows at a time", "hours of audio per hour", "slimwhisper to it"]
    head += ["first text, ms", "memory that decoding adds, MB", "peak, MB"]
    texts = any("same_texts" in row for row in rows)
    lines = []
    for row in rows:
        places, files = row["batch"], row["files"]
        memory = ("-" if row[k] is None else f"{row[k]:,.0f}" for k in ("memory_mb", "peak_mb"))
        lines.append(
            (
                *(row["model"], row["peer"]),
                str(places) if files >= places else f"{files} of {places}",
                f"{row['hours_an_hour']:,.1f}",
                spread(row["ratios"]) if row["ratios"] else "-",
                f"{1000 * row['first_text_seconds']:,.0f}",
                *memory,
                *([f"{100 * row['same_texts']:.0f} %"] if texts else []),
            )
        )
    return markdown([*head, *(["same words"] if texts else [])], lines)


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Bars of audio hours per hour, a panel for each model, as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(model, list(group)) for model, group in groupby(rows, lambda row: row["model"])]
    heights = [len(group) for _, group in panels]
    size = 8, 0.45 * sum(heights) + 1.2 * len(panels)
    figure, all_axes = pyplot.subplots(
        *(len(panels), 1), figsize=size, height_ratios=heights, squeeze=False, layout="constrained"
    )
    for (model, group), axes in zip(panels, all_axes.flat, strict=True):
        names = [f"{row['peer']}, batch {row['batch']}" for row in group][::-1]
        speeds = [row["hours_an_hour"] for row in group][::-1]
        colors = ["#c2410c" if name.startswith(OURS) else "#94a3b8" for name in names]
        bars = axes.barh(names, speeds, color=colors)
        axes.bar_label(bars, fmt="%.1f", padding=3)
        axes.set(title=f"{model}: {title}", xlabel="hours of audio in an hour")
        axes.spines[["top", "right"]].set_visible(False)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=120)
