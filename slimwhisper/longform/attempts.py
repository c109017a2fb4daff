"""The attempts at one window's text: whether one failed, and which one is kept."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from slimwhisper.engine.requests import Decoded
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
