"""The channels of a recording, each by the name of its speaker."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import MAX_CHANNELS, Samples, Span, StoredSamples
from slimwhisper.errors import AudioError
from slimwhisper.types import SAMPLE_RATE

BLOCK = 10 * SAMPLE_RATE  # samples per read
STEREO = ("left", "right")  # the names of two channels; of more, "channel 1", "channel 2", ...


class Channel:
    """One channel of stored samples."""

    def __init__(self, stored: StoredSamples, number: int) -> None:
        """number: from 0."""
        self._stored, self._number = stored, number

    def __len__(self) -> int:
        return len(self._stored) // self._stored.channels

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start] float32."""
        count = self._stored.channels
        block = self._stored.read(max(start, 0) * count, max(stop, 0) * count)
        return np.ascontiguousarray(block[self._number :: count])

    @property
    def silences(self) -> Sequence[Span]:
        """Those of all channels."""
        return self._stored.silences

    def close(self) -> None:
        """Close the stored samples, and so all channels."""
        self._stored.close()


class Mix:
    """The mean of channels of equal length."""

    def __init__(self, channels: Sequence[Samples]) -> None:
        self._channels = channels

    def __len__(self) -> int:
        return len(self._channels[0])

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start] float32."""
        parts = [channel.read(start, stop) for channel in self._channels]
        return np.mean(parts, axis=0, dtype=np.float32)

    @property
    def silences(self) -> Sequence[Span]:
        """Those of all channels."""
        return self._channels[0].silences

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def channels_of(stored: StoredSamples) -> list[Channel]:
    """The channels of stored samples."""
    return [Channel(stored, number) for number in range(stored.channels)]


def named_channels(
    channels: Sequence[Samples], names: Sequence[str], label: str
) -> dict[str, Samples]:
    """The channels by their names, see `channel_names`. Raises AudioError as there, and if all
    channels are the same.
    """
    found = channel_names(len(channels), names, label)
    if _are_same(channels):
        raise AudioError(
            f"{label}: its {len(channels)} channels are the same, so each word would be there "
            f"{len(channels)} times; leave them mixed, which is the default"
        )
    return dict(zip(found, channels, strict=True))


def _are_same(channels: Sequence[Samples]) -> bool:
    """Whether channels are equal, and not silent. Reads up to the first difference."""
    silent = True
    for start in range(0, len(channels[0]), BLOCK):
        first, *others = (channel.read(start, start + BLOCK) for channel in channels)
        if not all(np.array_equal(first, other) for other in others):
            return False
        silent = silent and not first.any()
    return not silent


def channel_names(count: int, names: Sequence[str], label: str) -> Sequence[str]:
    """The names of the channels: those given, else "left" and "right" of two, and "channel 1" and
    so on of more. label: the recording, for messages.

    Raises AudioError for one channel, more than `MAX_CHANNELS`, or another number of names.
    """
    if count < 2:
        raise AudioError(
            f"{label}: has one channel, so there are none to split; leave them mixed, which is the "
            "default, or give a recording with a channel for each speaker"
        )
    if count > MAX_CHANNELS:
        raise AudioError(
            f"{label}: has {count} channels; channels splits up to {MAX_CHANNELS}, so give a "
            "recording of some of them"
        )
    if names and len(names) != count:
        raise AudioError(
            f"{label}: has {count} channels, but channel_names has {len(names)}; give one name for "
            "each channel"
        )
    return names or (STEREO if count == 2 else [f"channel {i + 1}" for i in range(count)])
