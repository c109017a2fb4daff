"""Segments: a window is cut at its timestamps, whatever a model writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimwhisper.engine.requests import Decoded
from slimwhisper.longform.passes import WindowSpan
from slimwhisper.longform.session import cut_at_timestamps
from slimwhisper.tokens.vocabulary import get_vocabulary
from tests.support.checkpoints import tiny_dims
from tests.support.fuzz import examples

VOCABULARY = get_vocabulary(tiny_dims())
BEGIN, ONE = VOCABULARY.timestamps.start, VOCABULARY.tokenizer("en").encode(" one")
Cut = list[tuple[float, float, list[int]]]


def cut(span: WindowSpan, tokens: list[int]) -> Cut:
    """The times and the tokens of the segments."""
    parts = (VOCABULARY, VOCABULARY.tokenizer("en"), False)
    found = cut_at_timestamps(span, Decoded(tuple(tokens)), 1.0, *parts).segments
    return [(s.start, s.end, list(s.tokens)) for s in found]


def pairs(*stamps: float) -> list[int]:
    """A word between each two time stamps."""
    tokens = []
    for start, end in zip(stamps[::2], stamps[1::2], strict=True):
        tokens += [BEGIN + round(start / 0.02), *ONE, BEGIN + round(end / 0.02)]
    return tokens


@examples(100)
@given(
    stamps=st.lists(st.integers(0, 1500), max_size=10).map(sorted),
    frames=st.integers(1, 3000),
    after=st.sampled_from([0, 500]),
    ends=st.booleans(),
)
def test_the_window_is_partitioned(stamps: list[int], frames: int, after: int, ends: bool) -> None:
    """Every token in order, up to what has no end stamp; ends in order, none after the end."""
    stamps = stamps[: len(stamps) // 2 * 2]
    tokens = pairs(*(s * 0.02 for s in stamps)) + ([] if ends else [BEGIN + 1500, *ONE])
    span = WindowSpan(3_000, frames, 3_000 + frames + after, 3_000)
    found = cut(span, tokens)
    kept = [token for *_, text in found for token in text]
    assert kept == tokens[: len(kept)]
    assert len(kept) >= len(tokens) - (0 if ends else 1 + len(ONE))
    content = (3_000 + frames + after) / 100
    assert all(start <= end <= content + 1e-9 or after for start, end, _ in found)
    ends_found = [end for _, end, _ in found]
    assert ends_found == sorted(ends_found)


@pytest.mark.parametrize(
    ("stamps", "times"),
    [
        ((0, 5, 5, 12), [(30, 35), (35, 40)]),  # the recording ends at 40 s
        ((0, 12, 12, 14), [(30, 40), (39.98, 40)]),  # the text stays
        ((11, 12, 21, 29), [(39.98, 40), (39.98, 40)]),
        ((0, 9, 9, 9, 12, 12), [(30, 39), (39, 39), (40, 40)]),  # without a length, as in whisper
    ],
)
def test_nothing_ends_after_the_recording(
    stamps: tuple[float, ...], times: list[tuple[float, float]]
) -> None:
    found = cut(WindowSpan(3_000, 1_000, 4_000, 3_000), pairs(*stamps))
    assert [(start, end) for start, end, _ in found] == [pytest.approx(pair) for pair in times]


def test_a_clip_that_ends_earlier_is_as_in_whisper() -> None:
    for span, start, end in (((3_000, 1_000, 6_000), 30, 42), ((3_999, 1, 4_000), 39.99, 40)):
        ((first, last, _),) = cut(WindowSpan(*span, 3_000), pairs(0, 12))
        assert (first, last) == pytest.approx((start, end))
