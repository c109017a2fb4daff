"""Committed text, and events as JSON, line by line."""

import json
from dataclasses import asdict
from typing import Any, TextIO

from slimwhisper.live.types import Ended, Failed, LiveEvent, SpeechStarted, SpeechStopped, Text
from slimwhisper.text import printable
from slimwhisper.types import Transcript

NAMES = {
    SpeechStarted: "speech_started",
    SpeechStopped: "speech_stopped",
    Text: "text",
    Ended: "ended",
    Failed: "failed",
}


class TextLines:
    """A line for each utterance, written as it is committed."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._begun = False  # a line

    def event(self, event: LiveEvent) -> None:
        match event:
            case Text(committed=text) if text:
                self._add(text)
            case Ended(text=text):
                if not self._begun:
                    self._add(text)
                self.close()

    def close(self) -> None:
        if self._begun:
            print(file=self._file, flush=True)
        self._begun = False

    def _add(self, text: str) -> None:
        text = text if self._begun else text.lstrip()
        self._begun = self._begun or bool(text)
        print(printable(text, self._file), end="", file=self._file, flush=True)


class JsonLines:
    """One JSON object a line: `event`, and the event's fields."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def event(self, event: LiveEvent) -> None:
        fields: dict[str, Any]
        match event:
            case Failed(error=error):
                fields = {"message": str(error)}
            case Ended():
                spoken = Transcript(event.text, list(event.segments), event.language)
                fields = {"utterance": event.utterance, **spoken.as_dict()}
            case SpeechStarted():  # nobody calls `commit` or `clear` here
                fields = {"utterance": event.utterance, "start": event.start}
            case _:
                fields = asdict(event)
        print(json.dumps({"event": NAMES[type(event)], **fields}), file=self._file, flush=True)

    def close(self) -> None:
        pass
