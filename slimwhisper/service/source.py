"""What a `Transcriber` decodes, and what it reports of it."""

from typing import Any, NamedTuple, Protocol

from slimwhisper.engine.requests import Answer, Request, Window


class SessionSource(Protocol):
    """Something whose windows an engine decodes: a recording, a live stream, some windows.

    A new kind of source is a class with these methods, which `Call.submit` takes as it is. Its
    methods are called by one thread at a time. A source that raises ends alone, but `due` and
    `backlog` must not raise.

    Attributes:
        live: Whether its windows have deadlines. They go before those of sources whose windows have
            none.
    """

    live: bool = False

    @property
    def due(self) -> float | None:
        """When its next window should start, in seconds of `time.monotonic`, if it is live.

        Of several sources, the earliest goes first. None means that no window can start now.
        """
        return None

    @property
    def backlog(self) -> float:
        """The seconds of audio that no window has decoded yet, if it is live."""
        return 0.0

    def next_window(self) -> tuple[Any, Window] | None:
        """Give a window that needs a slot.

        Returns:
            The session of the window, which receives the answers, and the window. None means that
                there is no window now: for example, later sessions wait until the language is
                known.
        """

    def accept(self, session: Any, answer: Answer) -> Request | None:
        """Process an answer to a session's last request.

        Args:
            session: The session, as `next_window` gave it.
            answer: The answer.

        Returns:
            The next request about the window in the slot. None means that the session is done.
        """

    def report(self) -> Any:
        """Return what is new after an answer.

        Returns:
            What a `Progress` has as its news. None means that nothing is new.
        """
        return None

    @property
    def done(self) -> bool:
        """Whether all is decoded."""

    def result(self) -> Any:
        """Return the result, once the source is `done`.

        Returns:
            What a `Finished` has as its result.
        """

    def close(self) -> None:
        """Free memory and files. This is called once, also if the source fails or is cancelled."""
        return None


class Progress(NamedTuple):
    """An event: a source has something new.

    Attributes:
        tag: The tag that was given to `Call.submit`.
        news: What `SessionSource.report` returned.
    """

    tag: Any
    news: Any


class Finished(NamedTuple):
    """An event: a source is done.

    Attributes:
        tag: The tag that was given to `Call.submit`.
        result: What `SessionSource.result` returned.
    """

    tag: Any
    result: Any


class Failed(NamedTuple):
    """An event: a source, or the engine that it was in, has raised an error.

    Attributes:
        tag: The tag that was given to `Call.submit`.
        error: The error.
        of_engine: Whether it is the engine's error.
    """

    tag: Any
    error: Exception
    of_engine: bool = False


class Stepped(NamedTuple):
    """An event: an engine has made a step with windows in it.

    Attributes:
        filled: The number of windows in the engine.
        slots: The number of its slots.
        seconds: The duration of the step.
        preemptions: How many texts lost their pages to older ones.
    """

    filled: int
    slots: int
    seconds: float
    preemptions: int = 0


Event = Progress | Finished | Failed | Stepped


class Windows(SessionSource):
    """A source of some windows, each by itself.

    Its result is a list of their answers, in order.
    """

    def __init__(self, windows: list[Window]) -> None:
        """Make a source.

        Args:
            windows: The windows.
        """
        self._waiting, self._count = enumerate(windows), len(windows)
        self._answers: dict[int, Answer] = {}

    def next_window(self) -> tuple[int, Window] | None:
        """Give the next window.

        Returns:
            The number of the window, and the window. None means that there is none left.
        """
        return next(self._waiting, None)

    def accept(self, session: int, answer: Answer) -> None:
        """Store the only answer to a window.

        Args:
            session: The number of the window.
            answer: The answer.
        """
        self._answers[session] = answer

    @property
    def done(self) -> bool:
        """Whether all windows are answered."""
        return len(self._answers) == self._count

    def result(self) -> list[Answer]:
        """Return the answers.

        Returns:
            One answer to each window, in order.
        """
        return [self._answers[number] for number in range(self._count)]
