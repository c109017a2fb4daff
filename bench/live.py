"""Live streams on a server: python bench/live.py ../shared/audio/fsdd [--streams 1,4,16,32,64]

Joins recordings of digits into conversations, starts `slimwhisper serve`, and plays them to its
/v1/realtime, each at its own speed, to so many streams at once. For each number of streams: the
time from the end of a word to its commitment, how often tentative text is rewritten, word errors
against the truth and against the server's offline transcript of the same audio, merged updates, and
what the server and this client use. Prints a table, and a line of JSON for each row; with --results
rows are kept, and those that are there are not measured again. With --gpu, only computes how many
streams a GPU carries.
"""

import argparse
import asyncio
import io
import json
import signal
import time
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import httpx
import soundfile
import torch
from conversations import Conversation, Digits, converse
from live_client import RATE, play_all
from live_score import LANGUAGE, aligned, score
from rows import Rows, add_results_flag
from serve import ROUTE, held, metrics, started
from timing import machine

from slimwhisper.commands.approximate.words import words_of
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.commands.gpu.costs import Decoding
from slimwhisper.commands.gpu.devices import DEVICES
from slimwhisper.commands.gpu.scenarios import SCENARIOS
from slimwhisper.flags import positive
from slimwhisper.live.types import POLICIES

STREAMS = (1, 4, 16, 32, 64)
DIFFERENT = 16  # conversations; more streams play them again, at other times
POSITIONS = 50  # of the encoder, for a second
SLOTS = 64  # that decode together, for --gpu
NEW = 8  # tokens that an update samples beyond its draft, for --gpu: 2 to 3 a second, and a tail
TURN = 4.5  # seconds of a turn with its pause, about
COLUMNS = {  # of the table: what a row has under this name, and how it is shown
    "streams": ("streams", "d"),
    "p50 s": ("p50", ".2f"),
    "p95 s": ("p95", ".2f"),
    "p99 s": ("p99", ".2f"),
    "erased/word": ("erasure", ".2f"),
    "word errors %": ("word_errors", ".2f"),
    "offline %": ("offline_errors", ".2f"),
    "from offline %": ("from_offline", ".2f"),
    "updates/s": ("updates", ".1f"),
    "merged": ("merged", "d"),
    "server CPUs": ("server_cpu", ".2f"),
    "server MB": ("server_mb", ".0f"),
    "client CPUs": ("client_cpu", ".2f"),
}


def conversations(folder: Path, count: int, seconds: float, seed: int) -> list[Conversation]:
    """Conversations of two people of about that length, at least one turn each."""
    digits = Digits(folder)
    turns = max(round(seconds / TURN), 2)
    return [converse(digits, 2, turns, seed + i) for i in range(min(count, DIFFERENT))]


def cpu_seconds(pid: int) -> float:
    """What a process, and its children that run, have used so far (Linux)."""
    ticks, waiting = 0, [pid]
    while waiting:
        one = Path(f"/proc/{waiting.pop()}")
        fields = (one / "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        waiting += [
            int(child) for t in one.glob("task/*/children") for child in t.read_text().split()
        ]
    return ticks / 100  # the kernel's USER_HZ


def offline(url: str, conversation: Conversation) -> str:
    """The server's transcript of a recording that is sent at once."""
    file = io.BytesIO()
    soundfile.write(file, conversation.audio, RATE, format="WAV", subtype="PCM_16")
    sent = {"file": ("talk.wav", file.getvalue())}
    found = httpx.post(url + ROUTE, files=sent, data={"language": "en"}, timeout=600)
    found.raise_for_status()
    return str(found.json()["text"])


def measure(
    url: str, pid: int, talks: list[Conversation], offline_texts: list[str], streams: int
) -> dict[str, Any]:
    """One row: so many streams at once."""
    chosen = [talks[i % len(talks)] for i in range(streams)]
    before, cpu, mine, since = metrics(url), cpu_seconds(pid), time.process_time(), time.monotonic()
    websocket = "ws" + url.removeprefix("http")
    # starts are spread, so that updates are not due together
    played = asyncio.run(play_all(websocket, [t.audio for t in chosen], min(streams, 10.0)))
    spent, after = time.monotonic() - since, metrics(url)
    scores = [
        score(talk.words, offline_texts[i % len(talks)], [*each.utterances.values()])
        for i, (talk, each) in enumerate(zip(chosen, played, strict=True))
    ]
    total = reduce(add, scores)

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    return {
        "streams": streams,
        "words": total.truth_words,
        **total.summary(),
        "updates": grown("slimwhisper_updates_total") / spent,
        "merged": round(grown("slimwhisper_merged_updates_total")),
        "server_cpu": (cpu_seconds(pid) - cpu) / spent,
        "server_mb": held(pid)["mb"],
        "client_cpu": (time.process_time() - mine) / spent,
        "client_late": max(each.late for each in played),
        "failures": [each.error for each in played if each.error],
    }


