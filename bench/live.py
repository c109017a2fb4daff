"""The delay and the text of live streams: python bench/live.py FOLDER [--streams 1,4,16,32,64]

Joins the recordings of a folder, starts `slimwhisper serve`, and plays them to its /v1/realtime,
each at its own speed, to several streams at once. For each number of streams: the time from the end
of a word to its commitment, how often tentative text is rewritten, word errors against the server's
offline transcript of the same audio, which also says when words end, merged updates, and what the
server and this client use. Prints a table with the medians of the rounds, and a line of JSON for
each row. With --results, each row is written as soon as it is measured. With --policy, one stream
without a server and as if nothing took time: the delay is the policy's alone.

The delay of a word is the time from its end in the audio to its commitment; "last" is that of the
words that end an utterance. Rewritten text is measured as normalized erasure (Arivazhagan et al.,
arXiv 1912.03393): words that were shown and taken back, for each word of the last text.
"""

import argparse
import asyncio
import io
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import soundfile
import torch
from live_streams import RATE, Shown, Word, play_all, score
from numpy.typing import NDArray
from rows import Row, Rows, add_results_flag, listed, spread
from rows import table as markdown
from serve import ROUTE, grown, held, metrics, serving
from timing import children, print_machine

import slimwhisper
from slimwhisper.audio.load import load_audio
from slimwhisper.audio_formats.names import AUDIO_SUFFIXES
from slimwhisper.flags import positive
from slimwhisper.live.types import TextUpdate
from slimwhisper.research.comparison import words_of
from slimwhisper.voice_activity import FRAME

Sound = NDArray[np.float32]  # [n], 16 kHz
Talk = tuple[Sound, list[Word]]
PAUSE = np.zeros(RATE, np.float32)  # after each recording
DIFFERENT = 16  # conversations; more streams play them again, at other times
SPREAD = 10.0  # seconds over which streams start at most, so that updates are not due together
STARTING = 30.0  # seconds of the server's start and of the offline transcripts, about
COLUMNS = {  # of the table: what a row has under this name, and how it is shown
    "p50 s": ("p50", ".2f"),
    "p95 s": ("p95", ".2f"),
    "p99 s": ("p99", ".2f"),
    "last p50 s": ("last_p50", ".2f"),
    "last p95 s": ("last_p95", ".2f"),
    "erased/word": ("erasure", ".2f"),
    "from offline %": ("word_errors", ".2f"),
    "updates/s": ("updates", ".1f"),
    "merged": ("merged", ".0f"),
    "server CPUs": ("server_cpu", ".2f"),
    "server MB": ("server_mb", ".0f"),
    "client CPUs": ("client_cpu", ".2f"),
}


def cpu_seconds(pid: int) -> float:
    """What a process, and its children that run, have used so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / 100 + sum(map(cpu_seconds, children(pid)))  # the kernel's USER_HZ


def joined(folder: Path, count: int, seconds: float) -> list[Sound]:
    """Conversations of that length at most: the recordings, each time from another one on."""
    paths = sorted(p for p in folder.iterdir() if p.suffix in AUDIO_SUFFIXES)
    sounds = [np.concatenate([load_audio(path), PAUSE]) for path in paths]
    return [
        np.concatenate([*sounds[first:], *sounds[:first]])[: round(seconds * RATE)]
        for first in range(min(count, len(sounds)))
    ]


def offline(url: str, sound: Sound, language: str) -> list[Word]:
    """The words of the server's transcript of a recording that is sent at once."""
    file = io.BytesIO()
    soundfile.write(file, sound, RATE, format="WAV", subtype="PCM_16")
    sent = {"file": ("talk.wav", file.getvalue())}
    asked = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    answer = httpx.post(url + ROUTE, files=sent, data={"language": language} | asked, timeout=600)
    return spoken(answer.raise_for_status().json()["words"], language)


def spoken(timed: list[dict[str, Any]], language: str) -> list[Word]:
    """The words of a transcript, each without case and punctuation."""
    return [Word(word, w["end"]) for w in timed for word in words_of(w["word"], language)]


