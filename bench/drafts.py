"""Drafts: python bench/drafts.py rated|texts|memory [--results FILE] ...

rated: how much faster a large model writes, with random weights in official shapes and guesses that
are right with the probability of --rates. texts FOLDER --model M --draft D: whether the texts of
recordings are the same with a real draft, and the time saved. memory: what a draft takes, as
measured and as `slimwhisper report --draft` says.

Each round decodes the same windows without a draft and with one, in turns. With --results, each
measurement is written at once, and one that is there, with the same settings, versions, machine and
commit, is not made again. Prints a table and ends in one line of JSON.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import drafts_memory
import drafts_rated
import drafts_texts
import torch
from rows import Row, Rows, add_results_flag, listed, spread, stoppable, table
from timing import machine

from slimwhisper.cache.forms import cross_names
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.devices import INT8
from slimwhisper.engine.pace import LENGTHS
from slimwhisper.errors import SlimWhisperError
from slimwhisper.flags import positive
from slimwhisper.text import human_size

RUNS = {"rated": drafts_rated.run, "texts": drafts_texts.run, "memory": drafts_memory.run}
SETTINGS = {  # of the tables: what has more than one round
    "rated": ("shape", "dtype", "cross", "windows", "rate"),
    "texts": ("model", "windows", "length"),
}
BYTES = {  # of the table of memory: heads and columns
    "weights, as report says": "weights_said",
    "measured": "weights",
    "text cache, as report says": "text_said",
    "allocated": "text",
    "both, as report says": "both_said",
    "growth of the peak": "peak",
    "peak without a draft": "peak_without",
}


def main() -> None:
    asked = parsed()
    device = torch.device("cpu")
    rows = Rows(asked.results, "drafts", device)
    try:
        with stoppable(asked.results):
            found = RUNS[asked.what](asked, rows)
    except SlimWhisperError as error:
        raise SystemExit(f"drafts.py: {error}") from None
    print(memory_table(found) if asked.what == "memory" else speed_table(asked.what, found))
    print(json.dumps({"bench": "drafts", "machine": machine(device), "results": found}))
    exact = [row for row in found if row.get("dtype", "float32") == "float32"]
    if wrong := sum(row.get("different", 0) for row in exact):
        raise SystemExit(f"{wrong} texts differ from those without a draft")


def parsed() -> argparse.Namespace:
    """The arguments; exits with status 2 if they do not fit together."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = parser.add_subparsers(dest="what", required=True)
    rated, texts, memory = (parts.add_parser(name) for name in RUNS)
    shapes = listed(str, OFFICIAL_DIMS)
    rated.add_argument("--shapes", type=shapes, default=["large-v3"], help="[large-v3]")
    rated.add_argument("--rates", type=listed(float), default=[0.6, 0.8, 0.9], help="[0.6,0.8,0.9]")
    dtypes = listed(str, ("float32", "bfloat16", INT8))
    rated.add_argument("--dtypes", type=dtypes, default=["float32"], help="[float32]")
    forms = listed(str, cross_names())
    help = "the model's caches of the audio [e]"
    rated.add_argument("--cross-caches", type=forms, default=["e"], help=help)
    rated.add_argument("--tokens", type=positive, default=48, help="of each text [48]")
    texts.add_argument("folder", type=Path, help="recordings; of each, the first 30 s")
    texts.add_argument("--count", type=positive, help="of the recordings [all]")
    lengths = "of drafts: 0 as the engine chooses, or always so many [0,3]"
    texts.add_argument("--lengths", type=listed(int, LENGTHS), default=[0, 3], help=lengths)
    memory.add_argument("--shapes", type=shapes, help="random weights, instead of --model")
    for part in (texts, memory):
        part.add_argument("--model", default="digits")
        part.add_argument("--draft", help="a model with the same encoder")
    for part, windows in ((rated, [1, 8, 16]), (texts, [1, 8, 64]), (memory, [1, 64])):
        known = ",".join(map(str, windows))
        part.add_argument("--windows", type=listed(positive), default=windows, help=f"[{known}]")
        add_results_flag(part)
    for part in (rated, memory):
        part.add_argument("--layers", type=positive, default=2, help="of the draft's decoder [2]")
    for part in (rated, texts):
        part.add_argument("--rounds", type=positive, default=3)
    asked = parser.parse_args()
    if asked.what == "texts" and not asked.folder.is_dir():
        parser.error(f"{asked.folder}: no such folder; name one with recordings")
    if asked.what != "rated" and not (asked.draft or vars(asked).get("shapes")):
        parser.error("--draft: name a model with the encoder of --model")
    return asked


def speed_table(what: str, rows: Sequence[Row]) -> str:
    """Medians of the rounds, with the least and the most, in Markdown."""
    names = SETTINGS[what]
    lines = []
    for key, some in groupby(rows, lambda row: [row[name] for name in names]):
        rounds = list(some)
        cells = [spread([row["times_as_fast"] for row in rounds])]
        if what == "texts":  # with the encoder, which is the same for both
            cells.append(spread([with_encoder(row) for row in rounds]))
        guessed, right = (sum(row[k] for row in rounds) for k in ("guessed", "right"))
        share = f"{100 * right / guessed:.0f} %" if guessed else "-"
        without = spread([1000 * r["seconds_without"] / r["sampled"] for r in rounds], ".1f")
        different = sum(row["different"] for row in rounds)
        steps = spread([row["tokens_per_step"] for row in rounds])
        cells += [steps, share, without, str(different)]
        lines.append([*key, *cells])
    speeds = ["times as fast", *(["with the encoder"] if what == "texts" else [])]
    rest = ["tokens a step", "guesses right", "ms a token without", "texts that differ"]
    return table([*names, *speeds, *rest], lines)


def with_encoder(row: Row) -> float:
    """Times as fast, with the encoder, which is the same for both."""
    without, spent = (row[k] + row["encoder_seconds"] for k in ("seconds_without", "seconds"))
    return without / spent


def memory_table(rows: Sequence[Row]) -> str:
    """What is said beside what was measured, in Markdown."""
    cells = ([r["model"], r["windows"], *(human_size(r[k]) for k in BYTES.values())] for r in rows)
    return table(["model", "windows", *BYTES], cells)


if __name__ == "__main__":
    main()
