"""Where words begin and end: the likeliest path through pauses and words, by attention and sound.

Words take turns with pauses, which may be empty. A position belongs to the word that attends to it
most, and to a pause where the spectrogram is hardly above the floor of its bands, or faint.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.requests import Alignment
from slimwhisper.forced_alignment.script import word_key
from slimwhisper.tokens.vocabulary import Tokenizer
from slimwhisper.types import MEL_FRAMES_PER_POSITION, POSITIONS_PER_SECOND

POSITION = 1 / POSITIONS_PER_SECOND  # seconds
DECIBELS = 40.0  # of a unit of the spectrogram: 4 powers of ten
QUIET = 10  # percent of the positions, in which a band is at its floor
SPEECH = 3.0  # dB above the floor, in the mean over bands, from which on there is a word
FAINT = 37.0  # dB below the loudest twentieth of what is near, from which on there is none
FAINTER = 5.0  # dB of faintness that weigh as much as one above the floor
NEAR = 150  # positions: another speaker may be much louder
LEAST_ATTENTION = 3e-3  # of a word to a position: a few positions of none do not decide
SILENT = 1e-9  # weight of a token that is not spoken: it counts in a word of nothing else
KERNEL = np.exp(-0.5 * np.arange(-4, 5) ** 2) / np.sqrt(2 * np.pi)  # smooths over about 50 ms


def word_attention(
    alignment: Alignment, counts: Sequence[int], tokenizer: Tokenizer, frames: int
) -> NDArray[np.float64]:
    """[N, p] of N words: the mean attention of each one's tokens to the positions with audio, but
    for punctuation, which often attends to what is said after a pause.

    counts: each word's tokens, all of the alignment's text in order. frames: mel frames of audio.
    """
    scores = alignment.scores[:, :, : max(frames // MEL_FRAMES_PER_POSITION, 1)]
    weights = scores.float().softmax(dim=-1).mean(dim=0).cpu().numpy().astype(np.float64)
    # each token is predicted, and its audio attended to, by the token before it
    rows = weights[alignment.before - 1 : alignment.before - 1 + sum(counts)]
    pieces = zip(*tokenizer.split_to_word_tokens(alignment.text), strict=True)
    spoken = [bool(word_key(text)) for text, tokens in pieces for _ in tokens]
    parts = np.where(spoken, 1.0, SILENT)[:, None]
    return word_means(rows * parts, counts) / word_means(parts, counts)


def word_means(values: NDArray[np.float64], counts: Sequence[int]) -> NDArray[np.float64]:
    """[N, ...]: the mean of each word's tokens. values [tokens, ...]; counts: of its tokens."""
    ends = np.cumsum(counts)
    return np.stack([v.mean(axis=0) for v in np.split(values, ends[:-1])])


def speech_odds(mel: Tensor, positions: int) -> NDArray[np.float64]:
    """[p] log odds of a word against a pause, by the sound alone. mel [n_mels, 2 p or more].

    In a pause the spectrogram is hardly above the floor of its bands or, as a part of the recording
    without any noise may have lowered the floor, much fainter than the speech around it.
    """
    frames = DECIBELS * mel[:, : positions * MEL_FRAMES_PER_POSITION].double().numpy()
    bands = frames.reshape(len(frames), positions, MEL_FRAMES_PER_POSITION).mean(axis=2)
    floor = np.percentile(bands, QUIET, axis=1, keepdims=True)
    above = np.maximum(bands - floor, 0).mean(axis=0)
    power = 10 * np.log10((10 ** (bands / 10)).sum(axis=0))
    near = np.lib.stride_tricks.sliding_window_view(np.pad(power, NEAR, "edge"), 2 * NEAR + 1)
    fainter = np.percentile(near, 95, axis=1) - power
    return np.asarray(np.minimum(above - SPEECH, (FAINT - fainter) / FAINTER), np.float64)


def word_borders(
    attention: NDArray[np.float64], mel: Tensor, first: int = 0, stop: int | None = None
) -> NDArray[np.float64]:
    """[N, 2] seconds: where each word begins and ends, in order and without overlaps.

    attention [N, p], from `word_attention`; mel [n_mels, 2 p or more] of the same audio. first,
    stop: the positions that the words may have; `None`: to the end. More words than positions share
    the audio evenly.
    """
    count, positions = attention.shape
    stop = positions if stop is None else min(max(stop, 1), positions)
    first = min(first, stop - 1)
    if count > stop - first:
        edges = np.linspace(first * POSITION, stop * POSITION, count + 1)
        return np.stack([edges[:-1], edges[1:]], axis=1)
    half = len(KERNEL) // 2
    smooth = LEAST_ATTENTION + np.stack([np.convolve(r, KERNEL)[half:-half] for r in attention])
    share = smooth / smooth.sum(axis=0)
    odds = speech_odds(mel, positions)
    # a pause takes no position of other words than its two: before the first word, and after the
    # last, that word's and the next one's, or another pause would be likelier in the same silence
    near = np.pad(share, ((1, 1), (0, 0)), "reflect")
    scores = np.empty((2 * count + 1, positions))
    scores[0::2] = np.log(near[:-1] + near[1:]) - np.logaddexp(0, odds)
    scores[1::2] = np.log(share) - np.logaddexp(0, -odds)
    scores[1::2, :first] = scores[1::2, stop:] = -np.inf
    path = _likeliest(scores)
    firsts = np.searchsorted(path, np.arange(1, 2 * count, 2))
    lasts = np.searchsorted(path, np.arange(1, 2 * count, 2), side="right")
    return np.asarray(np.stack([firsts, lasts], axis=1) * POSITION, np.float64)


def _likeliest(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """[p] the states of the best path (Viterbi): from 0 or 1 to one of the last two, never down,
    and past no word. scores [2 N + 1, p]: of pauses, at even indices, and words.
    """
    states, positions = scores.shape
    best = np.full(states, -np.inf)
    best[:2] = scores[:2, 0]
    came = np.zeros((positions, states), np.int8)  # from how many states below
    options, each = np.full((3, states), -np.inf), np.arange(states)
    for position in range(1, positions):
        options[0], options[1, 1:], options[2, 3::2] = best, best[:-1], best[1:-2:2]
        came[position] = options.argmax(axis=0)
        best = options[came[position], each] + scores[:, position]
    path = np.empty(positions, np.int64)
    state = states - 1 if best[-1] >= best[-2] else states - 2
    for position in range(positions - 1, -1, -1):
        path[position] = state
        state -= int(came[position, state])  # a state is larger than int8 holds
    return path
