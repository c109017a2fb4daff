"""Live streams on a server: python bench/live.py ../shared/audio/fsdd [--streams 1,4,16,32,64]

Joins recordings of digits into conversations, starts `slimwhisper serve`, and plays them to its
/v1/realtime, each at its own speed, to several streams at once. For each number of streams: the
time from the end of a word to its commitment, how often tentative text is rewritten, word errors
against the truth and against the server's offline transcript of the same audio, merged updates, and
what the server and this client use. Prints a table with the medians of the rounds, and a line of
JSON for each row. With --results, each row is written as soon as it is measured, and one that is
there, with the same settings, versions, machine and commit, is not measured again.

The delay of a word is the time from its end in the audio to its commitment; "last" is that of the
words that end an utterance. Rewritten text is measured as normalized erasure (Arivazhagan et al.,
arXiv 1912.03393): words that were shown and taken back, for each word of the last text.
"""

import argparse
import asyncio
import io
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import httpx
import soundfile
import torch
from conversations import Conversation, Digits, aligned, converse, words_of
from live_streams import RATE, play_all, score
from rows import Row, Rows, add_results_flag, listed, spread, stoppable
from rows import table as markdown
from serve import ROUTE, held, metrics, started
from timing import children, machine

from slimwhisper.flags import positive

STREAMS = (1, 4, 16, 32, 64)
DIFFERENT = 16  # conversations; more streams play them again, at other times
TURN = 4.5  # seconds of a turn with its pause, about
SPREAD = 10.0  # seconds over which streams start at most, so that updates are not due together
STARTING = 30.0  # seconds of the server's start and of the offline transcripts, about
COLUMNS = {  # of the table: what a row has under this name, and how it is shown
    "streams": ("streams", "d"),
    "p50 s": ("p50", ".2f"),
    "p95 s": ("p95", ".2f"),
    "p99 s": ("p99", ".2f"),
    "last p50 s": ("last_p50", ".2f"),
    "last p95 s": ("last_p95", ".2f"),
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
    return [converse(digits, turns, seed + i) for i in range(min(count, DIFFERENT))]


def cpu_seconds(pid: int) -> float:
    """What a process, and its children that run, have used so far (Linux)."""
    ticks, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        waiting += children(one)
    return ticks / 100  # the kernel's USER_HZ


def offline(url: str, conversation: Conversation) -> str:
    """The server's transcript of a recording that is sent at once."""
    file = io.BytesIO()
    soundfile.write(file, conversation.audio, RATE, format="WAV", subtype="PCM_16")
    sent = {"file": ("talk.wav", file.getvalue())}
    answer = httpx.post(url + ROUTE, files=sent, data={"language": "en"}, timeout=600)
    answer.raise_for_status()
    return str(answer.json()["text"])


def measure(
    url: str, pid: int, talks: list[Conversation], offline_texts: list[str], streams: int
) -> dict[str, Any]:
    """One row, of a number of streams at once."""
    chosen = [talks[i % len(talks)] for i in range(streams)]
    before, cpu, mine, since = metrics(url), cpu_seconds(pid), time.process_time(), time.monotonic()
    websocket = "ws" + url.removeprefix("http")
    played = asyncio.run(play_all(websocket, [t.audio for t in chosen], min(streams, SPREAD)))
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
        ([word.word for word in talk.words], words_of(text))
        for talk, text in zip(talks, texts, strict=True)
    ]
    errors = sum(aligned(*pair)[1] for pair in pairs)
    return 100 * errors / sum(len(truth) for truth, _ in pairs)


def table(rounds: list[list[Row]]) -> str:
    """The rounds of each number of streams as a line of a table in Markdown: medians, and of the
    latency that 95 % of the words have, also the least and the most.
    """
    lines = []
    for rows in rounds:
        cells = []
        for name, kind in COLUMNS.values():
            values = [row[name] for row in rows if row[name] is not None]
            if not values:
                cells.append("-")
            elif name == "p95":
                cells.append(spread(values, kind))
            else:
                middle = statistics.median(values)
                cells.append(format(round(middle) if kind == "d" else middle, kind))
        lines.append(cells)
    return markdown([*COLUMNS], lines)


def run(args: argparse.Namespace) -> None:
    """Measure what is not in the results yet, and print all."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = ("model", "seconds", "window", "update", "seed", "flags")
    case = {name: getattr(args, name) for name in names} | {"folder": args.folder.name}
    rows = Rows(args.results, "live", device)
    done = {
        (row["round"], row["streams"]): row
        for row in rows.kept(**case)
        if row["streams"] in args.streams and row["round"] < args.rounds
    }
    cases = [(number, streams) for number in range(args.rounds) for streams in args.streams]
    missing = [one for one in cases if one not in done]
    if missing:
        expected = STARTING + len(missing) * (args.seconds + SPREAD)
        progress = f"{len(missing)} rows, about {expected / 60:.0f} minutes; {len(done)} are there"
        print(progress, file=sys.stderr)
        with stoppable(args.results):
            for key, row in measured(args, missing):
                done[key] = rows.add(**case, round=key[0], **row)
                print(table([[row]]).splitlines()[-1], flush=True)
    print(*(f"{key}: {value}" for key, value in machine(device).items()), sep="\n")
    print(table([[done[n, streams] for n in range(args.rounds)] for streams in args.streams]))
    results = [done[one] for one in cases]
    print(*map(json.dumps, results), sep="\n")
    if failures := [failure for row in results for failure in row["failures"]]:
        raise SystemExit(f"{len(failures)} streams failed, the first one: {failures[0]}")


def measured(
    args: argparse.Namespace, missing: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], Row]]:
    """Rows by round and number of streams, all on one server."""
    most = max(streams for _, streams in missing)
    talks = conversations(args.folder, most, args.seconds, args.seed)
    flags = ["--model", args.model, "--streams", str(most + 1), "--no-page"]
    flags += ["--update", str(args.update), *args.flags]
    flags += ["--live-window", str(args.window)] if args.window else []
    process, url = started(flags)
    try:
        texts = [offline(url, talk) for talk in talks]
        beginning = replace(talks[0], audio=talks[0].audio[: 3 * RATE])
        measure(url, process.pid, [beginning], texts, 1)  # warm-up
        for number, streams in missing:
            here = min(streams, len(talks))
            row = measure(url, process.pid, talks[:here], texts, streams)
            row["offline_errors"] = offline_errors(talks[:here], texts[:here])
            yield (number, streams), row
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/audio/fsdd"))
    parser.add_argument("--model", default="digits")
    parser.add_argument(
        "--streams", type=listed(positive), default=list(STREAMS), help="such as 1,4,16"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each conversation, about")
    parser.add_argument("--window", type=float, help="seconds that an update encodes [all]")
    parser.add_argument("--update", type=float, default=1.0, help="seconds between updates [1]")
    parser.add_argument("--rounds", type=positive, default=1, help="[1]")
    parser.add_argument("--seed", type=int, default=0, help="of the conversations")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of the server")
    add_results_flag(parser)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
