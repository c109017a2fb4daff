"""The loaded model and its engines: one model at a time, one engine for each kind of search, and
for each window of live streams that is shorter than the model's.

    room = `batch_size` slots of greedy decoding, in bytes, for the caches of all engines together

The engine of live streams has what it needs of the room as long as there are streams. In the rest,
or in one slot if nothing is left, the kinds of search take turns: while others wait, one works for
`TURN` seconds, and to the end of the windows that it has begun. Those that wait have no caches.
"""

import gc
import logging
import time
from collections.abc import Callable

import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import Job, ModelChoice, ModelError, Progress
from slimwhisper.devices import check_batch_size
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Search
from slimwhisper.errors import (
    CacheError,
    DependencyError,
    OptionError,
    SlimWhisperError,
    as_ours,
)
from slimwhisper.live.types import LiveOptions
from slimwhisper.live.updates import SharedEngine
from slimwhisper.live.warming import warm_up
from slimwhisper.longform.engines import make_engine, search_of, slot_bytes, slots_within
from slimwhisper.model.model import Model
from slimwhisper.types import Options, Segment

logger = logging.getLogger("slimwhisper.serve")

Key = tuple[Search, float | None]  # and the seconds of a window; None: the model's own
TURN = 5.0  # seconds; a new engine takes up to one, as a GPU's steps are recorded anew


