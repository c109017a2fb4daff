"""What a draft saves on a GPU, computed: its steps, and steps that check several tokens.

A check reads the weights and each window's caches once for all its tokens. Like beams, they are
more queries of one width, and beyond a block of them instructions are the limit (`costs`).
"""

from dataclasses import dataclass, replace

import numpy as np

from slimwhisper.commands.costs import Report
from slimwhisper.commands.gpu.costs import Decoding
from slimwhisper.commands.gpu.devices import DEVICES
from slimwhisper.commands.gpu.scenarios import SCENARIOS
from slimwhisper.engine.pace import LENGTHS, gain
from slimwhisper.types import Dims

RATES = (0.6, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Drafted:
    """Steps with a draft, for guesses that are right so often; of as many guesses as is fastest."""

    scenario: str  # a name of `SCENARIOS`
    rate: float  # how often a guess is right
    guesses: int  # a step
    tokens: float  # that a text gains by a step, on average
    seconds: float  # of a step: the guesses, and their check
    speedup: float  # against steps without a draft

    def line(self, batch: int, gpu: str) -> str:
        """For a person."""
        return (
            f"computed for {gpu}, {batch} windows, {self.rate:.0%} of the guesses right "
            f"({self.scenario}): {self.guesses} guesses a step, {self.tokens:.2f} tokens in "
            f"{self.seconds * 1e3:.2f} ms, {self.speedup:.2f} times as fast"
        )


def compute_drafted(report: Report, draft: Dims, device: str) -> list[Drafted]:
    """For a draft of these dimensions, in half precision on a GPU of `DEVICES`, with cache slim:
    what the device allows, then what the present kernels do; by rate.
    """
    return [
        drafted(report.dims, draft, report.batch, device, scenario, rate)
        for scenario in ("limit", "present")
        for rate in RATES
    ]


def drafted(
    target: Dims, draft: Dims, batch: int, device: str, scenario: str, rate: float
) -> Drafted:
    """Every text of a batch has half of its context, and guesses that are right at this rate."""
    checking = Decoding(target, "slim", batch, DEVICES[device], SCENARIOS[scenario])
    guessing, half = replace(checking, dims=draft), target.n_text_ctx // 2
    plain, one = (decoding.step(half).seconds for decoding in (checking, guessing))
    # after right guesses a draft reads two tokens: the last one that it guessed, and the next one
    two = replace(guessing, tokens=2).step(half).seconds

    def taken(guesses: int) -> Drafted:
        check = replace(checking, tokens=guesses + 1).step(half + guesses).seconds
        seconds = two + (guesses - 1) * one + check
        tokens = gain(np.array([rate]), guesses)
        return Drafted(scenario, rate, guesses, tokens, seconds, tokens * plain / seconds)

    return max((taken(guesses) for guesses in LENGTHS if guesses), key=lambda d: d.speedup)
