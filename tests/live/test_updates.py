"""Streams and recordings that share an engine: who is next, and what each is sure of."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import slimwhisper
from slimwhisper.audio.samples import ArraySamples
from slimwhisper.engine.requests import Search, Window
from slimwhisper.errors import SlimWhisperError
from slimwhisper.live.activity import BLOCK
from slimwhisper.live.stream import Stream
from slimwhisper.live.types import LiveEvent, LiveOptions, Text
from slimwhisper.live.updates import SharedEngine
from slimwhisper.longform.engines import make_engine
from slimwhisper.longform.recording import Recording
from slimwhisper.types import Transcript
from tests.support.spoken import SAMPLES


@dataclass(eq=False)
class Stay:
    """A window's stay in the simulated engine."""

    tag: Any
    left: int  # steps


def window(steps: int) -> Window:
    """One that the simulated engine decodes in so many steps."""
    return Window(torch.empty(0), (steps,), 0, None)


@dataclass
class Engine:
    """As `slimwhisper.engine`, without a model. As on a CPU, all windows that wait and find a slot
    are encoded before a step.
    """

    slots: int
    encode_batch: int = 1
    now: int = 0  # steps so far
    waiting: deque[tuple[Any, Window]] = field(default_factory=deque)
    inside: list[Stay] = field(default_factory=list)
    encoded: list[list[Any]] = field(default_factory=list)  # whose windows, in each step
    shared: bool = False

    @property
    def free(self) -> int:
        return self.slots - len(self.inside)

    @property
    def room(self) -> int:
        return self.free - len(self.waiting)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.inside)

    @property
    def ahead(self) -> int:
        return self.encode_batch

    def share_cores(self, share: bool) -> None:
        self.shared = share

    def unencoded(self, mine: Callable[[Any], bool]) -> int:
        return sum(mine(tag) for tag, _ in self.waiting)

    def submit(self, tag: Any, window: Window) -> None:
        self.waiting.append((tag, window))

    def reply(self, stay: Stay, request: Window | None) -> None:
        if request is None:
            self.inside.remove(stay)
        else:
            stay.left = request.prompt[0]

    def stop(self, given_up: Callable[[Any], bool]) -> None:
        self.waiting = deque(w for w in self.waiting if not given_up(w[0]))
        for stay in self.inside:
            if given_up(stay.tag):
                stay.left = 0

    def step(self) -> list[tuple[Stay, Any]]:
        self.encoded.append([])
        while self.waiting and self.free:
            tag, window = self.waiting.popleft()
            self.inside.append(Stay(tag, window.prompt[0]))
            self.encoded[-1].append(tag[0])
        self.now += 1
        for stay in self.inside:
            stay.left -= 1
        return [(stay, "answer") for stay in self.inside if stay.left <= 0]


@dataclass(eq=False)
class Talker:
    """A stream in an endless utterance, an update of which is due every `period` steps."""

    engine: Engine
    begins: int = 0
    period: int = 20
    length: int = 4  # steps of an update
    starts: list[tuple[int, float]] = field(default_factory=list)  # step, deadline
    known: int = 0  # the audio that the last update knew, in steps
    ends: int = 0  # updates that are done
    running: bool = False

    @property
    def due(self) -> float | None:
        deadline = self.known + self.period if self.starts else self.begins
        return None if self.running or self.engine.now < deadline else deadline

    @property
    def backlog(self) -> float:
        return max(self.engine.now - max(self.known, self.begins), 0)

    def request(self) -> tuple[str, Window]:
        assert self.due is not None
        self.starts.append((self.engine.now, self.due))
        self.running, self.known = True, self.engine.now
        return "passage", window(self.length)

    def accept(self, passage: str, answer: str) -> None:
        assert self.running and (passage, answer) == ("passage", "answer")
        self.running = False
        self.ends += 1

    @property
    def lateness(self) -> list[float]:
        """Steps between each deadline and the start."""
        return [start - deadline for start, deadline in self.starts]


