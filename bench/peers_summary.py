"""The results of `peers.py` as tables."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from peer_engines import OURS, PEERS, name_of
from peer_engines.case import Case
from rows import Row, spread
from rows import table as markdown

from slimwhisper.research.comparison import edits, words_of

Results = dict[Case, dict[int, Row]]  # of each case, by round; by -1 why it failed
MEDIANS = ("hours_an_hour", "seconds_spent", "first_text_seconds", "memory_mb", "peak_mb")
OTHER_COUNT, SHORT_WINDOW = "†", "‡"


def round_of(row: Row) -> str:
    """A result for the one who waits."""
    if "error" in row:
        return f"{row['peer']}: {row['error']}"
    return f"{row['peer']}: {row['seconds_spent']:.1f} s"


def summaries(results: Results) -> list[Row]:
    """A row for each case: the medians of its rounds, or why it failed. Rows of slimwhisper have
    the best other engine of the same group, and the ratio of speeds in each round that both have.
    """
    return [row for case in results if (row := summary(case, results))]


def summary(case: Case, results: Results) -> Row:
    """One row; empty if the case was not measured."""
    if not results[case]:
        return {}
    row: Row = {"peer": name_of(case), "group": case.group, **asdict(case), "ratios": []}
    rounds = measured(results[case])
    if not rounds:
        return row | {"error": results[case][-1]["error"]}
    for name in MEDIANS:
        values = [r[name] for r in rounds.values() if r[name] is not None]
        row[name] = statistics.median(values) if values else None
    first = next(iter(rounds.values()))
    row |= {name: first[name] for name in ("sampled", "fewest_tokens", "most_tokens")}
    if first["texts"] is not None:
        row["words"], row["differences"] = words(first["texts"], reference(case, results)["texts"])
    if case.engine.startswith(OURS) and (best := best_other(case, results)):
        theirs = measured(results[best])
        both = sorted(rounds.keys() & theirs.keys())
        row["best"] = name_of(best) + f", {best.batch} at a time" * (best.batch != case.batch)
        row["best_hours_an_hour"] = speed(best, results)
        row["ratios"] = [rounds[n]["hours_an_hour"] / theirs[n]["hours_an_hour"] for n in both]
    return row


def measured(rounds: Mapping[int, Row]) -> dict[int, Row]:
    return {number: row for number, row in rounds.items() if number >= 0}


def speed(case: Case, results: Results) -> float:
    """The median of hours of audio per hour."""
    return statistics.median(r["hours_an_hour"] for r in measured(results[case]).values())


def best_other(ours: Case, results: Results) -> Case | None:
    """The fastest case of another project in the same group, with as many tokens. One without
    batches also counts with fewer windows at a time.
    """
    others = [
        case
        for case, rounds in results.items()
        if not case.engine.startswith(OURS)
        and measured(rounds)
        and compared(case, ours)
        and all(abs(n - (case.tokens or n)) <= 1 for n in counts(rounds))
    ]
    return max(others, key=lambda case: speed(case, results), default=None)


def compared(theirs: Case, ours: Case) -> bool:
    """Whether a case is one that ours is compared with."""
    same = ("model", "group", "tokens", "threads", "audio", "device", "seconds", "job")
    if any(getattr(theirs, name) != getattr(ours, name) for name in same):
        return False
    fewer = theirs.batch < ours.batch and not PEERS[theirs.engine].batches
    return theirs.batch == ours.batch or fewer or ours.job is not None


def counts(rounds: Mapping[int, Row]) -> list[int]:
    """The fewest and the most tokens of a file."""
    return [r[n] for r in measured(rounds).values() for n in ("fewest_tokens", "most_tokens")]


def reference(case: Case, results: Results) -> Row:
    """A round of the same recordings by slimwhisper in float32, or else by the first engine."""
    same = [
        c
        for c in results
        if (c.model, c.audio, c.job) == (case.model, case.audio, case.job) and measured(results[c])
    ]
    best = min(same, key=lambda case: (case.engine, case.dtype) != (OURS, "float32"))
    return next(iter(measured(results[best]).values()))


def words(texts: Sequence[str], reference: Sequence[str]) -> tuple[int, int]:
    """The words, and those to insert, delete or replace; without case and punctuation."""
    pairs = [(words_of(a, "en"), words_of(b, "en")) for a, b in zip(texts, reference, strict=False)]
    return sum(len(a) for a, _ in pairs), sum(edits(a, b) for a, b in pairs)


def geometric_means(rows: Sequence[Row]) -> list[Row]:
    """Of each variant of slimwhisper in each group: the mean over the rows' median ratios."""
    found = dict[tuple[str, str], list[float]]()
    for row in rows:
        if row["ratios"]:
            key = row["group"], row["peer"]
            found.setdefault(key, []).append(statistics.median(row["ratios"]))
    return [
        {"group": group, "peer": peer, "ratio": statistics.geometric_mean(v), "rows": len(v)}
        for (group, peer), v in found.items()
    ]


