"""The attempts to decode one window: whether one failed, and which one to keep."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from slimwhisper.engine.requests import Attempt, Decoded
from slimwhisper.errors import SlimWhisperError
from slimwhisper.longform.options import DecodingOptions

COMPRESSION_RATIO = 2.4  # if the options have no threshold


def compression_ratio(text: str) -> float:
    """The length of a text over its length by zlib: above 2.4 it repeats itself. 0 if empty."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, slots=True)
class Candidate:
    """The result of one attempt."""

    result: Decoded
    ratio: float  # compression ratio of its text

    @staticmethod
    def of(result: Decoded, text: str) -> "Candidate":
        """Raises SlimWhisperError if the model's output was not finite."""
        if result.avg_logprob != result.avg_logprob:
            raise SlimWhisperError("the model returned NaN; use another dtype, such as float32")
        return Candidate(result, compression_ratio(text.strip()))

    def failed(self, options: DecodingOptions) -> bool:
        """Whether to try another temperature; not for silence."""
        max_ratio, min_logprob = options.compression_ratio_threshold, options.logprob_threshold
        improbable = min_logprob is not None and self.result.avg_logprob < min_logprob
        silence = options.no_speech_threshold
        if silence is not None and self.result.no_speech_prob > silence and improbable:
            return False
        return improbable or (max_ratio is not None and self.ratio > max_ratio)

    def is_silence(self, options: DecodingOptions) -> bool:
        """Whether there is probably no speech, and the text is not probable."""
        silence, min_logprob = options.no_speech_threshold, options.logprob_threshold
        if silence is None or self.result.no_speech_prob <= silence:
            return False
        return min_logprob is None or self.result.avg_logprob <= min_logprob


def attempts_of(options: DecodingOptions, seed: tuple[int, ...]) -> list[Attempt]:
    """The attempts at one window, in order, each at the next temperature until one does not fail.
    seed: of the window; each attempt has its own.
    """
    temperatures = enumerate(options.temperatures)
    return [Attempt(temperature, (*seed, number)) for number, temperature in temperatures]


def choose(failed: Sequence[Candidate], options: DecodingOptions) -> Candidate:
    """Which of the failed attempts to keep: the last one or, with `on_failure="best"`, the most
    probable one that does not repeat itself; if all do, the one with the lowest compression ratio.
    """
    if options.on_failure != "best":
        return failed[-1]
    max_ratio = options.compression_ratio_threshold or COMPRESSION_RATIO
    varied = [c for c in failed if c.ratio <= max_ratio]
    if varied:
        return max(varied, key=lambda c: c.result.avg_logprob)
    return min(failed, key=lambda c: c.ratio)
