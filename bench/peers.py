"""Compares Whisper implementations: python bench/peers.py [--shapes tiny,base] [--results FILE]

All use the same weights, converted to each project's format (`converted.py`), the same audio and
the same number of threads. With --shapes: random weights in official shapes, 29 s of noise per
file, and a fixed number of tokens each. With --model CHECKPOINT --folder AUDIO: a trained
checkpoint on recordings of at most 30 s each.

Those that are compared, of one shape, batch and dtype, take turns, each in a process of its own: a
round of one, a round of the next. With --results, each round is written as soon as it is measured,
and a round that is there, with the same settings, versions, machine and commit, is not measured
again. Ends in a table, and one line of JSON; --plot writes a plot as PNG and SVG.

Needs the packages to measure: pip install transformers faster-whisper pywhispercpp. Without
--engines, those not installed are left out. If anything else is missing, it is said before anything
is measured, and the exit status is 2. One that fails is left out, and the exit status is 1.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from converted import convert
from engines import PEERS, Case
from peers_check import Estimate, in_words, lacking, missing, weight_bytes
from peers_table import draw, summaries, table
from peers_worker import Worker
from rows import Row, Rows, add_results_flag, installed, listed, stoppable
from timing import machine

from slimwhisper.checkpoint.load import Checkpoint, load_checkpoint
from slimwhisper.checkpoint.random_weights import random_checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.digests import weights_digest
from slimwhisper.flags import positive
from slimwhisper.types import Dims

PAUSE = 0.5  # seconds between turns: threads of the one before stop to wait for work
FEWEST = 4  # files of a round


def main() -> None:
    asked = parsed()
    device = torch.device(asked.device)
    checkpoint = load_checkpoint(asked.model) if asked.model else None
    dims = {asked.model: checkpoint.dims} if checkpoint else OFFICIAL_DIMS
    cases = list(cases_of(asked))
    weights = max((weight_bytes(dims[case.model]) for case in cases), default=0)
    engines = [name for name in asked.engines if any(case.engine == name for case in cases)]
    if lines := list(missing(engines, asked.plot, asked.folder, weights)):
        print(*lines, sep="\n", file=sys.stderr)
        raise SystemExit(2)
    if not cases:
        raise SystemExit("nothing to measure: no engine that is installed has these dtypes")
    bench = Bench(asked, cases, dims, checkpoint)
    with stoppable(asked.results):
        bench.run()
    summed = summaries(cases, bench.found)
    print(table(summed))
    this = machine(device)
    if asked.plot:
        draw(summed, str(this.get("gpu", this["processor"])), asked.plot)
    print(json.dumps({"bench": "peers", "machine": this, "rows": summed}))
    if bench.failed:
        raise SystemExit(f"failed: {', '.join(bench.failed)}")


def parsed() -> argparse.Namespace:
    """The arguments; exits with status 2 if they do not fit together."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    which = parser.add_mutually_exclusive_group()
    shapes = listed(str, OFFICIAL_DIMS)
    which.add_argument("--shapes", type=shapes, default=["tiny"], help="of random weights [tiny]")
    which.add_argument("--model", help="a trained checkpoint, with --folder")
    parser.add_argument("--folder", type=Path, help="recordings for --model")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--engines", type=listed(str, PEERS), help="[all that are installed]")
    parser.add_argument("--dtypes", type=listed(str), help="[all that an engine has]")
    parser.add_argument("--batches", type=listed(positive), default=[1, 8, 64], help="[1,8,64]")
    files = "of a round: as many as the batch, or 4, but at most these, for all or each shape [64]"
    parser.add_argument("--files", type=numbers, default=[64], help=files)
    parser.add_argument("--tokens", type=positive, default=50, help="of each file, with --shapes")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--plot", type=Path, help="name of the PNG and SVG")
    parser.add_argument("--estimate", action="store_true", help="only say how long it would take")
    add_results_flag(parser)
    asked = parser.parse_args()
    if (asked.model is None) != (asked.folder is None):
        parser.error("--model needs --folder, and --folder --model")
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device; use --device cpu")
    able = {
        n: peer.dtypes[asked.device] for n, peer in PEERS.items() if asked.device in peer.dtypes
    }
    if asked.engines is None:
        asked.engines = [name for name in able if lacking(name) is None]
        for name in able.keys() - set(asked.engines):
            print(f"left out: {lacking(name)}", file=sys.stderr)
    elif strange := [name for name in asked.engines if name not in able]:
        parser.error(f"not on {asked.device}: {', '.join(strange)}; choose from {', '.join(able)}")
    known = dict.fromkeys(dtype for dtypes in able.values() for dtype in dtypes)
    if strange := [name for name in asked.dtypes or () if name not in known]:
        parser.error(f"not on {asked.device}: {', '.join(strange)}; choose from {', '.join(known)}")
    if len(asked.files) not in (1, len(asked.shapes)):
        parser.error("--files: give one number, or one for each of --shapes")
    return asked


def numbers(text: str) -> list[int]:
    """Whole numbers from 1 up, with commas between; they may be equal."""
    return [positive(part) for part in text.split(",")]