class Upload:
    """An upload of some windows, one after the other; it is its own session."""

    seconds_done = 0.0

    def __init__(self, windows: int = 2, length: int = 30) -> None:
        self.left, self.length, self.handed_out = windows, length, False

    def next_session(self) -> "Upload | None":
        first, self.handed_out = not self.handed_out, True
        return self if first else None

    def next_request(self) -> Window | None:
        return window(self.length) if self.left else None

    def accept(self, answer: str) -> None:
        self.left -= 1

    @property
    def done(self) -> bool:
        return not self.left

    def report(self) -> list[Any]:
        return []

    def transcript(self) -> Transcript:
        return Transcript("", [], "en")

    def close(self) -> None:
        pass


def shared(slots: int, encode_batch: int = 1) -> Any:
    """A `SharedEngine` over a simulated one."""
    engine: Any = Engine(slots, encode_batch)
    return SharedEngine(engine)


def add_talkers(both: Any, count: int, **settings: Any) -> list[Talker]:
    made = [Talker(both.engine, **settings) for _ in range(count)]
    for talker in made:
        both.updates.add(talker)
    return made


def run(both: Any, steps: int, each: Callable[[], None] = lambda: None) -> list[Any]:
    """The recordings that end."""
    ended = []
    for _ in range(steps):
        both.fill(live=bool(both.updates.streams))
        ended += [source for source, _ in both.batch.step()]
        each()
    return ended


def test_one_update_of_a_stream_at_a_time() -> None:
    """Those that are due meanwhile start once, with the newest audio."""
    both = shared(slots=4)
    (talker,) = add_talkers(both, 1, period=2, length=9)
    run(both, 101)
    assert [start for start, _ in talker.starts] == list(range(0, 101, 9))


@pytest.mark.parametrize("slots", [1, 2])
def test_the_oldest_deadline_first(slots: int) -> None:
    both = shared(slots)
    talkers = [add_talkers(both, 1, begins=n, period=1000, length=3)[0] for n in (5, 3, 4, 1, 2)]
    run(both, 30)
    talkers.sort(key=lambda talker: talker.begins)
    begun = [talker.starts[0][0] for talker in talkers]
    assert begun == sorted(begun)


@pytest.mark.parametrize("encode_batch", [1, 8])
def test_uploads_do_not_keep_streams_waiting(encode_batch: int) -> None:
    """64 uploads and 8 streams: there is always a slot, and at most one window of an upload goes
    to the encoder with an update.
    """
    both = shared(slots=16, encode_batch=encode_batch)
    talkers = add_talkers(both, 8, period=20, length=4)
    for number in range(64):
        assert both.batch.add(number, Upload()) is None
    ended = run(both, 700)
    assert len(ended) == 64
    for talker in talkers:
        assert len(talker.starts) > 25 and max(talker.lateness) <= 8
    for encoded in both.engine.encoded:
        uploads = [who for who in encoded if isinstance(who, Upload)]
        assert len(uploads) <= 1 and len(encoded) - len(uploads) <= encode_batch


def test_streams_leave_uploads_a_quarter() -> None:
    """64 streams want more than the engine can do."""
    both = shared(slots=16, encode_batch=4)
    talkers = add_talkers(both, 64, period=5, length=10)
    for number in range(8):
        both.batch.add(number, Upload(windows=1000, length=10))
    shares: list[int] = []

    def count() -> None:
        inside = [stay.tag[0] for stay in both.engine.inside]
        shares.append(sum(isinstance(who, Upload) for who in inside))

    run(both, 400, count)
    assert min(shares[20:]) >= 4 - 1, "one may have just ended"
    assert sum(shares[20:]) / len(shares[20:]) >= 3.5
    ends = [talker.ends for talker in talkers]
    assert min(ends) > 0 and max(ends) - min(ends) <= 1, "all in turn"


