"""One press of the page's button: its recordings as jobs of the service, and how they are shown.

What the page shows is a dictionary that goes to the browser again and again, and that
`assets/player.js` draws: {"run": a name of its own, "files": [...], "zip": address or None,
"running": bool}. A file is described at `Part.view`.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from slimwhisper.app.api.errors import as_api_error
from slimwhisper.app.page.outline import outline
from slimwhisper.app.page.results import Result, Results
from slimwhisper.app.service.jobs import (
    Event,
    Failed,
    Finished,
    Job,
    ModelChoice,
    Progress,
    Started,
)
from slimwhisper.app.service.service import Service
from slimwhisper.audio.samples import Samples
from slimwhisper.errors import SlimWhisperError
from slimwhisper.types import Segment, Transcript
from slimwhisper.writers import FORMATS

UPDATE = 0.3  # seconds between two updates, at least
REFRESH = 1.0  # and at most: places in the queue change without an event
ENDED = ("done", "failed", "stopped")


class Part:
    """One recording of a run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "waiting"  # then "working"; at the end one of ENDED
        self.message = ""  # what went wrong
        self.done = 0.0  # seconds
        self.seconds = 0.0
        self.segments: list[list[Any]] = []
        self.text = ""
        self.language = ""
        self.peaks = ""
        self.job: Job | None = None
        self.result: Result | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def fail(self, error: SlimWhisperError) -> None:
        """The error's one line is shown at this recording, without its name."""
        message = str(as_api_error(error)).removeprefix(f"{self.name}: ")
        self.state, self.message = "failed", message[:1].upper() + message[1:]

    def look(self, samples: Samples) -> None:
        """In a reading thread."""
        self.peaks = outline(samples)

    def take(self, event: Event) -> None:
        """Something happened to the job."""
        match event:
            case Started(seconds=seconds):
                self.state, self.seconds = "working", seconds
            case Progress(segments=segments, done=done):
                self.done = done
                self.segments += map(_segment, segments)
                self.text += "".join(segment.text for segment in segments)
            case Finished(transcript=transcript, seconds=seconds):
                self.state, self.done, self.seconds = "done", seconds, seconds
                self._finish(transcript)
            case Failed(error=error):
                self.fail(error)

    def _finish(self, transcript: Transcript) -> None:
        self.segments = [_segment(segment) for segment in transcript.segments]
        self.text, self.language = transcript.text, transcript.language
        if self.result is not None:
            self.result.transcript = transcript

    def view(self, service: Service) -> dict[str, Any]:
        """What the browser is told.

        segments: [start, end, text, [[start, end, word], ...] or None] each, in seconds. peaks: see
        `outline`. Addresses are relative to the server's root.
        """
        token = self.result.token if self.result is not None else None
        waits = self.state == "waiting"
        finished = self.state == "done"
        return {
            "name": self.name,
            "state": self.state,
            "message": self.message,
            "place": service.position(self.job) if waits and self.job is not None else 0,
            "loading": waits and service.loading,
            "done": round(self.done, 2),
            "seconds": round(self.seconds, 2),
            "text": self.text.strip(),
            "language": self.language,
            "segments": self.segments,
            "peaks": self.peaks,
            "audio": f"page/audio/{token}" if token and self.peaks else None,
            "downloads": {f: f"page/result/{token}.{f}" for f in FORMATS} if finished else {},
        }


class Run:
    """Recordings that were sent together."""

    def __init__(
        self,
        service: Service,
        results: Results,
        recordings: Sequence[tuple[Path, str]],
        model: ModelChoice,
        options: dict[str, Any],
        user: str,
    ) -> None:
        """Hands all in. recordings: files, and their owner's names for them."""
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[Part, Event] | None] = asyncio.Queue()
        self.parts = [Part(name) for _, name in recordings]
        for part, (path, name) in zip(self.parts, recordings, strict=True):
            try:
                part.result = results.add(path, name)
            except OSError:
                part.state, part.message = "failed", "Not here any more; add it again"
                continue
            kept = part.result.path
            part.job = Job(kept, name, model, options, user, self._listener(part), part.look)
            try:
                service.submit(part.job)
            except SlimWhisperError as error:
                part.fail(error)
        self._group = results.group([p.result for p in self.parts if p.result is not None])

    def stop(self) -> None:
        """Cancel what has not ended; for a second time, nothing."""
        for part in self.parts:
            if not part.ended:
                part.state = "stopped"
            if part.job is not None:
                self._service.cancel(part.job)
        self._events.put_nowait(None)

    @property
    def running(self) -> bool:
        return not all(part.ended for part in self.parts)

    async def updates(self) -> AsyncGenerator[dict[str, Any], None]:
        """The view, whenever there is something new, to the last. Left early, all is cancelled."""
        try:
            while self.running:
                yield self.view()
                due = time.monotonic() + UPDATE
                self._take(await self._next())
                await asyncio.sleep(max(due - time.monotonic(), 0))
                while not self._events.empty():
                    self._take(self._events.get_nowait())
            yield self.view()
        finally:
            self.stop()

    def view(self) -> dict[str, Any]:
        """See this module."""
        files = [part.view(self._service) for part in self.parts]
        done = sum(part.state == "done" for part in self.parts)
        several = done > 1 and not self.running
        return {
            "run": self._group[:8],
            "files": files,
            "zip": f"page/results/{self._group}.zip" if several else None,
            "running": self.running,
        }

    @property
    def text(self) -> str:
        """All texts; with several recordings, each below its name."""
        if len(self.parts) == 1:
            return self.parts[0].text.strip()
        return "\n\n".join(f"{part.name}\n{part.text.strip()}" for part in self.parts)

    def _listener(self, part: Part) -> Callable[[Event], None]:
        def listener(event: Event) -> None:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (part, event))

        return listener

    async def _next(self) -> tuple[Part, Event] | None:
        try:
            return await asyncio.wait_for(self._events.get(), REFRESH)
        except TimeoutError:
            return None

    def _take(self, found: tuple[Part, Event] | None) -> None:
        if found is not None and not found[0].ended:
            found[0].take(found[1])


class Runs:
    """What runs now, by the browser's session."""

    def __init__(self) -> None:
        self._by_session: defaultdict[str, set[Run]] = defaultdict(set)

    def add(self, session: str, run: Run) -> None:
        """Remember a run until `remove`."""
        self._by_session[session].add(run)

    def remove(self, session: str, run: Run) -> None:
        """Forget a run."""
        self._by_session[session].discard(run)
        if not self._by_session[session]:
            del self._by_session[session]

    def __len__(self) -> int:
        return sum(map(len, self._by_session.values()))

    def stop(self, session: str) -> None:
        """Cancel all that a session runs."""
        for run in list(self._by_session.get(session, ())):
            run.stop()


def _segment(segment: Segment) -> list[Any]:
    words: list[list[Any]] | None = None
    if segment.words is not None:
        words = [[w.start, w.end, w.word] for w in segment.words]
    return [segment.start, segment.end, segment.text.strip(), words]
