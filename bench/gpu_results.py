"""Puts the results of bench/gpu.sh into the docs: python bench/gpu_results.py RESULTS.jsonl ...

Makes the tables of docs/performance.md anew, each between its two markers. A table that the results
have no rows for stays as it is. All results must be of one GPU; where a case was measured twice,
the last counts. docs/gpu-bench.md says what the rows mean.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rows import Row, read, table

DOCS = Path(__file__).resolve().parents[1] / "docs"
KERNELS = 8  # of each part, in the table of kernels


def form(row: Row) -> str:
    """Such as "`slim` fp8"."""
    return " ".join([f"`{row['preset']}`", *filter(None, [row["cache_dtype"]])])


def ratio(of: float | None, to: float | None) -> str:
    return f"{of / to:.2f}" if of and to else "-"


def steps_table(rows: list[Row]) -> str:
    """Steps and windows, by form and number of windows."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        if row["bench"] == "decode" and row["beams"] == 1:
            case = (row["model"], row["batch"], form(row))
            found.setdefault(case, {})[row["what"]] = row["milliseconds"]
    lines = []
    for (model, batch, name), times in found.items():
        base = found.get((model, batch, "`baseline`"), {})
        step, window = times.get("step"), times.get("window")
        lines.append(
            (
                *(model, name, batch, f"{step:.3f}" if step else "-"),
                *(ratio(base.get("step"), step), f"{window:.2f}" if window else "-"),
                *(ratio(base.get("window"), window), f"{30_000 / window:.0f}" if window else "-"),
            )
        )
    head = ("model", "cache", "windows", "a step, ms", "speed, to `baseline`", "a window, ms")
    return lines and table((*head, "speed, to `baseline`", "times real time"), lines)


def attention_table(rows: list[Row]) -> str:
    """Attention alone, by operation and number of windows."""
    last = {
        (row["model"], row["batch"], row["operation"]): row
        for row in rows
        if row["bench"] == "kernels" and row["beams"] == 1
    }
    lines = []
    for (model, batch, operation), row in last.items():
        base = last.get((model, batch, "K, V" if row["what"] == "cross" else "text K, V"))
        rates = (f"{row['tb_s']:.2f}", f"{100 * row['of_copy']:.0f} %")
        times = (f"{row['cold_us']:.1f}", f"{row['layers_us']:.1f}")
        speed = ratio(base and base["layers_us"], row["layers_us"])
        lines.append((model, operation, batch, *times, *rates, speed))
    head = ("model", "reads", "windows", "cold, us", "in layer order, us", "TB/s", "of a copy")
    return lines and table((*head, "speed, to `baseline`"), lines)


def kernels_table(rows: list[Row]) -> str:
    """Encoder, prompt and step: each part, then its longest kernels."""
    parts: dict[tuple[Any, ...], tuple[Row, list[Row]]] = {}
    for row in (r for r in rows if r["bench"] == "profile"):
        case = (row["model"], form(row), row["batch"])
        if "launches" in row:
            parts[(*case, row["what"])] = (row, [])
        elif row["what"] == "kernel" and (*case, row["part"]) in parts:
            parts[(*case, row["part"])][1].append(row)
    lines: list[Sequence[object]] = []
    for (model, name, batch, what), (row, kernels) in parts.items():
        busy = f"{row['launches']:.0f} launches, busy {row['busy_ms']:.3f} ms"
        time = f"{row['call_ms']:.3f}"
        lines.append((f"**{model}, {name}, {what}, {batch} windows**", f"**{time}**", busy))
        for kernel in kernels[:KERNELS]:
            title = kernel["kernel"].replace("|", "/")
            lines.append((f"`{title}`", f"{kernel['milliseconds']:.3f}", f"{kernel['calls']:g}"))
    return lines and table(("part, and its longest kernels", "ms", "launches"), lines)


def peers_table(rows: list[Row]) -> str:
    """Whole transcriptions by several projects."""
    last = {(row["of"], row["peer"], row["batch"]): row for row in rows if row["bench"] == "peers"}
    whisper = {of: row for (of, peer, _), row in last.items() if peer == "openai-whisper"}
    lines = []
    for (of, peer, batch), row in last.items():
        base = whisper.get(of)
        speed = ratio(row["hours_an_hour"], base and base["hours_an_hour"])
        memory = "-" if row["memory_mb"] is None else f"{row['memory_mb']:,.0f}"
        first = f"{1000 * row['first_text_seconds']:,.0f}"
        lines.append((of, peer, batch, f"{row['hours_an_hour']:,.1f}", speed, first, memory))
    head = ("of", "", "windows at a time", "hours of audio per hour", "times openai-whisper")
    return lines and table((*head, "first text, ms", "memory that decoding adds, MB"), lines)


def status_table(rows: list[Row]) -> str:
    """What ran, and how it ended."""
    last = {row["step"]: row for row in rows if row["bench"] == "steps"}
    words = {0: "passed", 124: "stopped at its limit"}
    lines = [
        (name, words.get(r["status"], f"failed: {r['status']}"), r["seconds"], r["last"].strip())
        for name, r in last.items()
    ]
    return lines and table(("step", "status", "seconds", "its last line"), lines)


TABLES = {
    "steps": steps_table,
    "attention": attention_table,
    "kernels": kernels_table,
    "peers": peers_table,
    "status": status_table,
}


def update_page(path: Path, rows: list[Row]) -> Iterator[str]:
    """Make the tables of a page anew, each with its machine; yields the names of those made."""
    page = path.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        begin, end = f"<!-- gpu {name} -->", f"<!-- end of gpu {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise SystemExit(f"{path}: put {begin} and {end} where that table belongs, once each")
        if made := make(rows):
            before, _, rest = page.partition(begin)
            after = rest.partition(end)[2]
            page = f"{before}{begin}\n{describe(rows)}\n\n{made}\n{end}{after}"
            yield name
    path.write_text(page, encoding="utf-8")


def describe(rows: list[Row]) -> str:
    """The machine, in one line."""
    row = next(row for row in reversed(rows) if "gpu" in row)
    driver = f"driver {row['driver']}, " if row["driver"] else ""
    return f"{row['gpu']}, {driver}torch {row['torch']}, Triton {row['triton']}:"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="results.jsonl of bench/gpu.sh")
    parser.add_argument("--page", type=Path, default=DOCS / "performance.md")
    parser.add_argument("--cpu", action="store_true", help="take results of a CPU, to try it out")
    asked = parser.parse_args()
    if missing := [str(path) for path in asked.results if not path.is_file()]:
        parser.error(f"no file {', '.join(missing)}; name the results.jsonl that gpu.sh wrote")
    rows = read(asked.results)
    found = {(row["gpu"], row["device"]) for row in rows if "gpu" in row}
    if len(found) != 1:
        gpus = ", ".join(sorted(gpu for gpu, _ in found)) or "no machine"
        parser.error(f"the results are of {gpus}; name those of one GPU")
    if found.pop()[1] == "cpu" and not asked.cpu:
        parser.error("the results are of a CPU, and the docs are about GPUs; to try it out: --cpu")
    print(f"{asked.page}: {', '.join(update_page(asked.page, rows))}")


if __name__ == "__main__":
    main()
