"""`--report`: one page about a whole job, which a browser shows without any other file.

Facts of each recording wait in a temporary file, as a line of JSON each, so a job of any size takes
no memory for them. The page has them as data; its script puts some hundred rows at a time into the
document. Nothing of a recording is markup: the script sets text only, the data has no "<", and a
Content-Security-Policy allows the page's own script and style and nothing else.
"""

import base64
import hashlib
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import IO, Any

from slimwhisper.atomic import atomic_write
from slimwhisper.errors import OptionError, OutputError, SlimWhisperError
from slimwhisper.jobs.results.sinks import Sink
from slimwhisper.storage.files import InputFile
from slimwhisper.storage.stamps import Status
from slimwhisper.storage.uris import is_uri
from slimwhisper.subtitles.scripts import is_spaceless
from slimwhisper.text import shown
from slimwhisper.trust import REASONS
from slimwhisper.types import Transcript

SUFFIXES = (".html", ".htm")
UNKNOWN = "done in an earlier run, which left no json output to read"
_SHORTEST = 1.0  # seconds of speech from which a speed is told


class Report:
    """Collects what a job does, and writes the page. One thread calls at a time."""

    def __init__(self, path: str) -> None:
        """Raises OptionError for what is no such file."""
        if is_uri(path) or not path.lower().endswith(SUFFIXES):
            raise OptionError(f"--report {path}: give a file of this machine that ends in .html")
        self.path = Path(path)
        # (path, status) in earlier runs -> seconds, or why it failed
        self._earlier: dict[tuple[str, str], Any] = {}
        self._sums: dict[str, Any] = dict.fromkeys(
            ("done", "failed", "seconds", "words", "segments", "to_check"), 0
        )

    def prepare(self) -> None:
        """Find out whether the page can be written. Raises OutputError."""
        with self._reported():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass
            # ASCII: names that are not UTF-8 are escapes
            self._lines: IO[str] = tempfile.TemporaryFile("w+", encoding="ascii")

    def remember(self, records: Iterable[Mapping[str, Any]]) -> None:
        """What a journal says of the recordings of earlier runs; the last line of one counts."""
        for record in records:
            what = record.get("error" if record["status"] == "failed" else "seconds")
            self._earlier[str(record.get("path")), record["status"]] = what

    def add(
        self, path: object, seconds: float | None, result: Transcript | SlimWhisperError
    ) -> None:
        """A recording that this run has transcribed, or could not; or an argument."""
        if isinstance(result, Transcript):
            said = result.as_dict()
            self._add(_row(path, seconds) | _said(said["segments"], said["language"]))
        else:
            self._failed(path, seconds, str(result))

    def settled(self, recording: InputFile, status: Status, sink: Sink) -> None:
        """A recording that an earlier run has done, or failed to do: what the journal and its
        output in json say, if there are any.
        """
        known = self._earlier.get((recording.stamp.path, status))
        if status == "failed":
            self._failed(recording.path, None, str(known or "failed in an earlier run"))
            return
        row = _row(recording.path, known if isinstance(known, int | float) else None)
        try:
            found = json.loads(sink.read(recording, "json") or b"null")
            row |= _said(found["segments"], found["language"])
        except (ValueError, TypeError, KeyError, AttributeError):  # none, or not as we write it
            row["note"] = UNKNOWN
        self._add(row)

    def _failed(self, path: object, seconds: float | None, error: str) -> None:
        reason = error.removeprefix(f"{path}: ")
        self._add(_row(path, seconds) | {"error": shown(reason)})

    def _add(self, row: dict[str, Any]) -> None:
        failed = row["error"] is not None
        self._sums["failed" if failed else "done"] += 1
        self._sums["seconds"] += 0 if failed else row["seconds"] or 0
        self._sums["words"] += 0 if row["characters"] else row["words"] or 0
        self._sums["segments"] += row["segments"] or 0
        self._sums["to_check"] += len(row["check"] or ())
        with self._reported():
            self._lines.write(_data(row) + "\n")

    def write(
        self, notices: Sequence[str], model: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """Write the page whole, or not at all; nothing can be added then. Raises OutputError.

        Arguments:
            notices: lines at its top.
            model: what it says about the model: term -> text.
            options: of decoding, that differ from their defaults.
        """
        job = {
            **self._sums,
            "when": time.strftime("%Y-%m-%d %H:%M"),
            "reasons": REASONS,
            "notices": [shown(line) for line in notices],
            "model": [[term, shown(value)] for term, value in model.items()],
            "options": [[name, shown(value)] for name, value in options.items()],
        }
        with self._reported(), self._lines, atomic_write(self.path, text=True) as file:
            self._lines.seek(0)
            file.writelines(_page(job, self._lines))

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self.path}: the report cannot be written ({error.strerror}); choose another "
                "--report"
            ) from error


def _row(path: object, seconds: float | None) -> dict[str, Any]:
    """A recording of which nothing but this is known."""
    empty = ("language", "speakers", "words", "characters", "speed", "segments", "check")
    row = dict.fromkeys((*empty, "error", "note"))
    return {"path": shown(path), "seconds": seconds} | row


def _said(segments: Sequence[Mapping[str, Any]], language: str) -> dict[str, Any]:
    """What the segments of a result dictionary say."""
    spoken = [s for s in segments if s["text"].strip()]
    text = " ".join(s["text"] for s in spoken)
    letters = [c for c in text if not c.isspace()]
    # words cannot be counted where none is written apart
    in_characters = 2 * sum(map(is_spaceless, letters)) > len(letters)
    words = len(letters) if in_characters else len(text.split())
    seconds = sum(s["end"] - s["start"] for s in spoken)
    return {
        "language": language,
        "speakers": list(dict.fromkeys(s["speaker"] for s in spoken if s.get("speaker"))),
        "words": words,
        "characters": in_characters,
        "speed": round(60 * words / seconds) if seconds >= _SHORTEST else None,
        "segments": len(spoken),
        "check": [
            [s["start"], s["end"], shown(s["text"].strip()), list(s["flags"])]
            for s in spoken
            if s.get("flags")
        ],
    }


def _page(job: Mapping[str, Any], lines: Iterable[str]) -> Iterator[str]:
    """The page in parts: report.html, with the values of its $names, and the data."""
    here = Path(__file__)
    page, style, script = (
        here.with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".html", ".css", ".js")
    )
    parts = {
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'",
        "counts": f"{job['done']} files transcribed, {job['failed']} failed, "
        f"{job['to_check']} segments to check.",
        "style": style,
        "script": script,
    }
    before, after = (Template(part).substitute(parts) for part in page.split("[data]"))
    yield before + '{"job": ' + _data(job) + ', "files": ['
    separator = "\n"
    for line in lines:
        yield separator + line.rstrip("\n")
        separator = ",\n"
    yield "\n]}" + after


def _data(value: Any) -> str:
    """JSON that a script element can hold."""
    return json.dumps(value).replace("<", "\\u003c")


def _hash(text: str) -> str:
    """How a policy names what is inline (CSP level 2)."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