class Engines:
    """Loads and unloads models, and makes their engines.

    The attributes and `cache_bytes` may be read from any thread; the rest is for the service's own.
    """

    def __init__(self, load: Callable[[ModelChoice], SlimWhisper], batch_size: int | None) -> None:
        """load: makes a model. batch_size: windows decoded together; None: see
        `choose_batch_size`.
        """
        self.model: SlimWhisper | None = None
        self.loaded: ModelChoice | None = None  # what `model` was loaded as
        self.loading = False
        self.slots = 0  # of a greedy engine; 0: no model is loaded
        self._load, self._batch_size = load, batch_size
        self._engines: dict[Key, SharedEngine[Job]] = {}  # the next turn is the first one's
        self._empty: dict[
            float | None, Engine
        ] = {}  # without slots, for those that wait; by window
        self._cramped: set[Key] = set()  # whose engines are small because there were streams
        self._turn_ends = 0.0  # by time.monotonic()

    def load(self, choice: ModelChoice) -> SlimWhisper:
        """The chosen model. A different one is unloaded first. Raises what loading raises."""
        if self.model is not None and self.loaded == choice:
            return self.model
        self.unload()
        self.loading = True
        try:
            model = self._load(choice)
        finally:
            self.loading = False
        self.model, self.loaded = model, choice
        asked = self._batch_size
        self.slots = model.default_batch_size() if asked is None else check_batch_size(asked)
        logger.info("%s on %s: up to %d windows together", model.name, model.device, self.slots)
        return model

    def load_for_users(self, choice: ModelChoice) -> SlimWhisper:
        """`load`. Raises what users may be told; the log has the rest."""
        try:
            return self.load(choice)
        except Exception as error:
            logger.error("%s cannot be loaded: %s", choice.name, error)
            if isinstance(error, CacheError | DependencyError | OptionError):
                told = str(error).replace(choice.name, choice.shown)  # without the model's path
                raise type(error)(told) from error
            message = f"{choice.shown} cannot be loaded at the moment; see the server's log"
            raise ModelError(message) from error

    def unload(self) -> None:
        """Free the model and its caches."""
        self.drop_all()
        self.model, self.loaded, self.slots = None, None, 0
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def drop_all(self) -> None:
        """Drop every engine, with what runs in it. The model stays."""
        self._engines.clear()
        self._empty.clear()
        self._cramped.clear()

    def for_recordings(self, options: Options) -> SharedEngine[Job]:
        """The engine that searches as the options say; `take_turns` gives it its slots. A new one
        replaces those that are idle.
        """
        return self._engine((search_of(options), None))

    def for_streams(self, options: LiveOptions) -> SharedEngine[Job]:
        """The engine whose windows are as long as the options say; as `for_recordings`."""
        return self._engine(self._key(options))

    def warm_up(self, options: LiveOptions) -> None:
        """Make the engine that `for_streams` gives, and use it once, unless one is in use. Raises
        OptionError.
        """
        if self.model is not None and not any(e.used for e in self._engines.values()):
            key = self._key(options)
            shared = self._engine(key)
            if not shared.engine.slots:
                self._give(key)
            warm_up(shared.engine, options)

    def working(self) -> list[SharedEngine[Job]]:
        """The engines that have something to do."""
        return [engine for engine in self._engines.values() if engine.working]

    def take_turns(self) -> list[tuple[SharedEngine[Job], SlimWhisperError]]:
        """Give the room to whose turn it is. Returns the engines that cannot be made, and why."""
        live = any(shared.updates.streams for shared in self._engines.values())
        waiting = [k for k, e in self._engines.items() if e.used and not e.engine.slots]
        over = time.monotonic() > self._turn_ends
        urgent = any(self._engines[key].updates.streams for key in waiting)
        holding = False
        for key, shared in list(self._engines.items()):
            holds = shared.engine.slots > 0 and not shared.updates.streams
            yields = bool(waiting) and (over or urgent or not shared.used)
            shared.resting = holds and (yields or (key in self._cramped and not live))
            if shared.resting and shared.engine.idle:
                shared.resting = False
                shared.move(self._without_slots(key[1]))
                self._engines[key] = self._engines.pop(key)  # the last to have the next turn
                if shared.used:
                    waiting.append(key)
            else:
                holding |= holds
        failed = []
        for key in sorted(waiting, key=lambda key: not self._engines[key].updates.streams):
            if holding:
                break
            shared = self._engines[key]
            try:
                self._give(key)
            except Exception as error:
                del self._engines[key]
                failed.append((shared, as_ours(error)))
                continue
            holding = not shared.updates.streams
        return failed

    def _key(self, options: LiveOptions) -> Key:
        assert self.model is not None
        window = options.window
        whole = window is None or self.model.shortened(window) is self.model
        return Search(), None if whole else window

    def _engine(self, key: Key) -> SharedEngine[Job]:
        found = self._engines.get(key)
        if found is None or not (found.used or found.engine.slots):
            self._engines = {k: e for k, e in self._engines.items() if e.used}
            found = SharedEngine(self._without_slots(key[1]), _report)
            self._engines[key] = found
        return found

    def _give(self, key: Key) -> None:
        """Make the engine of a kind that waits: as many slots as fit, and at least one."""
        shared, search = self._engines[key], key[0]
        network = self._network(key[1])
        most = max(self.slots // (search.beams or 1), 1)
        room = self.slots * slot_bytes(self._network(None), Search())
        slots = slots_within(network, search, most, room - self.cache_bytes())
        shared.move(make_engine(network, search, slots))
        self._cramped.discard(key)
        if slots < slots_within(network, search, most, room):
            self._cramped.add(key)
        self._turn_ends = time.monotonic() + TURN

    def _without_slots(self, window: float | None) -> Engine:
        """What has room for nothing."""
        if window not in self._empty:
            self._empty[window] = make_engine(self._network(window), Search(), 0)
        return self._empty[window]

    def _network(self, window: float | None) -> Model:
        assert self.model is not None
        return (self.model if window is None else self.model.shortened(window)).network

    def cache_bytes(self) -> int:
        """Bytes allocated for the caches of all engines."""
        return sum(shared.engine.nbytes() for shared in list(self._engines.values()))

    def text_bytes(self) -> int:
        """Bytes of them that texts have now."""
        return sum(shared.engine.text_bytes() for shared in list(self._engines.values()))


def _report(job: Job, segments: list[Segment], done: float) -> None:
    """Tell a job about new segments. done: seconds of audio."""
    job.tell(Progress(segments, done))