@pytest.mark.parametrize(("streams", "used"), [(0, 16), (10, 15)])
def test_streams_take_no_more_than_they_need(streams: int, used: int) -> None:
    """One slot is kept for streams that are silent; without any, uploads fill all."""
    both = shared(slots=16)
    add_talkers(both, streams, begins=10_000)
    for number in range(64):
        both.batch.add(number, Upload())
    run(both, 25)
    assert 16 - both.engine.free == used


def test_dropped_streams_leave_nothing() -> None:
    """While they wait, decode, or have been answered; others go on."""
    both = shared(slots=4, encode_batch=2)
    both.batch.add("upload", Upload(windows=4))
    stays = add_talkers(both, 1, period=10)
    for at in range(1, 60):
        gone = add_talkers(both, 3, length=7)
        run(both, at % 9)
        for talker in gone:
            both.updates.drop(talker)
            both.updates.drop(talker)
    run(both, 200)
    both.updates.drop(stays[0])
    assert not both.batch.running and not both.used
    while both.working:
        run(both, 1)
    assert both.engine.idle and both.engine.free == 4
    assert not (both.updates.busy or both.updates.streams or both.updates.failures)
    assert stays[0].ends > 10


@pytest.mark.parametrize("method", ["request", "accept"])
def test_a_stream_that_fails_is_alone_in_it(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both = shared(slots=4)
    bad, good = add_talkers(both, 2)

    def fails(*_: object) -> None:
        raise OSError("no more")

    setattr(bad, method, fails)
    run(both, 50)
    assert "unexpected OSError: no more" in str(both.updates.failures[bad])
    assert isinstance(both.updates.failures[bad], SlimWhisperError)
    assert good.ends >= 2 and list(both.updates.streams) == [good]
    assert len(both.engine.inside) <= 1
    both.updates.drop(bad)
    assert not both.updates.failures


@pytest.mark.slow
def test_results_do_not_depend_on_neighbours() -> None:
    """Streams of real speech beside each other and an upload: the events that each has alone, where
    each update knows the same audio.
    """
    model = slimwhisper.load_model("digits")
    network = model.network
    options = LiveOptions(language="en", words=True, update=1.0)
    names = ("door-code.mp3", "flight.m4a")
    sounds = {name: slimwhisper.load_audio(SAMPLES / name) for name in names}

    def told(together: Sequence[str], uploads: int) -> dict[str, list[LiveEvent]]:
        both = SharedEngine[str](make_engine(network, Search(), 4))
        streams = {n: Stream(network.dims, network.vocabulary, options) for n in together}
        for stream in streams.values():
            both.updates.add(stream)
        chosen = model.make_options(language="en")
        for _ in range(uploads):
            samples = ArraySamples(sounds["door-code.mp3"])
            both.batch.add("upload", Recording(samples, network.dims, chosen, network.vocabulary))
        found: dict[str, list[LiveEvent]] = {name: [] for name in together}
        longest = max(len(sounds[name]) for name in together)
        for start in range(0, longest + BLOCK, BLOCK):
            for name, stream in streams.items():
                if start < longest:
                    stream.append(sounds[name][start : start + BLOCK])
                else:
                    stream.finish()
            while both.updates.due or both.updates.busy:
                both.fill(live=True)
                both.batch.step()
            for name, stream in streams.items():
                found[name] += stream.events()
        assert all(stream.ended for stream in streams.values())
        return found

    beside = told(names, uploads=1)
    for name in names:
        alone = told([name], uploads=0)[name]
        texts = [[e for e in es if isinstance(e, Text)] for es in (alone, beside[name])]
        alike = [
            [replace(t, words=tuple(replace(w, probability=0.0) for w in t.words)) for t in told]
            for told in texts  # probabilities differ by rounding
        ]
        assert alike[0] == alike[1]
        assert sum(len(t.words) for t in texts[0]) >= 4