# -- for people ------------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> str:
    """All in Markdown: every engine, slimwhisper against the best other one, the means."""
    parts = [table([row for row in rows if "error" not in row])]
    notes = {
        OTHER_COUNT: "other than the tokens asked for; more than one off, it is not compared",
        SHORT_WINDOW: "encodes a short file with less silence than 30 s, so texts may differ",
    }
    parts += [f"{mark} {note}." for mark, note in notes.items() if mark in parts[0]]
    if any(row["ratios"] for row in rows):
        parts += [comparison(rows), means(rows)]
    failed = (row for row in rows if "error" in row)
    failures = (f"- {', '.join(place(r))} at a time, {r['peer']}: {r['error']}" for r in failed)
    if listed := "\n".join(failures):
        parts.append(f"Failed:\n\n{listed}")
    return "\n\n".join(parts)


def place(row: Row) -> list[str]:
    """The model, the audio, and the batch; with fewer files than places it says so."""
    length = row["job"] or ("recordings" if row["audio"] else f"{row['seconds']} s")
    enough = row["job"] or row["files"] >= row["batch"]
    return [row["model"], length, f"{row['files']} of " * (not enough) + str(row["batch"])]


def table(rows: Sequence[Row]) -> str:
    """Every engine."""
    head = ["model", "audio", "windows at a time", "group", "engine", "hours of audio per hour"]
    head += ["seconds", "tokens a file", "first text, ms", "memory that decoding adds, MB"]
    counted = ("words", "differences") if any("words" in row for row in rows) else ()
    lines = []
    for row in rows:
        least, most, asked = row["fewest_tokens"], row["most_tokens"], row["tokens"]
        count = str(least) if least == most else f"{least} to {most}"
        other = asked is not None and (least, most) != (asked, asked)
        short = PEERS[row["engine"]].short_window
        line = [*place(row), row["group"], row["peer"] + f" {SHORT_WINDOW}" * short]
        line += [f"{row['hours_an_hour']:,.1f}", f"{row['seconds_spent']:,.1f}"]
        line += [count + f" {OTHER_COUNT}" * other, f"{1000 * row['first_text_seconds']:,.0f}"]
        line += ["-" if row[k] is None else f"{row[k]:,.0f}" for k in ("memory_mb", "peak_mb")]
        lines.append([*line, *(row[name] for name in counted)])
    return markdown([*head, "peak, MB", *counted], lines)


def comparison(rows: Sequence[Row]) -> str:
    """slimwhisper against the best other engine."""
    head = ["model", "audio", "windows at a time", "group", "slimwhisper"]
    head += ["hours of audio per hour", "best other engine", "its hours per hour", "ratio"]
    lines = []
    for row in [row for row in rows if row["ratios"]]:
        speeds = [f"{row[name]:,.1f}" for name in ("hours_an_hour", "best_hours_an_hour")]
        line = [*place(row), row["group"], row["peer"], speeds[0], row["best"], speeds[1]]
        lines.append([*line, spread(row["ratios"])])
    return markdown(head, lines)


def means(rows: Sequence[Row]) -> str:
    """The geometric means of the ratios."""
    head = ("group", "slimwhisper", "ratio to the best other engine, geometric mean", "rows")
    lines = [(r["group"], r["peer"], f"{r['ratio']:.2f}", r["rows"]) for r in geometric_means(rows)]
    return markdown(head, lines)
