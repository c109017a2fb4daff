"""Any file -> pieces of int16 [n]: its recordings, one after the other."""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import ReadOptions, plain_pieces
from slimwhisper.audio_formats.headers import plain_samples, recordings
from slimwhisper.errors import AudioError


def pieces_of(name: str, file: BinaryIO, how: ReadOptions) -> Iterator[NDArray[np.int16]]:
    """Pieces of int16 [n] of `file`: at least one sample, or an error. If channels are not mixed,
    those of more than one come as [n, channels].

    16-bit 16 kHz mono WAVs are read without PyAV, which takes longer.
    """
    channels: set[tuple[int, ...]] = set()
    for part in recordings(name, file):
        plain = plain_samples(part)
        if plain is None or how.audio_track not in (None, 1, "1"):
            from slimwhisper.audio_formats.ffmpeg import decode  # PyAV is slow to import

            pieces = decode(name, part, how)
        else:
            pieces = plain_pieces(name, part, *plain)
        for piece in pieces:
            channels.add(piece.shape[1:])
            if len(channels) > 1:
                raise AudioError(f"{name}: recordings with different channels follow each other")
            yield piece
