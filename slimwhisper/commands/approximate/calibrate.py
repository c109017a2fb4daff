"""The `calibrate` command: the smallest cache within a loss, as a file for `--cache`."""

import argparse
import re
import sys
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path

from tqdm import tqdm

from slimwhisper import __version__
from slimwhisper.cache.file import SUFFIX, write_file
from slimwhisper.cache.forms import brief
from slimwhisper.commands.approximate.comparison import REFERENCE, Comparison
from slimwhisper.commands.approximate.measured import Measured
from slimwhisper.commands.approximate.pairs import SLIM, Pair, beside_slim, ladders
from slimwhisper.digests import weights_digest
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.storage.outputs import check_folder
from slimwhisper.text import human_size, one_line, shown

ENOUGH = 1000  # words, for a target of 0 %
Sized = tuple[int, str]  # bytes kept of a window by one part of the cache, and its spec


def percentage(text: str) -> float:
    """ "0.5%" -> 0.5. Raises OptionError."""
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?) ?%", text.strip(), re.ASCII)
    if found is None or float(found[1]) > 100:
        raise OptionError(f"target_loss: {text!r} is not a percentage; give one such as 0.5%")
    return float(found[1])


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Search, write the file, and print what it saves.

    Raises SlimWhisperError, without a file, where nothing smaller than `slim` is within the loss.
    """
    target, output = percentage(arguments.target_loss), Path(arguments.output)
    if output.suffix != SUFFIX:
        raise OptionError(f"-o: {shown(output)} does not end in {SUFFIX}; give such a name")
    comparison = Comparison.of(arguments)
    check_folder(output.absolute().parent, "-o")
    with tqdm(unit=" recordings", disable=None) as bar:
        comparison.heard = bar.update
        search = Search(comparison, target, lambda line: bar.write(line, file=sys.stderr))
        found = search.run()
    if found is None:
        raise SlimWhisperError(
            f"nothing smaller than slim ({SLIM.title}), which is exact, is within a loss of "
            f"{target:g} %; no file is written: use --cache slim, or allow more than {target:g}%"
        )
    measured = asdict(found) | {
        "target_loss_percent": target,
        "loss_percent": round(found.loss, 4),
        "reference": "+".join(REFERENCE),
        "dtype": comparison.exact.compute_type,
        "language": comparison.language,
        "slimwhisper": __version__,
    }
    forms, digest = (found.cross, found.self_), weights_digest(comparison.checkpoint.state)
    write_file(output, digest, forms, comparison.learn(*forms) or {}, measured)
    print(
        f"{output}: {found.title}\n"
        f"kept of a window: {human_size(found.kept)}, {found.times_smaller:.1f} times smaller than "
        f"keys and values, {search.measure(SLIM).kept / found.kept:.1f} times smaller than slim\n"
        f"word errors against exact decoding: {found.word_error:.2f} %, "
        f"{found.word_edits} of {found.words} words"
    )
    if found.said:
        exact = 100 * found.exact_said_edits / found.said
        print(f"word errors against references: {found.said_error:.2f} %, exact {exact:.2f} %")
    print(f"on {found.sample}. Other recordings may lose more: try it on some.")
    return 0


class Search:
    """Which pairs are within the target, each measured once."""

    def __init__(self, comparison: Comparison, target: float, say: Callable[[str], object]) -> None:
        """target: percentage points of the word error. say: prints a line of progress."""
        self.comparison, self.target, self.say = comparison, target, say
        self.measure = cache(self._measure)

    def run(self) -> Measured | None:
        """The smallest pair within the target; None: none that is smaller than slim."""
        slim = self.measure(SLIM)
        needed = round(100 / self.target) if self.target else ENOUGH
        if slim.words < needed:
            self.say(
                f"warning: {slim.words} words are few: one is {100 / slim.words:.1f} % of them; "
                f"for {self.target:g} % give at least {needed} words, better many more"
            )
        cross = self.candidates("cross", (slim.kept_cross, slim.cross))
        own = self.candidates("self", (slim.kept_self, slim.self_))
        for one, other in sorted(product(cross, own), key=lambda p: (p[0][0] + p[1][0], p)):
            found = self.measure(Pair(one[1], other[1]))
            if found.loss <= self.target:
                return found if found.kept < slim.kept else None
        return None

    def candidates(self, part: str, exact: Sized) -> list[Sized]:
        """What pairs are made of: the exact one, all passing rungs of the ladder that ends
        smallest, for the steps back, and the last passing one of each other ladder.
        """
        every = ladders(part, self.comparison.checkpoint.dims)
        passing = [self.passing(part, exact[0], rungs) for rungs in every]
        found = sorted((rungs for rungs in passing if rungs), key=lambda rungs: rungs[-1])
        return [exact, *(found[0] if found else ()), *(rungs[-1] for rungs in found[1:])]

    def passing(self, part: str, exact: int, specs: Sequence[str]) -> list[Sized]:
        """The rungs of a ladder that keep less than `exact` bytes, up to the last within the target
        beside slim's other part, by bisection, as if a smaller one could only lose more.
        """
        rungs: list[Sized] = []
        for spec in specs:
            pair = beside_slim(part, spec)
            try:
                size = self.comparison.sizes(pair.cross, pair.self_)[part == "self"]
            except ValueError as error:  # settings that this model cannot have
                self.say(f"{part} {brief(spec)}: {one_line(error)}")
                continue
            if size < exact:
                rungs.append((size, spec))

        def fails(rung: Sized) -> bool:
            return self.measure(beside_slim(part, rung[1])).loss > self.target

        return rungs[: bisect(rungs, False, key=fails)]

    def _measure(self, pair: Pair) -> Measured:
        found = self.comparison.measure(pair.cross, pair.self_)
        self.say(f"  {found.title}: {found.line}")
        return found
