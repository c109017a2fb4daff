"""Runs the `calibrate` command: writes the smallest cache within a loss to a file for `--cache`."""

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
from slimwhisper.cache.forms import SUFFIX, brief
from slimwhisper.disk import weights_digest
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.files import check_folder
from slimwhisper.research.cache_file import write_file
from slimwhisper.research.comparison import REFERENCE, Comparison
from slimwhisper.research.pairs import SLIM, FormPair, MeasuredCache, ladders, with_slim
from slimwhisper.text import error_line, escape_line, human_size

MIN_WORDS = 1000  # words, for a target of 0 %
Sized = tuple[int, str]  # bytes per window of one part of the cache, and its spec


def percentage(text: str) -> float:
    """ "0.5%" -> 0.5. Raises OptionError."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?) ?%", text.strip(), re.ASCII)
    if match is None or float(match[1]) > 100:
        raise OptionError(f"target_loss: {text!r} is not a percentage; give one such as 0.5%")
    return float(match[1])


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Search, write the file, and print its savings.

    Raises SlimWhisperError, without a file, if no cache smaller than `slim` is within the loss.
    """
    target, output = percentage(arguments.target_loss), Path(arguments.output)
    if output.suffix != SUFFIX or output.is_dir():
        raise OptionError(f"-o {escape_line(output)}: give a file name that ends in {SUFFIX}")
    comparison = Comparison.of(arguments)
    check_folder(output.absolute().parent, "-o")
    with tqdm(unit=" recordings", disable=None) as bar:
        comparison.on_recording = bar.update
        search = CacheSearch(comparison, target, lambda line: bar.write(line, file=sys.stderr))
        best = search.run()
    if best is None:
        limit = f"smaller than slim ({SLIM.title}) is within a loss of {target:g} %"
        raise SlimWhisperError(f"no cache {limit}; use --cache slim, or allow a larger loss")
    measured = asdict(best) | {
        "target_loss_percent": target,
        "loss_percent": round(best.loss, 4),
        "reference": REFERENCE.title,
        "dtype": comparison.exact.compute_type,
        "language": comparison.language,
        "slimwhisper": __version__,
    }
    forms, digest = comparison.forms(best.pair), weights_digest(comparison.checkpoint.state)
    write_file(output, digest, forms, measured)
    print(
        f"{output}: {best.pair.title}\n"
        f"cache per window: {human_size(best.kept)}, {best.times_smaller:.1f} times smaller than "
        f"keys and values, {search.measure(SLIM).kept / best.kept:.1f} times smaller than slim\n"
        f"word errors against exact decoding: {best.word_error:.2f} %, "
        f"{best.word_edits} of {best.words} words"
    )
    if best.reference_words:
        exact = 100 * best.exact_reference_edits / best.reference_words
        print(f"word errors against references: {best.reference_error:.2f} %, exact {exact:.2f} %")
    print(f"on {best.sample}. Other recordings may lose more; try some.")
    return 0


class CacheSearch:
    """Searches the pairs of caches that are within the target, and measures each once."""

    def __init__(
        self, comparison: Comparison, target: float, report: Callable[[str], object]
    ) -> None:
        """target: percentage points of the word error. report: prints a progress line."""
        self.comparison, self.target, self.report = comparison, target, report
        self.measure = cache(self._measure)

    def run(self) -> MeasuredCache | None:
        """The smallest pair within the target; None: no such pair is smaller than slim."""
        slim = self.measure(SLIM)
        needed = round(100 / self.target) if self.target else MIN_WORDS
        if slim.words < needed:
            one = f"only {slim.words} words, so one is {100 / slim.words:.1f} %"
            remedy = f"for {self.target:g} %, give at least {needed} words"
            self.report(f"warning: the recordings have {one}; {remedy}")
        cross = self.candidates("cross", (slim.kept_cross, slim.cross))
        self_specs = self.candidates("self", (slim.kept_self, slim.self_))
        by_size = sorted(product(cross, self_specs), key=lambda p: (p[0][0] + p[1][0], p))
        for first, second in by_size:
            measured = self.measure(FormPair(first[1], second[1]))
            if measured.loss <= self.target:
                return measured if measured.kept < slim.kept else None
        return None

    def candidates(self, part: str, exact: Sized) -> list[Sized]:
        """The candidates for one part of a pair: the exact form, all passing rungs of the ladder
        that ends smallest, and the last passing rung of each other ladder.
        """
        every = ladders(part, self.comparison.checkpoint.dims)
        passing = [found for rungs in every if (found := self.passing(part, exact[0], rungs))]
        best, *others = sorted(passing, key=lambda rungs: rungs[-1]) or [[]]
        return [exact, *best, *(rungs[-1] for rungs in others)]

    def passing(self, part: str, exact: int, specs: Sequence[str]) -> list[Sized]:
        """The rungs of a ladder that take less than `exact` bytes, up to the last one within the
        target, measured with slim's other part. By bisection, which assumes that a smaller rung
        loses more.
        """
        rungs: list[Sized] = []
        for spec in specs:
            pair = with_slim(part, spec)
            try:
                size = self.comparison.sizes(pair)[part == "self"]
            except ValueError as error:  # settings that this model cannot have
                self.report(f"{part} {brief(spec)}: {error_line(error)}")
                continue
            if size < exact:
                rungs.append((size, spec))

        def fails(rung: Sized) -> bool:
            return self.measure(with_slim(part, rung[1])).loss > self.target

        return rungs[: bisect(rungs, False, key=fails)]

    def _measure(self, pair: FormPair) -> MeasuredCache:
        measured = self.comparison.measure(pair)
        self.report(f"  {pair.title}: {measured.line}")
        return measured