def offline_errors(talks: list[Conversation], texts: list[str]) -> float:
    """Word errors of the offline transcripts, in percent."""
    pairs = [
        ([word.word for word in talk.words], words_of(text, LANGUAGE))
        for talk, text in zip(talks, texts, strict=True)
    ]
    errors = sum(aligned(*pair)[1] for pair in pairs)
    return 100 * errors / sum(len(truth) for truth, _ in pairs)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        values = [(row[name], kind) for name, kind in COLUMNS.values()]
        cells = ["-" if value is None else format(value, kind) for value, kind in values]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def capacity(model: str, gpu: str, window: float | None, update: float) -> dict[str, Any]:
    """How many streams a GPU carries whose speakers never pause, computed from its data sheet: an
    update is the encoder, a pass over prompt, committed text and draft, and `NEW` steps.
    """
    dims = OFFICIAL_DIMS[model]
    if window is not None:
        dims = replace(dims, n_audio_ctx=round(window * POSITIONS))
    costs = Decoding(dims, "slim", SLOTS, DEVICES[gpu], SCENARIOS["present"]).costs()
    steps = NEW * costs.step.seconds / SLOTS
    seconds = costs.encoder.seconds + costs.prompt.seconds + steps
    return {
        "model": model,
        "gpu": DEVICES[gpu].gpu,
        "encoder_ms": 1000 * costs.encoder.seconds,
        "prompt_ms": 1000 * costs.prompt.seconds,
        "steps_ms": 1000 * steps,
        "streams": int(update / seconds),
    }


def compute(asked: argparse.Namespace) -> None:
    """Print a line for each window."""
    for window in (None, asked.window) if asked.window else (None,):
        found = capacity(asked.model, asked.gpu, window, asked.update)
        seconds = "30 s" if window is None else f"{window:g} s"
        parts = ", ".join(f"{k} {found[f'{k}_ms']:.2f} ms" for k in ("encoder", "prompt", "steps"))
        print(
            f"computed, not measured: {found['model']} on {found['gpu']}, windows of {seconds}, an "
            f"update each {asked.update:g} s, {NEW} new tokens each: {parts}; {found['streams']} "
            "streams of constant speech"
        )
        print(json.dumps({"bench": "live", "computed": True, "window": window} | found))


def run(asked: argparse.Namespace) -> None:
    """Measure what is not in the results yet, and print all."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = ("model", "seconds", "window", "update", "policy", "seed")
    case = {name: getattr(asked, name) for name in names}
    rows = Rows(asked.results, "live", device)
    done = {row["streams"]: row for row in kept(asked.results, rows.common | case)}
    missing = [n for n in asked.streams if n not in done]
    if missing:
        talks = conversations(asked.folder, max(missing), asked.seconds, asked.seed)
        flags = ["--model", asked.model, "--streams", str(max(missing) + 1), "--no-page"]
        flags += ["--update", str(asked.update), "--policy", asked.policy, *asked.flags]
        flags += ["--live-window", str(asked.window)] if asked.window else []
        process, url = started(flags)
        try:
            texts = [offline(url, talk) for talk in talks]
            beginning = replace(talks[0], audio=talks[0].audio[: 3 * RATE])
            measure(url, process.pid, [beginning], texts, 1)  # warm-up
            for streams in missing:
                here = min(streams, len(talks))
                row = measure(url, process.pid, talks[:here], texts, streams)
                row["offline_errors"] = offline_errors(talks[:here], texts[:here])
                rows.add(**case, **row)
                done[streams] = row
                print(table([row]).splitlines()[-1], flush=True)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    found = [done[n] for n in asked.streams]
    print(*(f"{key}: {value}" for key, value in machine(device).items()), sep="\n")
    print(table(found))
    for row in found:
        print(json.dumps(rows.common | case | row))
    if failures := [failure for row in found for failure in row["failures"]]:
        raise SystemExit(f"{len(failures)} streams failed, the first one: {failures[0]}")


def kept(path: Path | None, same: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a results file that were measured with the same settings, on the same machine."""
    if path is None or not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if same.items() <= row.items()]


def counts(text: str) -> list[int]:
    """Whole numbers from 1 up, with commas between."""
    return [positive(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/audio/fsdd"))
    parser.add_argument("--model", default="digits")
    parser.add_argument("--streams", type=counts, default=list(STREAMS), help="such as 1,4,16")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each conversation, about")
    parser.add_argument("--window", type=float, help="seconds that an update encodes [all]")
    parser.add_argument("--update", type=float, default=1.0, help="seconds between updates [1]")
    parser.add_argument("--policy", choices=POLICIES, default=POLICIES[0])
    parser.add_argument("--seed", type=int, default=0, help="of the conversations")
    parser.add_argument("--gpu", choices=DEVICES, help="only compute what this one carries")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of the server")
    add_results_flag(parser)
    asked = parser.parse_args()
    if asked.gpu is not None:
        compute(asked)
    else:
        run(asked)


if __name__ == "__main__":
    main()
