"""Segments end with the recording at the latest, whatever timestamps the model writes."""

import pytest

from slimwhisper.engine.requests import Decoded
from slimwhisper.longform.segments import WindowSpan, cut_at_timestamps
from slimwhisper.tokens.vocabulary import get_vocabulary
from tests.support.checkpoints import tiny_dims

VOCABULARY = get_vocabulary(tiny_dims())


def cut(span: WindowSpan, *stamps: float) -> list[tuple[float, float]]:
    """The times of the segments of a window with a word between each two time stamps."""
    tokenizer, tokens = VOCABULARY.tokenizer("en"), []
    for start, end in zip(stamps[::2], stamps[1::2], strict=True):
        begin = VOCABULARY.timestamps.start
        tokens += [
            begin + round(start / 0.02),
            *tokenizer.encode(" one"),
            begin + round(end / 0.02),
        ]
    result = Decoded(tuple(tokens))
    parts = (VOCABULARY, tokenizer, False)
    return [(s.start, s.end) for s in cut_at_timestamps(span, result, 1.0, *parts).segments]


@pytest.mark.parametrize(
    ("stamps", "times"),
    [
        ((0, 5, 5, 9.5), [(30, 35), (35, 39.5)]),
        ((0, 5, 5, 12), [(30, 35), (35, 40)]),  # the recording ends at 40 s
        ((0, 12), [(30, 40)]),
        ((0, 12, 12, 14), [(30, 40), (39.98, 40)]),  # the text stays
        ((11, 12, 21, 29), [(39.98, 40), (39.98, 40)]),
        ((0, 9, 9, 9, 12, 12), [(30, 39), (39, 39), (40, 40)]),  # without a length, as in whisper
    ],
)
def test_nothing_ends_after_the_recording(
    stamps: tuple[float, ...], times: list[tuple[float, float]]
) -> None:
    found = cut(WindowSpan(3_000, 1_000, 4_000), *stamps)
    assert found == [pytest.approx(pair) for pair in times]


def test_a_clip_that_ends_earlier_is_as_in_whisper() -> None:
    assert cut(WindowSpan(3_000, 1_000, 6_000), 0, 12) == [(30, 42)]
    assert cut(WindowSpan(3_999, 1, 4_000), 0, 12) == [pytest.approx((39.99, 40))]
