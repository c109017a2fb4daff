"""The results of `peers.py` as a table."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product

from peer_engines import OURS, PEERS, name_of
from peer_engines.case import Case
from rows import Row, spread
from rows import table as markdown

from slimwhisper.research.comparison import edits, words_of

Results = Mapping[Case, dict[int, Row]]  # of each case, by round
MEDIANS = ("hours_an_hour", "seconds_spent", "first_text_seconds", "peak_mb")


def summaries(results: Results, errors: Mapping[Case, str]) -> list[Row]:
    """A row for each case: the medians of its rounds, or why it failed. Rows of slimwhisper have
    the best other engine of the same group, and the ratio of speeds in each round that both have.
    """
    return [
        {"peer": name_of(case), "group": case.group, **asdict(case), "ratios": []}
        | (summary(case, results) if rounds else {"error": errors[case]})
        for case, rounds in results.items()
    ]


def summary(case: Case, results: Results) -> Row:
    """What is said of a case that was measured."""
    row, rounds = Row(), results[case]
    for name in MEDIANS:
        values = [r[name] for r in rounds.values() if r[name] is not None]
        row[name] = statistics.median(values) if values else None
    first = next(iter(rounds.values()))
    row |= {name: first[name] for name in ("sampled", "fewest_tokens", "most_tokens")}
    if first["texts"] is not None:
        row["words"], row["differences"] = words(first["texts"], reference(case, results)["texts"])
    if case.engine.startswith(OURS) and (best := best_other(case, results)):
        theirs = results[best]
        both = sorted(rounds.keys() & theirs.keys())
        row["best"] = name_of(best) + f", {best.batch} at a time" * (best.batch != case.batch)
        row["best_hours_an_hour"] = speed(best, results)
        row["ratios"] = [rounds[n]["hours_an_hour"] / theirs[n]["hours_an_hour"] for n in both]
    return row


def speed(case: Case, results: Results) -> float:
    """The median of hours of audio per hour."""
    return statistics.median(r["hours_an_hour"] for r in results[case].values())


def best_other(ours: Case, results: Results) -> Case | None:
    """The fastest case of another project in the same group, with as many tokens. One without
    batches also counts with fewer windows at a time.
    """
    others = [
        case
        for case, rounds in results.items()
        if not case.engine.startswith(OURS)
        and rounds
        and compared(case, ours)
        and all(
            abs(row[count] - (case.tokens or row[count])) <= 1
            for row, count in product(rounds.values(), ("fewest_tokens", "most_tokens"))
        )
    ]
    return max(others, key=lambda case: speed(case, results), default=None)


def compared(theirs: Case, ours: Case) -> bool:
    """Whether a case is one that ours is compared with."""
    same = ("model", "group", "tokens", "threads", "audio", "device", "seconds", "job")
    if any(getattr(theirs, name) != getattr(ours, name) for name in same):
        return False
    fewer = theirs.batch < ours.batch and not PEERS[theirs.engine].batches
    return theirs.batch == ours.batch or fewer or ours.job is not None


def reference(case: Case, results: Results) -> Row:
    """A round of the same recordings by slimwhisper in float32, or else by the first engine."""
    same = [
        c
        for c, rounds in results.items()
        if (c.model, c.audio, c.job) == (case.model, case.audio, case.job) and rounds
    ]
    best = min(same, key=lambda case: (case.engine, case.dtype) != (OURS, "float32"))
    return next(iter(results[best].values()))


def words(texts: Sequence[str], reference: Sequence[str]) -> tuple[int, int]:
    """The words, and those to insert, delete or replace; without case and punctuation."""
    pairs = [(words_of(a, "en"), words_of(b, "en")) for a, b in zip(texts, reference, strict=False)]
    return sum(len(a) for a, _ in pairs), sum(edits(a, b) for a, b in pairs)


def table(rows: Sequence[Row]) -> str:
    """In Markdown: every engine, and of slimwhisper how many times as fast as the best other."""
    head = ["model", "audio", "windows at a time", "group", "engine", "hours of audio per hour"]
    head += ["seconds", "tokens a file", "first text, ms", "peak, MB"]
    head += ["best other engine", "ratio to it", "words", "differences"]
    lines = []
    for row in rows:
        # with fewer files than places it says so
        few = "" if row["job"] or row["files"] >= row["batch"] else f"{row['files']} of "
        length = row["job"] or ("recordings" if row["audio"] else f"{row['seconds']} s")
        least, most = row["fewest_tokens"], row["most_tokens"]
        line = [row["model"], length, f"{few}{row['batch']}", row["group"], row["peer"]]
        line += [f"{row['hours_an_hour']:,.1f}", f"{row['seconds_spent']:,.1f}"]
        line += [f"{least}" if least == most else f"{least} to {most}"]
        line += [f"{1000 * row['first_text_seconds']:,.0f}"]
        line += ["-" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}"]
        line += [row.get("best", ""), spread(row["ratios"]) if row["ratios"] else ""]
        lines.append([*line, *(row.get(name, "") for name in ("words", "differences"))])
    return markdown(head, lines)
