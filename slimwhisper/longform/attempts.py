"""The attempts at one window's text: whether one failed, and which one is kept."""

import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from slimwhisper.engine.requests import Attempt, Decoded
from slimwhisper.errors import SlimWhisperError
from slimwhisper.types import Options

COMPRESSION_RATIO = 2.4  # where the options have no threshold


def compression_ratio(text: str) -> float:
    """How much zlib shrinks a text: above 2.4 it repeats itself. 0 for an empty text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt's text."""

    result: Decoded
    ratio: float  # its compression ratio

    @staticmethod
    def of(result: Decoded, text: str) -> "Tried":
        """Raises SlimWhisperError if the model's output was not finite."""
        if result.avg_logprob != result.avg_logprob:
            raise SlimWhisperError("the model gave NaN; use another dtype, such as float32")
        return Tried(result, compression_ratio(text.strip()))

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


Ladder = Generator[Attempt, Tried, Tried]


def ladder(options: Options, seed: tuple[int, ...]) -> Ladder:
    """The attempts at one window's text: yields each, at the next temperature, is sent what came of
    it, and returns the one to keep. seed: of the window; each attempt has its own.
    """
    tried: list[Tried] = []
    for number, temperature in enumerate(options.temperatures):
        tried.append((yield Attempt(temperature, (*seed, number))))
        if not tried[-1].failed(options):
            return tried[-1]
    return likeliest(tried, options) if options.on_failure == "best" else tried[-1]


def climb(attempts: Ladder, tried: Tried) -> Attempt | Tried:
    """The next attempt, or the text to keep."""
    try:
        return attempts.send(tried)
    except StopIteration as stop:
        kept: Tried = stop.value
        return kept


def likeliest(tried: Sequence[Tried], options: Options) -> Tried:
    """Of attempts that all failed, the likeliest that does not repeat itself; if all do, the one
    that does so least.
    """
    most = options.compression_ratio_threshold or COMPRESSION_RATIO
    varied = [t for t in tried if t.ratio <= most]
    if varied:
        return max(varied, key=lambda t: t.result.avg_logprob)
    return min(tried, key=lambda t: t.ratio)
