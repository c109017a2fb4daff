"""Adds up the length of a job's audio from file headers, while the job runs."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event

from slimwhisper.jobs.progress import JobTotals


def header_seconds(path: Path) -> float:
    """The length of a file's audio according to its header; 0 if unknown or unreadable."""
    if not path.is_file():  # what is read from a pipe is gone
        return 0.0
    import av  # slow: a single file needs it for some formats only

    # opened by Python, and without protocols, so that FFmpeg cannot treat a name as a URL
    allowed = {"protocol_whitelist": "none"}
    with suppress(OSError, ValueError, av.error.FFmpegError):
        with path.open("rb") as file, av.open(file, mode="r", options=allowed) as container:
            return max(0.0, (container.duration or 0) / 1_000_000)  # FFmpeg counts microseconds
    return 0.0


def survey(paths: Iterable[Path], totals: JobTotals, end: Event) -> None:
    """Add the lengths of files to `totals.surveyed`, until `end` is set.

    Only the progress bar uses them, so an error ends the survey and not the job.
    """
    with suppress(Exception):
        for path in paths:
            if end.is_set():
                return
            totals.surveyed += header_seconds(path)
        totals.complete = True
