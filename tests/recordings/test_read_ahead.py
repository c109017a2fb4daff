"""Recordings taken ahead: in order, no further than asked, and nothing left behind."""

import threading
import time
from collections.abc import Iterator

import pytest

from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.recordings.transcribe import Loader
from tests.support.waiting import PATIENCE, eventually, forked

WORKERS = 2


def drained(loading: Loader[int, int]) -> list[tuple[int, int | SlimWhisperError]]:
    """All that is left, then a second look at the end."""
    results = list(iter(lambda: loading.next(block=True), None))
    assert loading.exhausted
    assert loading.next(block=True) is None
    return results


def test_results_come_in_the_order_of_the_sources() -> None:
    first = threading.Event()

    def load(number: int) -> int:
        if number == 0:
            assert first.wait(PATIENCE)
        else:
            first.set()  # the second one is ready before the first
        return number * 10

    assert drained(Loader(range(20), load, 3, WORKERS)) == [(i, i * 10) for i in range(20)]
    assert drained(Loader([], load, 3, WORKERS)) == []


@pytest.mark.parametrize("ahead", [1, 5])
def test_no_more_than_so_many_are_taken_ahead(ahead: int) -> None:
    taken: list[int] = []
    sources = (taken.append(i) or i for i in range(40))  # type: ignore[func-returns-value]
    loading: Loader[int, int] = Loader(sources, int, ahead, WORKERS)
    for handed_out in range(5):
        assert eventually(lambda: len(taken) == handed_out + ahead)  # noqa: B023
        time.sleep(0.01)  # for one more, were there room
        assert len(taken) == handed_out + ahead
        assert loading.next(block=True) == (handed_out, handed_out)
    loading.close(lambda _: None)


def test_a_slow_list_holds_nobody_up_and_its_error_comes_last() -> None:
    """A child of fork has no thread that would read it, and does not wait for one."""
    go = threading.Event()

    def sources() -> Iterator[int]:
        yield 1
        assert go.wait(PATIENCE)
        yield 2
        raise OSError("the folder is gone")

    loading = Loader(sources(), lambda i: i, 4, WORKERS)
    assert loading.next(block=True) == (1, 1)
    assert loading.next(block=False) is None
    assert not loading.exhausted

    def refuses() -> bool:
        with pytest.raises(SlimWhisperError, match="after a fork"):
            loading.next(block=True)
        return True

    refused = forked(refuses)
    go.set()
    assert refused() and loading.next(block=True) == (2, 2)
    with pytest.raises(OSError, match="the folder is gone"):
        loading.next(block=True)
    assert loading.exhausted


def test_errors_stay_with_their_source() -> None:
    trouble = AudioError("cut.wav: ends early; copy it again")
    surprise = RuntimeError("a bug")

    def load(number: int) -> int:
        if number in (1, 3):
            raise trouble if number == 1 else surprise
        return number

    result = dict(drained(Loader(range(5), load, 2, WORKERS)))
    assert [result[i] for i in (0, 2, 4)] == [0, 2, 4]
    assert result[1] is trouble
    wrapped = result[3]
    assert type(wrapped) is SlimWhisperError
    assert "unexpected RuntimeError: a bug" in str(wrapped)
    assert wrapped.__cause__ is surprise


def test_closing_discards_what_was_not_handed_out() -> None:
    go, begun = threading.Event(), threading.Event()
    loaded: list[int] = []

    def load(number: int) -> int:
        if number == 2:
            begun.set()
            assert go.wait(PATIENCE)
        loaded.append(number)
        return number

    sources, discarded = iter(range(100)), list[int]()
    loading = Loader(sources, load, 4, WORKERS)
    assert loading.next(block=True) == (0, 0)
    assert begun.wait(PATIENCE)
    loading.close(discarded.append)
    go.set()
    assert eventually(
        lambda: 2 in loaded and sorted(discarded) == sorted(i for i in loaded if i != 0)
    )
    assert next(sources) <= 6, "so many were taken"
