"""Live streams: what their callers hold, and what the service's thread does for them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slimwhisper.app.service.jobs import ModelChoice
from slimwhisper.live.types import LiveEvent, LiveOptions

# Called on the service's thread; None: the end, after `Ended` or `Failed`
Listener = Callable[[LiveEvent | None], None]


class LiveStream:
    """A stream, as `Service.open_stream` returns it. Any thread may call; nothing waits."""

    def __init__(
        self, model: ModelChoice, options: LiveOptions, user: str, listener: Listener
    ) -> None:
        self.model, self.options, self.user, self.listener = model, options, user, listener

    @property
    def backlog(self) -> float:
        """Seconds of audio that no update has known yet, silence not counted. A caller that can
        stop reading should do so when it grows.
        """
        raise NotImplementedError

    def append(self, samples: NDArray[np.float32]) -> None:
        """More audio: samples float32 [n] at 16 kHz, which must not change afterwards.

        Raises BusyError if too much waits already (`Limits.backlog`); nothing of it is taken then.
        """
        raise NotImplementedError

    def commit(self) -> None:
        """End the utterance now."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget what is not committed."""
        raise NotImplementedError

    def change(self, options: LiveOptions) -> None:
        """Other options, from the next utterance on. Raises OptionError."""
        raise NotImplementedError

    def finish(self) -> None:
        """No more audio: the last utterance ends, then the stream; the listener gets None last."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop the stream at once; the listener gets nothing more, not even None."""
        raise NotImplementedError
