"""Units: a word or a few, without a pause inside. A turn has one at least.

Voice activity finds speech to about 0.1 s, and leaves short pauses in it. Within its stretches, a
unit is what stands out of the noise around it.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slimwhisper.audio.samples import Samples

Region = tuple[int, int]  # samples [start, stop)

FRAME = 160  # samples: 10 ms
# all in frames
REACH = 20  # before and after a stretch: soft sounds that belong to it
AROUND = 1000  # before and after a stretch, for its noise
MIN_PAUSE = 6  # a shorter one does not end a unit
MIN_UNIT = 25  # a shorter one is joined with the nearest, if that is near
NEAR = 15
MAX_UNIT = 160  # a longer one is cut where it is quiet
SEARCH = 25  # around where it would be cut evenly
# in dB
ABOVE_NOISE = 6.0  # what stands out
RANGE = 45.0  # below the loudest: what is softer is no speech, however quiet the noise
DROP = 15.0  # below the loudest: a pause, however loud the noise
BLOCK = 30_000 * FRAME  # samples to read at a time


def find_units(samples: Samples, stretches: Sequence[Region]) -> list[Region]:
    """The units in stretches of speech, in order."""
    level = _level(samples)
    found: list[Region] = []
    for start, stop in stretches:
        inside = (start // FRAME, max(min(-(-stop // FRAME), len(level)), start // FRAME + 1))
        units = _units(level, inside)
        found += [(a * FRAME, b * FRAME) for a, b in units] or [(start, stop)]
    # the soft sounds between two stretches are in both
    return [(a, min(b, after[0])) for (a, b), after in pairwise([*found, (len(samples), 0)])]


def _level(samples: Samples) -> NDArray[np.float64]:
    """dB of each frame [frames], a little smoothed."""
    powers = [np.zeros(0)]
    for start in range(0, len(samples) // FRAME * FRAME, BLOCK):
        block = samples.read(start, min(start + BLOCK, len(samples) // FRAME * FRAME))
        powers.append(np.square(block, dtype=np.float64).reshape(-1, FRAME).mean(axis=1))
    power = np.concatenate(powers)
    if not len(power):
        return power
    smooth = np.convolve(np.pad(power, 1, mode="edge"), np.ones(3) / 3, "valid")
    decibels: NDArray[np.float64] = 10 * np.log10(smooth + 1e-12)
    return decibels


def _units(level: NDArray[np.float64], inside: Region) -> list[Region]:
    """The units of a stretch, in frames. level: dB [frames] of the recording."""
    first, last = max(inside[0] - REACH, 0), min(inside[1] + REACH, len(level))
    top = np.percentile(level[slice(*inside)], 90)
    noise = np.percentile(level[max(first - AROUND, 0) : last + AROUND], 5)
    least = min(max(noise + ABOVE_NOISE, top - RANGE), top - DROP)
    loud = np.concatenate([[False], level[first:last] > least, [False]])
    edges = first + np.flatnonzero(np.diff(loud.astype(np.int8))).reshape(-1, 2)
    units: list[Region] = []
    for start, stop in edges.tolist():
        if start >= inside[1] or stop <= inside[0]:
            continue
        goes_on = units and start - units[-1][1] < MIN_PAUSE
        units.append((units.pop()[0] if goes_on else start, stop))
    return [part for unit in _without_short(units) for part in _cut(level, unit)]


def _without_short(units: list[Region]) -> list[Region]:
    """Short units joined with the nearest, the shortest first, as far as they are near."""
    while True:
        short = [i for i, (a, b) in enumerate(units) if b - a < MIN_UNIT and len(units) > 1]
        pauses = [b[0] - a[1] for a, b in pairwise(units)]
        for i in sorted(short, key=lambda i: units[i][1] - units[i][0]):
            # pause j is between the units j and j + 1
            pause = min((j for j in (i - 1, i) if 0 <= j < len(pauses)), key=pauses.__getitem__)
            if pauses[pause] <= NEAR:
                units = [
                    *units[:pause],
                    (units[pause][0], units[pause + 1][1]),
                    *units[pause + 2 :],
                ]
                break
        else:
            return units


def _cut(level: NDArray[np.float64], unit: Region) -> list[Region]:
    """A unit in parts of up to about MAX_UNIT frames."""
    start, stop = unit
    count = max(1, round((stop - start) / MAX_UNIT + 0.2)) if stop - start > MAX_UNIT else 1
    points = [start]
    for i in range(1, count):
        middle = start + (stop - start) * i // count
        first = max(middle - SEARCH, points[-1] + 1)
        points.append(first + int(level[first : min(middle + SEARCH, stop)].argmin()))
    return list(pairwise([*points, stop]))
