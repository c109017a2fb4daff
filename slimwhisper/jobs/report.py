"""Writes `--report`: one page about a whole job, which a browser shows without any other file.

Until the end, a temporary file has a line of JSON for each recording, so the memory does not grow
with the job. The page has these lines as data, and its script adds a few hundred rows at a time to
the document. Nothing from a recording can be markup: the script sets only text, the data has no
"<", and a Content-Security-Policy allows only the page's own script and style.
"""

import base64
import hashlib
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from string import Template
from typing import IO, Any

from slimwhisper.disk import atomic_write
from slimwhisper.errors import OptionError, OutputError, SlimWhisperError
from slimwhisper.files import InputFile, Status, is_uri, output_errors
from slimwhisper.jobs.writers import Files
from slimwhisper.subtitles.cues import is_spaceless
from slimwhisper.text import escape_line
from slimwhisper.trust import REASONS
from slimwhisper.types import Transcript

UNKNOWN = "done in an earlier run, without json output to read"
_SHORTEST = 1.0  # seconds of speech; a speed is not given for less


class JobReport:
    """Collects the results of a job, and writes the page. One thread calls at a time."""

    def __init__(self, path: str) -> None:
        """Raises OptionError unless the path is a local .html file."""
        if is_uri(path) or not path.lower().endswith((".html", ".htm")):
            raise OptionError(f"--report {path}: give a local file whose name ends in .html")
        self.path = Path(path)
        # (path, status) in earlier runs -> seconds, or the error
        self._records: dict[tuple[str, str], Any] = {}
        names = ("done", "failed", "seconds", "words", "segments", "to_check")
        self._sums: dict[str, Any] = dict.fromkeys(names, 0)

    def prepare(self) -> None:
        """Check that the page can be written. Raises OutputError."""
        with self._wrap_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
            tempfile.TemporaryFile(dir=self.path.parent).close()
            # ASCII: bytes of names that are not UTF-8 are written as escapes
            self._lines: IO[str] = tempfile.TemporaryFile("w+", encoding="ascii")

    def load_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Read a journal's lines about earlier runs; the last line of a recording counts."""
        for record in records:
            what = record.get("error" if record["status"] == "failed" else "seconds")
            self._records[str(record.get("path")), record["status"]] = what

    def add(
        self, path: object, seconds: float | None, result: Transcript | SlimWhisperError
    ) -> None:
        """Add a recording that this run transcribed, or a recording or argument that failed."""
        if isinstance(result, Transcript):
            row = _segment_facts(result.segment_rows(), result.language)
            self._add(_row(path, seconds) | row)
        else:
            self._failed(path, seconds, str(result))

    def add_earlier(self, recording: InputFile, status: Status, files: Files) -> None:
        """Add a recording that was done, or failed, in an earlier run, with the facts from the
        journal and from its json output, where these exist.
        """
        recorded = self._records.get((recording.fingerprint.path, status))
        if status == "failed":
            self._failed(recording.path, None, str(recorded or "failed in an earlier run"))
            return
        row = _row(recording.path, recorded if isinstance(recorded, int | float) else None)
        try:
            output = json.loads(files.sink.read(f"{recording.output}.json"))
            flags = output.get("flags", {})
            segments = [{**s, "flags": flags.get(str(s["id"]))} for s in output["segments"]]
            row |= _segment_facts(segments, output["language"])
        except (OutputError, ValueError, TypeError, KeyError, AttributeError):  # or another format
            row["note"] = UNKNOWN
        self._add(row)

    def _failed(self, path: object, seconds: float | None, error: str) -> None:
        self._add(_row(path, seconds) | {"error": escape_line(error.removeprefix(f"{path}: "))})

    def _add(self, row: dict[str, Any]) -> None:
        failed = row["error"] is not None
        self._sums["failed" if failed else "done"] += 1
        self._sums["seconds"] += 0 if failed else row["seconds"] or 0
        self._sums["words"] += 0 if row["characters"] else row["words"] or 0
        self._sums["segments"] += row["segments"] or 0
        self._sums["to_check"] += len(row["check"] or ())
        with self._wrap_errors():
            self._lines.write(_data(row) + "\n")

    def write(
        self, notices: Sequence[str], model: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """Write the page atomically; nothing can be added afterwards. Raises OutputError.

        Arguments:
            notices: lines at its top.
            model: about the model: term -> text.
            options: for decoding, those that differ from their defaults.
        """
        job = {
            **self._sums,
            "when": time.strftime("%Y-%m-%d %H:%M"),
            "reasons": REASONS,
            "notices": [escape_line(line) for line in notices],
            "model": [[term, escape_line(value)] for term, value in model.items()],
            "options": [[name, escape_line(value)] for name, value in options.items()],
        }
        with self._wrap_errors(), self._lines, atomic_write(self.path, text=True) as file:
            self._lines.seek(0)
            file.writelines(_page(job, self._lines))

    def _wrap_errors(self) -> AbstractContextManager[None]:
        return output_errors(f"{self.path}: the report cannot be written", "--report")


def _row(path: object, seconds: float | None) -> dict[str, Any]:
    """A row with only the path and length of a recording."""
    empty = ("language", "speakers", "words", "characters", "speed", "segments", "check")
    row = dict.fromkeys((*empty, "error", "note"))
    return {"path": escape_line(path), "seconds": seconds} | row


def _segment_facts(segments: Sequence[Mapping[str, Any]], language: str) -> dict[str, Any]:
    """The row's fields that follow from the segments of `segment_rows`."""
    spoken = [s for s in segments if s["text"].strip()]
    text = " ".join(s["text"] for s in spoken)
    letters = [c for c in text if not c.isspace()]
    # words cannot be counted in scripts without spaces
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
            [s["start"], s["end"], escape_line(s["text"].strip()), list(s["flags"])]
            for s in spoken
            if s.get("flags")
        ],
    }


def _page(job: Mapping[str, Any], lines: Iterable[str]) -> Iterator[str]:
    """The page in parts: report.html, with the values of its $names, and the data."""
    files = map(Path(__file__).with_suffix, (".html", ".css", ".js"))
    page, style, script = (file.read_text(encoding="utf-8") for file in files)
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
    for number, line in enumerate(lines):
        yield (",\n" if number else "\n") + line.rstrip("\n")
    yield "\n]}" + after


def _data(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value).replace("<", "\\u003c")


def _hash(text: str) -> str:
    """The hash source of an inline script or style (CSP level 2)."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