def policy(args: argparse.Namespace) -> None:
    """Print the row of one stream whose updates take no time."""
    model = slimwhisper.load_model(args.model)
    sound, at = joined(args.folder, 1, args.seconds)[0], 0.0
    whole = model.transcribe(sound, language=args.language, word_timestamps=True)
    shown: dict[int, Shown] = defaultdict(partial(Shown, args.language))

    def pieces() -> Iterator[Sound]:
        nonlocal at
        for start in range(0, len(sound), FRAME):
            at = (start + FRAME) / RATE
            yield sound[start : start + FRAME]

    for event in model.live(pieces(), language=args.language, update=args.update):
        if isinstance(event, TextUpdate):
            shown[event.utterance].commit(event.committed, at)
            shown[event.utterance].show(event.tentative)
    words = spoken([word for s in whole["segments"] for word in s["words"]], args.language)
    result = score([(words, [*shown.values()])])
    print(json.dumps({"seconds": len(sound) / RATE} | result))


def measure(url: str, pid: int, talks: list[Talk], streams: int, language: str) -> Row:
    """One row, of a number of streams at once."""
    chosen = list(islice(cycle(talks), streams))
    before, cpu, mine, since = metrics(url), cpu_seconds(pid), time.process_time(), time.monotonic()
    websocket, sounds = "ws" + url.removeprefix("http"), [sound for sound, _ in chosen]
    played = asyncio.run(play_all(websocket, sounds, min(streams, SPREAD), language))
    spent, counts = time.monotonic() - since, grown(url, before)
    shown = ([*each.utterances.values()] for each in played)
    return {
        "streams": streams,
        **score(zip((words for _, words in chosen), shown, strict=True)),
        "updates": counts["slimwhisper_updates_total"] / spent,
        "merged": round(counts["slimwhisper_merged_updates_total"]),
        "server_cpu": (cpu_seconds(pid) - cpu) / spent,
        "server_mb": held(pid)["mb"],
        "client_cpu": (time.process_time() - mine) / spent,
        "client_late": max(each.late for each in played),
        "failures": [each.error for each in played if each.error],
    }


def table(rounds: list[list[Row]]) -> str:
    """The rounds of each number of streams as a line of a table in Markdown: medians, and the least
    and the most.
    """
    lines = []
    for rows in rounds:
        cells = [str(rows[0]["streams"])]
        for name, form in COLUMNS.values():
            values = [row[name] for row in rows if row[name] is not None]
            cells.append(spread(values, form) if values else "-")
        lines.append(cells)
    return markdown(["streams", *COLUMNS], lines)


def run(args: argparse.Namespace) -> None:
    """Measure and print all, on one server."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = ("model", "language", "seconds", "window", "update", "flags")
    case = {name: getattr(args, name) for name in names} | {"folder": args.folder.name}
    rows, found, most = Rows(args.results, "live", device), list[Row](), max(args.streams)
    expected = STARTING + args.rounds * len(args.streams) * (args.seconds + SPREAD)
    print(f"about {expected / 60:.0f} minutes", file=sys.stderr)
    sounds = joined(args.folder, min(most, DIFFERENT), args.seconds)
    flags = ["--model", args.model, "--streams", str(most + 1), "--no-page"]
    flags += ["--update", str(args.update), *args.flags]
    flags += ["--live-window", str(args.window)] if args.window else []
    with serving(*flags) as (url, server):
        talks = [(sound, offline(url, sound, args.language)) for sound in sounds]
        measure(url, server.pid, [(sounds[0][: 3 * RATE], [])], 1, args.language)  # warm-up
        for number, streams in product(range(args.rounds), args.streams):
            row = measure(url, server.pid, talks, streams, args.language)
            found.append(rows.add(**case, round=number, **row))
            print(table([found[-1:]]).splitlines()[-1], flush=True)
    print_machine(device)
    print(table([[row for row in found if row["streams"] == n] for n in args.streams]))
    print(*map(json.dumps, found), sep="\n")
    if failures := [failure for row in found for failure in row["failures"]]:
        raise SystemExit(f"{len(failures)} streams failed, the first one: {failures[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="of recordings")
    parser.add_argument("--model", default="digits")
    parser.add_argument("--language", default="en", help="of the recordings [en]")
    parser.add_argument("--policy", action="store_true", help="without a server, without delays")
    parser.add_argument("--streams", type=listed(positive), default=[1, 4, 16, 32, 64])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each conversation, at most")
    parser.add_argument("--window", type=float, help="seconds that an update encodes [all]")
    parser.add_argument("--update", type=float, default=1.0, help="seconds between updates [1]")
    parser.add_argument("--rounds", type=positive, default=1, help="[1]")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of the server")
    add_results_flag(parser)
    args = parser.parse_args()
    policy(args) if args.policy else run(args)


if __name__ == "__main__":
    main()
