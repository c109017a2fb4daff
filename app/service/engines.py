"""The loaded model and its engines: one model at a time, one engine for each kind of search, and
for each window of live streams that is shorter than the model's.

    budget = `batch_size` slots of greedy decoding, in bytes, for the caches of all engines

The engine of live streams takes what it needs of the budget as long as there are streams. The kinds
of search take turns with the rest, or with one slot if there is no rest: while others wait, one
works for `TURN` seconds, then finishes the windows that it has begun. Waiting engines have no
caches.
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
    wrap_unexpected,
)
from slimwhisper.live.setup import UpdateSettings, check
from slimwhisper.live.types import LiveOptions
from slimwhisper.live.update_scheduler import SharedEngine
from slimwhisper.live.warming import warm_up
from slimwhisper.longform.engine_pool import (
    make_engine,
    search_of,
    slot_bytes,
    slots_within,
)
from slimwhisper.model.model import Model
from slimwhisper.types import Options, Segment

logger = logging.getLogger("slimwhisper.serve")

Key = tuple[Search, float | None]  # and the seconds of a window; None: the model's own
TURN = 5.0  # seconds; making an engine takes up to one, because a GPU's steps are recorded again


class Engines:
    """Loads and unloads models, and makes their engines.

    Any thread may read the attributes and call `cache_bytes` and `check_stream`; only the service's
    thread may call the rest.
    """

    def __init__(self, load: Callable[[ModelChoice], SlimWhisper], batch_size: int | None) -> None:
        """load: loads a model. batch_size: windows decoded together; None: see
        `choose_batch_size`.
        """
        self.model: SlimWhisper | None = None
        self.loaded: ModelChoice | None = None  # what `model` was loaded as
        self.loading = False
        self.slots = 0  # of a greedy engine; 0: no model is loaded
        self._load, self._batch_size = load, batch_size
        self._engines: dict[Key, SharedEngine[Job]] = {}  # in the order of their next turns
        self._empty: dict[float | None, Engine] = {}  # by window: without slots, for waiting kinds
        self._reduced: set[Key] = set()  # engines that are smaller because of live streams
        self._turn_end = 0.0  # by time.monotonic()

    def load(self, choice: ModelChoice) -> SlimWhisper:
        """The chosen model. A different one is unloaded first. Raises the errors of loading."""
        if self.model is not None and self.loaded == choice:
            return self.model
        self.unload()
        self.loading = True
        try:
            model = self._load(choice)
        finally:
            self.loading = False
        self.model, self.loaded = model, choice
        size = self._batch_size
        self.slots = model.default_batch_size() if size is None else check_batch_size(size)
        logger.info("%s on %s: up to %d windows per batch", model.name, model.device, self.slots)
        return model

    def load_for_users(self, choice: ModelChoice) -> SlimWhisper:
        """`load`, with errors that are safe to send to users; the details are logged."""
        try:
            return self.load(choice)
        except Exception as error:
            logger.error("%s cannot be loaded: %s", choice.name, error)
            name = choice.display_name  # users do not see the model's path
            if isinstance(error, CacheError | DependencyError | OptionError):
                raise type(error)(str(error).replace(choice.name, name)) from error
            message = f"{name} cannot be loaded at the moment; see the server's log"
            raise ModelError(message) from error

    def unload(self) -> None:
        """Free the model and its caches."""
        self.drop_all()
        self.model, self.loaded, self.slots = None, None, 0
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def drop_all(self) -> None:
        """Drop every engine and all its work. The model stays loaded."""
        self._engines.clear()
        self._empty.clear()
        self._reduced.clear()

    def for_recordings(self, options: Options) -> SharedEngine[Job]:
        """The engine for the options' search; `take_turns` gives it its slots. A new one replaces
        the idle ones.
        """
        return self._engine((search_of(options), None))

    def for_streams(self, options: LiveOptions) -> SharedEngine[Job]:
        """The engine for the options' window; otherwise as `for_recordings`."""
        return self._engine(self._key(options))

    def check_stream(self, choice: ModelChoice, options: LiveOptions) -> None:
        """Raise OptionError for invalid options; if the model is loaded, also for those that it
        does not support.
        """
        check(options)
        loaded, window = self.model, options.window
        if loaded is not None and self.loaded == choice:
            network = (loaded if window is None else loaded.shortened(window)).network
            UpdateSettings.of(network.dims, network.vocabulary, options, network.settings)

    def warm_up(self, options: LiveOptions) -> None:
        """Make the engine of `for_streams`, and use it once, unless an engine is in use. Raises
        OptionError.
        """
        if self.model is not None and not any(e.used for e in self._engines.values()):
            key = self._key(options)
            shared = self._engine(key)
            if not shared.engine.slots:
                self._allocate(key)
            warm_up(shared.engine, options)

    def working(self) -> list[SharedEngine[Job]]:
        """The engines that have work."""
        return [engine for engine in self._engines.values() if engine.working]

    def take_turns(self) -> list[tuple[SharedEngine[Job], SlimWhisperError]]:
        """Give slots to the kinds whose turn it is. Returns the engines that cannot be made, each
        with its error.
        """
        live = any(shared.updates.streams for shared in self._engines.values())
        waiting = [k for k, e in self._engines.items() if e.used and not e.engine.slots]
        turn_over = time.monotonic() > self._turn_end
        urgent = any(self._engines[key].updates.streams for key in waiting)
        holding = False
        for key, shared in list(self._engines.items()):
            holds = shared.engine.slots > 0 and not shared.updates.streams
            yields = bool(waiting) and (turn_over or urgent or not shared.used)
            shared.draining = holds and (yields or (key in self._reduced and not live))
            if shared.draining and shared.engine.idle:
                shared.draining = False
                shared.move(self._without_slots(key[1]))
                self._engines[key] = self._engines.pop(key)  # the last in the order of turns
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
                self._allocate(key)
            except Exception as error:
                del self._engines[key]
                failed.append((shared, wrap_unexpected(error)))
                continue
            holding = not shared.updates.streams
        return failed

    def _key(self, options: LiveOptions) -> Key:
        assert self.model is not None
        window = options.window
        whole = window is None or self.model.shortened(window) is self.model
        return Search(), None if whole else window

    def _engine(self, key: Key) -> SharedEngine[Job]:
        shared = self._engines.get(key)
        if shared is None or not (shared.used or shared.engine.slots):
            self._engines = {k: e for k, e in self._engines.items() if e.used}
            shared = SharedEngine(self._without_slots(key[1]), _emit_progress)
            self._engines[key] = shared
        return shared

    def _allocate(self, key: Key) -> None:
        """Make the engine of a waiting kind, with as many slots as fit, and at least one."""
        shared, search = self._engines[key], key[0]
        network = self._network(key[1])
        max_slots = max(self.slots // (search.beams or 1), 1)
        budget = self.slots * slot_bytes(self._network(None), Search())
        slots = slots_within(network, search, max_slots, budget - self.cache_bytes())
        shared.move(make_engine(network, search, slots))
        self._reduced.discard(key)
        if slots < slots_within(network, search, max_slots, budget):
            self._reduced.add(key)
        self._turn_end = time.monotonic() + TURN

    def _without_slots(self, window: float | None) -> Engine:
        """An engine without slots, which holds the place of a waiting kind."""
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
        """Bytes of the caches that texts occupy now."""
        return sum(shared.engine.text_bytes() for shared in list(self._engines.values()))


def _emit_progress(job: Job, segments: list[Segment], done: float) -> None:
    """Report new segments to a job's listener. done: seconds of audio."""
    job.emit(Progress(segments, done))
