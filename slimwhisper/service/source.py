"""What a `Transcriber` decodes, and what it says of it."""

from typing import Any, NamedTuple, Protocol

from slimwhisper.engine.requests import Answer, Request, Window


class SessionSource(Protocol):
    """Something whose windows an engine decodes: a recording, a live stream, some windows.

    Its methods are called by one thread at a time. One that raises ends this source alone; `due`
    and `backlog` must not.
    """

    live: bool  # its windows have deadlines, and go before those of sources whose have none

    @property
    def due(self) -> float | None:
        """If it is live: when its next window should start, in seconds of `time.monotonic`; of
        several sources, the earliest goes first. None: no window can start now.
        """

    @property
    def backlog(self) -> float:
        """If it is live: the seconds of audio that no window has decoded yet."""

    def next_window(self) -> tuple[Any, Window] | None:
        """A window that needs a slot, and its session, which receives the answers. None: there is
        none now; before the language is known, for example, later sessions wait.
        """

    def accept(self, session: Any, answer: Answer) -> Request | None:
        """Process an answer to a session's last request. Returns the next request; None: the
        session is done.
        """

    def report(self) -> Any:
        """What is new after an answer, for a `Progress`; None: nothing."""

    @property
    def done(self) -> bool:
        """Whether all is decoded."""

    def result(self) -> Any:
        """The result, once it is `done`."""

    def close(self) -> None:
        """Free memory and files."""


class Progress(NamedTuple):
    """A source has something new."""

    tag: Any  # as given to `Call.submit`
    news: Any  # of `SessionSource.report`


class Finished(NamedTuple):
    """A source is done."""

    tag: Any
    result: Any  # of `SessionSource.result`


class Failed(NamedTuple):
    """A source, or the engine that it was in, has raised."""

    tag: Any
    error: Exception
    of_engine: bool = False


class Stepped(NamedTuple):
    """An engine has made a step with windows in it."""

    filled: int  # windows
    slots: int
    seconds: float
    preemptions: int = 0  # texts that lost their pages to older ones


Event = Progress | Finished | Failed | Stepped


class Windows:
    """Some windows, each by itself; the result is their answers, in order."""

    live = False
    due = None
    backlog = 0.0

    def __init__(self, windows: list[Window]) -> None:
        self._waiting, self._count = enumerate(windows), len(windows)
        self._answers: dict[int, Answer] = {}

    def next_window(self) -> tuple[int, Window] | None:
        """The next window."""
        return next(self._waiting, None)

    def accept(self, session: int, answer: Answer) -> None:
        """Store a window's only answer."""
        self._answers[session] = answer

    def report(self) -> None:
        """Nothing, before the end."""

    @property
    def done(self) -> bool:
        """Whether all windows are answered."""
        return len(self._answers) == self._count

    def result(self) -> list[Answer]:
        """One answer for each window."""
        return [self._answers[number] for number in range(self._count)]

    def close(self) -> None:
        """Nothing to free."""
