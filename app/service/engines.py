"""The loaded model, one at a time, and its engines: one for each kind of search, and for each
window of live streams that is shorter than the model's.

    budget = `batch_size` slots of greedy decoding, in bytes, for the caches of all engines
"""

import gc
import logging
from collections.abc import Callable

import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.app.service.jobs import ModelChoice, ModelError
from slimwhisper.devices import check_batch_size
from slimwhisper.engine.requests import Search
from slimwhisper.errors import CacheError, DependencyError, OptionError, SlimWhisperError
from slimwhisper.live.setup import UpdateSettings, check
from slimwhisper.live.stream import window_of_silence
from slimwhisper.live.types import LiveOptions
from slimwhisper.model.model import Model
from slimwhisper.service.source import Windows
from slimwhisper.service.transcriber import Call, Transcriber

logger = logging.getLogger("slimwhisper.serve")


class Engines:
    """Loads and unloads models.

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
        model.transcriber.slots = self.slots
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
        if self.model is not None:
            self.model.transcriber.drop(SlimWhisperError("the model was unloaded"))
        self.model, self.loaded, self.slots = None, None, 0
        gc.collect()
        torch.cuda.empty_cache()  # which does nothing where CUDA is not in use

    @property
    def transcriber(self) -> Transcriber:
        """Of the loaded model."""
        assert self.model is not None
        return self.model.transcriber

    def network(self, window: float | None) -> Model:
        """The loaded model. window: seconds of a shorter window; None: the model's own."""
        assert self.model is not None
        return (self.model if window is None else self.model.shortened(window)).network

    def check_stream(self, choice: ModelChoice, options: LiveOptions) -> None:
        """Raise OptionError for invalid options; if the model is loaded, also for those that it
        does not support.
        """
        check(options)
        if self.model is not None and self.loaded == choice:
            UpdateSettings.of(self.network(options.window).facts, options)

    def warm_up(self, options: LiveOptions) -> None:
        """Make the engine of such streams, and use it once, unless an engine is in use. Raises
        OptionError.
        """
        if self.model is not None and not self.transcriber.used:
            network = self.network(options.window)
            call = Call(self.transcriber, Search(), emit=lambda _: None, model=network)
            call.submit(Windows([window_of_silence(network, options)]))
            self.transcriber.run(lambda: not call.submissions)

    @property
    def working(self) -> bool:
        """Whether an engine has work."""
        return self.model is not None and self.transcriber.working

    def cache_bytes(self) -> int:
        """Bytes allocated for the caches of all engines."""
        return 0 if (model := self.model) is None else model.transcriber.nbytes()

    def text_bytes(self) -> int:
        """Bytes of the caches that texts occupy now."""
        return 0 if (model := self.model) is None else model.transcriber.text_bytes()
