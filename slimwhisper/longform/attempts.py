"""The attempts at one window's text: whether one failed, and which one is kept."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slimwhisper.engine.requests import Attempt, Decoded, Window
from slimwhisper.types import Options

COMPRESSION_RATIO = 2.4  # where the options have no threshold
CHECKS = 3  # more attempts at a flagged window, at most
CHECK_TEMPERATURES = (0.2, 0.4, 0.6)


def compression_ratio(text: str) -> float:
    """How much zlib shrinks a text: above 2.4 it repeats itself. 0 for an empty text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt's text."""

    result: Decoded
    ratio: float  # its compression ratio

    def failed(self, options: Options) -> bool:
        """Whether to try another temperature; not for silence."""
        repeats, unsure = options.compression_ratio_threshold, options.logprob_threshold
        improbable = unsure is not None and self.result.avg_logprob < unsure
        silence = options.no_speech_threshold
        if silence is not None and self.result.no_speech_prob > silence and improbable:
            return False
        return improbable or (repeats is not None and self.ratio > repeats)

    def is_silence(self, options: Options) -> bool:
        """Whether there is probably no speech, and the text was not sampled with confidence."""
        silence, sure = options.no_speech_threshold, options.logprob_threshold
        if silence is None or self.result.no_speech_prob <= silence:
            return False
        return sure is None or self.result.avg_logprob <= sure


def likeliest(tried: Sequence[Tried], options: Options) -> Tried:
    """Of attempts that all failed, the likeliest that does not repeat itself; if all do, the one
    that does so least.
    """
    most = options.compression_ratio_threshold or COMPRESSION_RATIO
    varied = [t for t in tried if t.ratio <= most]
    if varied:
        return max(varied, key=lambda t: t.result.avg_logprob)
    return min(tried, key=lambda t: t.ratio)


class Check:
    """A second look at a flagged window, while its audio is in the slot.

    Up to three more attempts, without the text before it, which loops come from: first at
    temperature 0, if that text was there at all, then at 0.2, 0.4 and 0.6. The first text without
    flags is kept. If all have some, a text is replaced only by one with fewer of the same flags,
    the likeliest of those with the fewest. A text that repeats itself replaces none: loops are
    likely, so another loop would win.
    """

    def __init__(
        self,
        tried: Tried,
        flags: frozenset[str],
        window: Window,
        seed: tuple[int, ...],
        greedy: bool,
    ) -> None:
        """tried, flags: what the window has so far. window: the request for its audio in the slot,
        without earlier text. seed: of the first attempt; the last number counts. greedy: whether
        temperature 0 can give another text.
        """
        self.kept = tried
        self._first = self._fewest = flags
        self._window, self._seed = window, seed
        self._temperatures = [*([0.0] if greedy else []), *CHECK_TEMPERATURES][:CHECKS]
        self._next = 0

    def next_request(self) -> Window | None:
        """The next attempt; None at the end."""
        if not self._fewest or self._next == len(self._temperatures):
            return None
        seed = (*self._seed[:-1], self._seed[-1] + self._next)
        attempt = Attempt(self._temperatures[self._next], seed)
        self._next += 1
        return replace(self._window, attempt=attempt)

    def offer(self, tried: Tried, flags: frozenset[str]) -> None:
        """An attempt's text, and its flags."""
        if "repeats" in flags or not flags < self._first:
            return
        likelier = tried.result.avg_logprob > self.kept.result.avg_logprob
        if len(flags) < len(self._fewest) or (len(flags) == len(self._fewest) and likelier):
            self.kept, self._fewest = tried, flags