def cases_of(asked: argparse.Namespace) -> Iterator[Case]:
    """All cases; those that are compared follow one another."""
    models = [asked.model] if asked.model else asked.shapes
    most = asked.files if len(asked.files) == len(models) else asked.files * len(models)
    peers = {name: PEERS[name].dtypes[asked.device] for name in asked.engines}
    every = dict.fromkeys(dtype for dtypes in peers.values() for dtype in dtypes)
    for model, files in zip(models, most, strict=True):
        for batch in asked.batches:
            for dtype in asked.dtypes or every:
                for engine, dtypes in peers.items():
                    if dtype in dtypes and (batch == 1 or PEERS[engine].batches):
                        yield Case(
                            model=model,
                            engine=engine,
                            dtype=dtype,
                            batch=batch,
                            files=min(files, max(batch, FEWEST)),
                            tokens=None if asked.model else asked.tokens,
                            threads=asked.threads,
                            audio=str(asked.folder) if asked.model else None,
                            device=asked.device,
                        )


class Bench:
    """Measures what the results do not have yet."""

    def __init__(
        self,
        asked: argparse.Namespace,
        cases: Sequence[Case],
        dims: dict[str, Dims],
        checkpoint: Checkpoint | None,
    ) -> None:
        """checkpoint: the trained one, if --model is given."""
        self.asked, self.cases, self.dims, self.checkpoint = asked, cases, dims, checkpoint
        self.digest = weights_digest(checkpoint.state) if checkpoint else None
        self.written = Rows(asked.results, "peers", torch.device(asked.device))
        self.failed: list[str] = []
        self.estimate = Estimate()
        self.found = {case: self.kept(case) for case in cases}  # rows by round
        for case, rows in self.found.items():
            for row in rows.values():
                self.estimate.learn(case, dims[case.model], row["seconds"])

    def settings(self, case: Case) -> Row:
        """What says that two rows measured the same."""
        versions = {name: installed(name) for name in PEERS[case.engine].distributions}
        return {**asdict(case), "versions": versions, "weights": self.digest}

    def kept(self, case: Case) -> dict[int, Row]:
        """The rounds that were measured before."""
        rows = {row["round"]: row for row in self.written.kept(**self.settings(case))}
        return {number: rows[number] for number in range(self.asked.rounds) if number in rows}

    def missing(self, case: Case) -> list[int]:
        return [n for n in range(self.asked.rounds) if n not in self.found[case]]

    def left(self) -> str:
        """How long the rest will take, about."""
        to_do = [(case, len(self.missing(case))) for case in self.cases]
        return in_words(self.estimate.seconds(to_do, self.dims))

    def run(self) -> None:
        """Measure; `found` has the rows, `failed` the cases that could not be measured."""
        rounds = sum(len(self.missing(case)) for case in self.cases)
        kept = len(self.cases) * self.asked.rounds - rounds
        print(f"{rounds} rounds, about {self.left()}; {kept} are there", file=sys.stderr)
        if self.asked.estimate:
            raise SystemExit
        for model, some in groupby(self.cases, lambda case: case.model):
            with tempfile.TemporaryDirectory() as folder:
                cases = [case for case in some if self.missing(case)]
                cases = self.convert(model, cases, Path(folder))
                for _, together in groupby(cases, lambda case: (case.batch, case.dtype)):
                    self.take_turns(list(together), folder)

    def convert(self, model: str, cases: list[Case], folder: Path) -> list[Case]:
        """Write the weights in the formats of these cases; returns those that it went well for."""
        if not cases:
            return []
        checkpoint = self.checkpoint or random_checkpoint(self.dims[model])
        half = self.asked.device == "cuda"  # as the official checkpoints are; half as long to read
        for kind in dict.fromkeys(PEERS[case.engine].format for case in cases):
            try:
                convert(checkpoint, folder, [kind], torch.float16 if half else torch.float32)
            except Exception as error:  # of another project; the others can be measured
                print(f"{kind}: {error}", file=sys.stderr)
                self.failed.append(f"conversion to {kind}")
                cases = [case for case in cases if PEERS[case.engine].format != kind]
        return cases

    def take_turns(self, cases: list[Case], folder: str) -> None:
        """Measure cases that are compared with one another, round by round."""
        workers: dict[Case, Worker] = {}
        try:
            for number in range(self.asked.rounds):
                for case in list(cases):
                    if number not in self.missing(case):
                        continue
                    if case not in workers:
                        workers[case] = Worker(case, folder)
                    time.sleep(PAUSE)
                    result = workers[case].measure()
                    where = f"{case.model}, {case.name}, batch {case.batch}"
                    if isinstance(result, str):
                        print(f"{where}: {result}", file=sys.stderr)
                        self.failed.append(where)
                        cases.remove(case)
                        workers.pop(case).close()
                        continue
                    self.keep(case, number, result)
                    print(
                        f"{where}: {result['seconds']:.1f} s; about {self.left()} left",
                        file=sys.stderr,
                    )
                    if not self.missing(case):
                        workers.pop(case).close()
        finally:
            for worker in workers.values():
                worker.close()

    def keep(self, case: Case, number: int, result: dict[str, Any]) -> None:
        """Write a round."""
        of = f"{case.model}, random weights, {case.tokens} tokens a file"
        title = {"of": of if case.tokens else case.model, "peer": case.name, "round": number}
        row = self.written.add(**title, **self.settings(case), **result)
        self.found[case][number] = row
        self.estimate.learn(case, self.dims[case.model], result["seconds"])


if __name__ == "__main__":
    main()
