"""SubRip and WebVTT as utterances end: a cue for each segment, numbered on."""

from html import escape
from typing import TextIO

from slimwhisper.live.types import Ended, LiveEvent
from slimwhisper.outputs.srt_vtt import cue_clock


class Cues:
    """Writes the cues of a format, "srt" or "vtt"."""

    def __init__(self, file: TextIO, format: str) -> None:
        self._file, self._format = file, format
        self._number = 0
        if format == "vtt":
            print("WEBVTT\n", file=file, flush=True)

    def event(self, event: LiveEvent) -> None:
        if not isinstance(event, Ended):
            return
        for segment in event.segments:
            text = segment.text.strip()
            if not text:
                continue
            self._number += 1
            if self._format == "srt":
                print(self._number, file=self._file)
                text, mark = text.replace("-->", "->"), ","
            else:
                text, mark = escape(text, quote=False), "."
            start, end = cue_clock(segment.start, mark), cue_clock(segment.end, mark)
            print(f"{start} --> {end}\n{text}\n", file=self._file, flush=True)

    def close(self) -> None:
        pass
