"""The loaded model and its engines: one model at a time, one engine for each kind of search, and
for each window of live streams that is shorter than the model's.
"""

import gc
import logging
from collections.abc import Callable

import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import Job, ModelChoice, ModelError
from slimwhisper.devices import check_batch_size, choose_batch_size
from slimwhisper.engine.requests import Search
from slimwhisper.errors import CacheError, DependencyError, OptionError, SlimWhisperError
from slimwhisper.live.types import LiveOptions
from slimwhisper.live.updates import SharedEngine
from slimwhisper.live.warming import warm_up
from slimwhisper.longform.batch import OnSegments
from slimwhisper.longform.engines import make_engine, search_of, slot_bytes
from slimwhisper.types import Options

logger = logging.getLogger("slimwhisper.serve")

Key = tuple[Search, float | None]  # and the seconds of a window; None: the model's own


class Engines:
    """Loads and unloads models, and makes their engines.

    The attributes and `cache_bytes` may be read from any thread; the rest is for the service's own.
    """

    def __init__(
        self,
        load: Callable[[ModelChoice], SlimWhisper],
        batch_size: int | None,
        on_segments: OnSegments,
    ) -> None:
        """load: makes a model. batch_size: windows decoded together; None: see `choose_batch_size`.

        on_segments: called with a job, its new segments and the seconds of audio done.
        """
        self.model: SlimWhisper | None = None
        self.loaded: ModelChoice | None = None  # what `model` was loaded as
        self.loading = False
        self.slots = 0  # of a greedy engine; 0: no model is loaded
        self._load, self._batch_size, self._on_segments = load, batch_size, on_segments
        self._engines: dict[Key, SharedEngine[Job]] = {}

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

    def for_recordings(self, options: Options) -> SharedEngine[Job]:
        """The engine that searches as the options say.

        A new one replaces those that are idle. Raises OptionError if memory is short.
        """
        return self._engine(search_of(options), None)

    def for_streams(self, options: LiveOptions) -> SharedEngine[Job]:
        """The engine whose windows are as long as the options say; as `for_recordings`."""
        assert self.model is not None
        window = options.window
        whole = window is None or self.model.shortened(window) is self.model
        return self._engine(Search(), None if whole else window)

    def warm_up(self, options: LiveOptions) -> None:
        """Make the engine that `for_streams` gives, and use it once, unless one is in use. Raises
        OptionError.
        """
        if self.model is not None and not any(e.used for e in self._engines.values()):
            warm_up(self.for_streams(options).engine, options)

    def _engine(self, search: Search, window: float | None) -> SharedEngine[Job]:
        assert self.model is not None
        found = self._engines.get((search, window))
        if found is None:
            model = self.model if window is None else self.model.shortened(window)
            self._engines = {k: e for k, e in self._engines.items() if e.used}
            slots = max(self.slots // (search.beams or 1), 1)
            if self._batch_size is None:  # others may be running: less memory is free now
                size = slot_bytes(model.network, search)
                slots = min(slots, choose_batch_size(model.device, size))
            engine = make_engine(model.network, search, slots)
            found = SharedEngine(engine, self._on_segments)
            self._engines[search, window] = found
        return found

    def working(self) -> list[SharedEngine[Job]]:
        """The engines that have something to do."""
        return [engine for engine in self._engines.values() if engine.working]

    def cache_bytes(self) -> int:
        """Bytes allocated for the caches of all engines."""
        return sum(shared.engine.nbytes() for shared in list(self._engines.values()))


def public_error(error: Exception, choice: ModelChoice) -> SlimWhisperError:
    """The error to report for a model that could not be loaded, without the model's path."""
    if isinstance(error, CacheError | DependencyError | OptionError):
        return type(error)(str(error).replace(choice.name, choice.shown))
    return ModelError(f"{choice.shown} cannot be loaded at the moment; see the server's log")
