"""Adds up the length of a job's audio from file headers, while the job already runs."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from slimwhisper.errors import SlimWhisperError
from slimwhisper.jobs.inputs.inputs import InputFile


def header_seconds(path: Path) -> float:
    """The length of a file's audio according to its header; 0 if unknown or unreadable."""
    import av  # slow: a single file needs it for some formats only

    try:
        # open the file ourselves and allow no protocols, so that FFmpeg cannot take a name for a
        # pattern or a URL
        with (
            path.open("rb") as file,
            av.open(file, mode="r", options={"protocol_whitelist": "none"}) as container,
        ):
            if container.duration is not None:
                return max(0.0, container.duration / 1_000_000)  # FFmpeg counts microseconds
            for stream in container.streams.audio:
                if stream.duration is not None and stream.time_base is not None:
                    return max(0.0, float(stream.duration * stream.time_base))
    except (OSError, ValueError, av.error.FFmpegError):
        pass
    return 0.0


class Survey:
    """Adds up the lengths of the recordings of a walk, in its own thread.

    Only the progress bar uses it, so an error in it ends the survey and not the job.
    """

    def __init__(
        self,
        walk: Callable[[], Iterator[InputFile | SlimWhisperError]],
        wanted: Callable[[InputFile], bool],
    ) -> None:
        self.seconds = 0.0
        self.complete = False
        self._walk = walk
        self._wanted = wanted
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="survey", daemon=True)

    def start(self) -> None:
        """Start in the background."""
        self._thread.start()

    def close(self) -> None:
        """Stop the survey, waiting at most a second for a header that hangs."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(1)

    def _run(self) -> None:
        try:
            for found in self._walk():
                if self._closing.is_set():
                    return
                if isinstance(found, InputFile) and self._wanted(found):
                    if isinstance(found.path, Path):
                        self.seconds += header_seconds(found.path)
            self.complete = True
        except Exception:
            return  # the bar does without a total
