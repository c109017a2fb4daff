"""The `calibrate` command: the smallest cache within a loss, as a file for `--cache`."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from slimwhisper import __version__
from slimwhisper.cache.file import SUFFIX, write_file
from slimwhisper.cache.forms import PRESETS, brief
from slimwhisper.commands.approximate.comparison import REFERENCE, Comparison, Setup
from slimwhisper.commands.approximate.ladders import PARTNERS, Attention, Ladder, ladders
from slimwhisper.commands.approximate.measured import Measured
from slimwhisper.commands.approximate.recordings import find_recordings, recordings_digest
from slimwhisper.commands.approximate.search import Candidate, last_passing, smallest_pair
from slimwhisper.digests import weights_digest
from slimwhisper.errors import OptionError, OutputError, SlimWhisperError
from slimwhisper.flags import load_weights
from slimwhisper.text import human_size, one_line, shown

ENOUGH = 1000  # words, for a target of 0 %
Say = Callable[[str], None]


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
    recordings = find_recordings(arguments.audio)
    setup = Setup.of(arguments)
    _check_folder(output.absolute().parent)
    checkpoint = load_weights(arguments)
    digest = weights_digest(checkpoint.state)
    with tqdm(unit=" recordings", disable=None) as bar:

        def say(line: str) -> None:
            bar.write(line, file=sys.stderr)

        bar.set_description("exact")
        comparison = Comparison(checkpoint, setup, recordings, bar.update)
        search = Search(comparison, target, say, bar.set_description)
        found = search.run()
    if found is None:
        slim = "+".join(PRESETS["slim"])
        raise SlimWhisperError(
            f"nothing smaller than slim ({slim}), which is exact, is within a loss of {target:g} %;"
            f" no file is written: use --cache slim, or allow more than {target:g}%"
        )
    learned = comparison.learn(found.cross, found.self_) or {}
    measured: dict[str, Any] = {
        "target_loss_percent": target,
        "loss_percent": round(found.loss, 4),
        "reference": "+".join(REFERENCE),
        "dtype": setup.compute_type,
        "language": setup.language,
        "recordings": recordings_digest(recordings),
        "slimwhisper": __version__,
        **found.as_dict(),
    }
    layers = checkpoint.dims.n_text_layer
    write_file(output, digest, (found.cross, found.self_), learned, layers, measured)
    for line in summary_lines(found, search.exact, output):
        print(line)
    return 0


def summary_lines(found: Measured, slim: Measured, output: Path) -> list[str]:
    """What the chosen pair saves."""
    lines = [
        f"{output}: {found.title}",
        f"kept of a window: {human_size(found.kept)}, {found.times_smaller:.1f} times smaller than "
        f"keys and values, {slim.kept / found.kept:.1f} times smaller than slim",
        f"read by a step: {human_size(found.read)}, slim {human_size(slim.read)}",
        f"word errors against exact decoding: {found.word_error:.2f} %, "
        f"{found.word_edits} of {found.words} words",
    ]
    if found.said_error is not None and found.said and found.exact_said_edits is not None:
        exact = 100 * found.exact_said_edits / found.said
        lines.append(
            f"word errors against references: {found.said_error:.2f} %, exact {exact:.2f} %"
        )
    lines.append(f"on {found.sample}. Other recordings may lose more: try it on some.")
    return lines


@dataclass(slots=True)
class Search:
    """Which pairs are within the target, each measured once."""

    comparison: Comparison
    target: float  # percentage points of the word error
    say: Say  # a line of progress
    describe: Say  # what is being measured
    _measured: dict[tuple[str, str], Measured] = field(default_factory=dict)

    @property
    def exact(self) -> Measured:
        """Slim's, which every method is compared with."""
        return self.measure(PARTNERS["self"], PARTNERS["cross"])

    def run(self) -> Measured | None:
        """The smallest pair within the target; None: none that is smaller than slim."""
        self.comparison.reference  # noqa: B018  (decoded here, so that it comes first)
        slim = self.exact
        needed = round(100 / self.target) if self.target else ENOUGH
        if slim.words < needed:
            self.say(
                f"warning: {slim.words} words are few: one is {100 / slim.words:.1f} % of them; "
                f"for {self.target:g} % give at least {needed} words, better many more"
            )
        exact = {
            "cross": Candidate(slim.cross, slim.kept_cross),
            "self": Candidate(slim.self_, slim.kept_self),
        }
        passing: dict[Attention, list[list[Candidate]]] = {"cross": [], "self": []}
        for ladder in ladders():
            rungs = self.rungs(ladder, exact[ladder.attention].nbytes)
            passing[ladder.attention].append(self.passing(ladder, rungs))
        parts = {part: [exact[part], *candidates(found)] for part, found in passing.items()}
        pair = smallest_pair(
            parts["cross"], parts["self"], lambda one, other: self.passes(one.spec, other.spec)
        )
        if pair is None:
            return None
        found = self.measure(pair[0].spec, pair[1].spec)
        return found if found.kept < slim.kept else None

    def rungs(self, ladder: Ladder, exact: int) -> list[Candidate]:
        """Those that keep less than `exact` bytes, the largest first."""
        found = []
        for spec in ladder.specs(self.comparison.checkpoint.dims):
            try:
                sizes = self.comparison.sizes(*ladder.pair(spec))
            except ValueError as error:  # settings that this model cannot have
                self.say(f"{ladder.title}: {brief(spec)}: {one_line(error)}")
                continue
            size = sizes[0 if ladder.attention == "cross" else 1]
            if size < exact:
                found.append(Candidate(spec, size))
        return found

    def passing(self, ladder: Ladder, rungs: list[Candidate]) -> list[Candidate]:
        """Those within the target beside slim's other part, by bisection."""
        if not rungs:
            self.say(f"{ladder.title}: keeps no less than slim, left out")
            return []
        last = last_passing(len(rungs), lambda i: self.passes(*ladder.pair(rungs[i].spec)))
        best = "none within the target" if last < 0 else brief(rungs[last].spec)
        self.say(f"{ladder.title}: {best}")
        return rungs[: last + 1]

    def passes(self, cross: str, self_: str) -> bool:
        """Whether a pair is within the target."""
        return self.measure(cross, self_).loss <= self.target

    def measure(self, cross: str, self_: str) -> Measured:
        """A pair; from memory if it was measured before."""
        pair = (cross, self_)
        if pair not in self._measured:
            self.describe(f"{brief(cross)}+{brief(self_)}")
            measured = self._measured[pair] = self.comparison.measure(cross, self_)
            self.say(
                f"  {measured.title}: {human_size(measured.kept)}, loss {measured.loss:.2f} %, "
                f"{measured.seconds:.1f} s"
            )
        return self._measured[pair]


def candidates(passing: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    """What pairs are made of, from the rungs of each ladder that pass, the largest first: all of
    the ladder that ends smallest, for the steps back, and the last of each other one.
    """
    found = sorted((rungs for rungs in passing if rungs), key=lambda rungs: rungs[-1].nbytes)
    return [*(found[0] if found else ()), *(rungs[-1] for rungs in found[1:])]


def _check_folder(folder: Path) -> None:
    """Before anything is measured: that the file can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{Path(__file__).stem}.part"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(
            f"{shown(folder)}: cannot be written ({one_line(error)}); choose another -o"
        ) from error
