"""One engine, fed from any thread; and rows of Ray Data, without Ray."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import load_audio
from slimwhisper.errors import AudioError, OptionError, SlimWhisperError
from slimwhisper.files import Fingerprint
from slimwhisper.loading import load_model
from slimwhisper.ray.engine_feed import EngineFeed, FeedResult
from slimwhisper.storage.stores import StoredFile
from slimwhisper.types import Segment, Transcript, Word
from tests.support.paths import BROKEN
from tests.support.spoken import SAMPLES

DOOR = SAMPLES / "door-code.mp3"
TEXT = "four zero seven seven".split()


@pytest.fixture(scope="module")
def digits() -> SlimWhisper:
    return load_model("digits", device="cpu")


def words(heard: FeedResult) -> list[str]:
    assert isinstance(heard.result, Transcript)
    return heard.result.text.split()


def test_anything_is_fed_by_anyone(digits: SlimWhisper) -> None:
    """The same path twice, bytes, samples, the same stored file twice, a URI, and what cannot be
    read, from several threads.
    """
    feed = EngineFeed(digits, slots=4)
    samples = load_audio(DOOR)
    stored = StoredFile(str(DOOR), str(DOOR), Fingerprint.of(DOOR))
    sources: list[Any] = [DOOR, str(DOOR), DOOR.read_bytes(), samples, stored, stored]
    sources += [f"file://{DOOR}", BROKEN]
    with ThreadPoolExecutor(len(sources)) as pool:
        heard = [future.result(60) for future in pool.map(feed.submit, sources)]
    assert [words(h) for h in heard[:7]] == [TEXT] * 7
    assert heard[0].seconds == pytest.approx(len(samples) / 16_000)
    assert isinstance(heard[7].result, AudioError) and heard[7].seconds is None
    later = feed.submit(DOOR)  # the engine had nothing to do
    assert words(later.result(60)) == TEXT
    feed.close()
    counts = feed.counts
    assert (counts.finished, counts.failed, counts.slots, feed.waiting) == (8, 1, 4, 0)
    assert 0 < counts.fill <= 1 and counts.busy_seconds > 0
    assert counts.audio_seconds == pytest.approx(8 * len(samples) / 16_000)
    with pytest.raises(RuntimeError, match="the engine has ended"):
        feed.submit(DOOR)
    with pytest.raises(OptionError, match="nowhere://x: unknown protocol"):
        feed.submit("nowhere://x")


def test_arrays_keep_their_channels(digits: SlimWhisper) -> None:
    feed = EngineFeed(digits, slots=2, channels="split")
    door = load_audio(DOOR)
    both = np.stack([door, np.concatenate([door[8_000:], np.zeros(8_000, np.float32)])])
    result = feed.submit(both).result(60).result
    assert isinstance(result, Transcript)
    assert {segment.speaker for segment in result.segments} == {"left", "right"}
    with pytest.raises(AudioError, match="has one channel"):
        feed.submit(door)
    feed.close()


def test_slots_are_filled_again_while_others_run(digits: SlimWhisper) -> None:
    """A long recording does not hold up those behind it."""
    feed = EngineFeed(digits, slots=2)
    order: list[str] = []
    for name in ("countdown.flac", "door-code.mp3", "door-code.mp3"):
        future = feed.submit(np.tile(load_audio(SAMPLES / name), 4 if name[0] == "c" else 1))
        future.add_done_callback(lambda _, name=name: order.append(name))
    feed.close()
    assert order == ["door-code.mp3", "door-code.mp3", "countdown.flac"]
    assert feed.counts.steps < feed.counts.filled_slots < 2 * feed.counts.steps


def test_a_broken_engine_fails_all_that_it_has(
    digits: SlimWhisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("device lost")

    monkeypatch.setattr("slimwhisper.service.shared_engine.SharedEngine.step", broken)
    feed = EngineFeed(digits, slots=2)
    assert isinstance(feed.submit(DOOR).exception(60), ZeroDivisionError)
    with pytest.raises(RuntimeError, match="the engine has ended"):
        for _ in range(100):
            feed.submit(DOOR).exception(60)


SEGMENT = Segment(0, 0, 0.0, 1.5, " one", [502], 0.0, -0.1, 1.0, 0.0, [Word(" one", 0.0, 0.5, 0.9)])


def test_rows() -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from slimwhisper.ray import SCHEMA
    from slimwhisper.ray.dataset_rows import as_table, source_of, with_results

    batch = {
        "path": np.array(["a.wav", "b.wav"], object),
        "samples": np.zeros((2, 5)),
        "text": np.array(["old", "old"], object),
        "n": np.arange(2),
    }
    table = as_table(batch)
    assert as_table(table) is table
    assert source_of({"samples": None, "bytes": b"x", "path": "p"}) == (b"x", 16_000)
    with pytest.raises(AudioError, match="samples, bytes or path"):
        source_of({"name": "p"})
    samples, rate = source_of(table.to_pylist()[0])
    assert isinstance(samples, np.ndarray) and samples.shape == (5,) and rate == 16_000
    heard = [
        FeedResult(Transcript(" one", [SEGMENT], "en"), 1.5),
        FeedResult(SlimWhisperError("no"), None),
    ]
    found = with_results(table, heard)
    assert found.column_names == ["path", "n", *SCHEMA.names]
    first, second = found.to_pylist()
    assert first["text"] == " one" and first["words"][0]["word"] == " one"
    assert first["segments"][0]["tokens"] == [502] and first["error"] is None
    assert second["error"] == "no" and second["text"] is second["segments"] is None
    silent = with_results(table.slice(0, 1), [FeedResult(Transcript("", [], "en"), 1.0)])
    assert silent.schema == found.schema  # so that parts of one data set fit together
    assert isinstance(found, pa.Table)
