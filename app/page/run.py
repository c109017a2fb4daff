"""Runs the recordings of one press of the page's button, and builds the page's view of them.

The view is a dictionary, sent to the browser at each update and drawn by `assets/player.js`:
{"run": an id, "files": [...], "zip": address or None, "running": bool, "reasons": {flag: text}}.
`RunPart.view` describes a file.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slimwhisper.app.api.errors import as_api_error
from slimwhisper.app.page.transcripts.edits import Edits
from slimwhisper.app.page.transcripts.results import PageResult, PageResults
from slimwhisper.app.page.transcripts.views import outline, segment_view
from slimwhisper.app.service.jobs import Event, Job, JobStarted, ModelChoice
from slimwhisper.app.service.service import Service
from slimwhisper.audio.samples import Samples
from slimwhisper.errors import SlimWhisperError
from slimwhisper.service.source import Failed, Finished, Progress
from slimwhisper.trust import REASONS

UPDATE = 0.3  # seconds between two updates
ENDED = ("done", "failed", "stopped")


class RunPart:
    """One recording of a run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "waiting"  # then "working", then one of ENDED
        self.message = ""  # the error, if it failed
        self.done = 0.0  # seconds of audio
        self.seconds = 0.0  # of audio
        self.segments: list[list[Any]] = []
        self.text = ""
        self.language = ""
        self.unscripted: list[list[Any]] = []
        self.peaks = ""
        self.job: Job | None = None
        self.result: PageResult | None = None

    @property
    def ended(self) -> bool:
        """Whether it is done, has failed or was stopped."""
        return self.state in ENDED

    def fail(self, error: Exception) -> None:
        """Show an error's message, without the recording's name."""
        message = str(as_api_error(error)).removeprefix(f"{self.name}: ")
        self.state, self.message = "failed", message[:1].upper() + message[1:]

    def draw(self, samples: Samples) -> None:
        """Compute the outline of samples, float32 [n] at 16 kHz. Called in a reading thread."""
        self.peaks = outline(samples)

    def update(self, event: Event) -> None:
        """Apply an event of the job, unless the part has ended."""
        match event:
            case _ if self.ended:
                pass
            case JobStarted(seconds=seconds):
                self.state, self.seconds = "working", seconds
            case Progress(_, (segments, done)):
                self.done = done
                self.segments += map(segment_view, segments)
                self.text += "".join(segment.text for segment in segments)
            case Finished(_, transcript):
                self.state, self.done = "done", self.seconds
                self.language, self.text = transcript.language, transcript.text
                spans = transcript.unscripted
                self.unscripted = [[span.start, span.end, span.text] for span in spans]
                self.segments = [segment_view(segment) for segment in transcript.segments]
                assert self.job is not None and self.result is not None
                self.result.edits = Edits(transcript)
                self.result.sentences = bool(self.job.options.get("sentences"))
            case Failed(_, error):
                self.fail(error)

    def view(self, service: Service) -> dict[str, Any]:
        """The view of the recording.

        segments: see `segment_view`. peaks: see `outline`. position: in the queue, from 1; 0: not
        waiting. edit: the address for corrections, once it is done; from then on the browser's text
        is newer. downloads: addresses by format. Addresses are relative to the server's root.
        unscripted: [start, end, text] of speech that is not in the text that was aligned.
        """
        token = self.result.token if self.result is not None else None
        formats = self.result.formats() if self.result is not None else []
        waits = self.state == "waiting"
        shown = ("name", "state", "message", "language", "segments", "unscripted", "peaks")
        return {
            **{name: getattr(self, name) for name in shown},
            "position": service.jobs.position(self.job) if waits and self.job is not None else 0,
            "loading": waits and service.engines.loading,
            "done": round(self.done, 2),
            "seconds": round(self.seconds, 2),
            "text": self.text.strip(),
            "edit": f"page/edit/{token}" if self.state == "done" else None,
            "audio": f"page/audio/{token}" if token and self.peaks else None,
            "downloads": {f.name: f"page/result/{token}.{f.name}" for f in formats},
        }


class Run:
    """The recordings of one press of the button."""

    def __init__(
        self,
        service: Service,
        results: PageResults,
        recordings: Sequence[tuple[Path, str]],
        model: ModelChoice,
        options: dict[str, Any],
        user: str,
        script: Sequence[str] = (),
    ) -> None:
        """Submit all recordings. recordings: (path, the user's name for the file).

        options: fields of `slimwhisper.Options`. script: as in `Job`. Needs a running event loop.
        """
        self._service = service
        self._loop = asyncio.get_running_loop()
        self.parts = [RunPart(name) for _, name in recordings]
        self._group = secrets.token_urlsafe(24)
        for part, (path, name) in zip(self.parts, recordings, strict=True):
            try:
                part.result = results.add(path, name, self._group)
            except OSError:
                part.state, part.message = "failed", "No longer on the server; add it again"
                continue
            stored, listener = part.result.path, partial(self._listen, part)
            about = (stored, name, model, options, user)
            part.job = Job(*about, listener, part.draw, script=script)
            try:
                service.submit(part.job)
            except SlimWhisperError as error:
                part.fail(error)

    def stop(self) -> None:
        """Cancel the parts that have not ended. A second call does nothing."""
        for part in self.parts:
            if not part.ended:
                part.state = "stopped"
            if part.job is not None:
                self._service.cancel(part.job)

    @property
    def running(self) -> bool:
        """Whether a part has not ended."""
        return not all(part.ended for part in self.parts)

    async def updates(self) -> AsyncGenerator[dict[str, Any], None]:
        """The view every `UPDATE` seconds, and at the end. Closing the generator stops the run."""
        try:
            while self.running:
                yield self.view()
                await asyncio.sleep(UPDATE)
            yield self.view()
        finally:
            self.stop()

    def view(self) -> dict[str, Any]:
        """The view of the run; see the top of this file."""
        files = [part.view(self._service) for part in self.parts]
        several = sum(part.state == "done" for part in self.parts) > 1 and not self.running
        return {
            "run": self._group[:8],
            "files": files,
            "zip": f"page/results/{self._group}.zip" if several else None,
            "running": self.running,
            "reasons": REASONS,
        }

    @property
    def text(self) -> str:
        """The text; with several recordings, each text follows its file's name."""
        if len(self.parts) == 1:
            return self.parts[0].text.strip()
        return "\n\n".join(f"{part.name}\n{part.text.strip()}" for part in self.parts)

    def _listen(self, part: RunPart, event: Event) -> None:
        """Called in the service's thread."""
        self._loop.call_soon_threadsafe(part.update, event)
