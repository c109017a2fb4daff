"""LRC, the format of lyrics, with the times of words if they are known ("enhanced LRC")."""

import re
from typing import TextIO

from slimwhisper.outputs.layout import Layout
from slimwhisper.subtitles.cues import to_cues
from slimwhisper.types import Transcript

_SILENCE = 1.5  # seconds after which a line is cleared
_TAG = re.compile(r"[\[<](?=\d+:\d)")  # text that would be read as a time


def write_lrc(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write a line for each segment, `[mm:ss.xx]text`; minutes do not end at 60 or 99."""
    end = None
    print(f"[la:{transcript.language}]\n[re:slimwhisper]", file=file)
    for cue in to_cues(transcript, broken=False, labelled=True):
        if end is not None and cue.start - end >= _SILENCE:
            print(f"[{_clock(end)}]", file=file)
        words = [_TAG.sub("(", word.word) for word in cue.words]
        text = "".join(words)
        if cue.timed:
            times = [f"<{_clock(word.start)}>" for word in cue.words]
            text = "".join(map("".join, zip(times, words, strict=True))) + f"<{_clock(cue.end)}>"
        print(f"[{_clock(cue.start)}]{_TAG.sub('(', cue.label)}{text}", file=file)
        end = cue.end
    if end is not None:
        print(f"[{_clock(end)}]", file=file)


def _clock(seconds: float) -> str:
    whole, hundredths = divmod(round(seconds * 100), 100)
    return f"{whole // 60:02}:{whole % 60:02}.{hundredths:02}"
