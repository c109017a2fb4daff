"""SubRip and WebVTT of sentences: https://www.w3.org/TR/webvtt1/.

Without `--sentences`, openai-whisper's writers write these formats.
"""

from collections.abc import Callable, Iterator
from html import escape
from typing import TextIO

from slimwhisper.outputs.layout import HIGHLIGHT, Layout
from slimwhisper.subtitles.cues import Cue, to_cues
from slimwhisper.types import Transcript


def write_srt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write SubRip; with `HIGHLIGHT`, each word is underlined while it is spoken."""
    number = 0
    for cue in to_cues(transcript, broken=True, labelled=True):
        for start, end, text in _shown(cue, _plain, layout):
            number += 1
            print(f"{number}\n{cue_clock(start, ',')} --> {cue_clock(end, ',')}", file=file)
            print(f"{cue.label}{text}\n", file=file)


def write_vtt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write WebVTT; speakers are voices. `HIGHLIGHT` as for SubRip."""
    print("WEBVTT\n", file=file)
    for cue in to_cues(transcript, broken=True):
        before = voice(cue.speaker)
        for start, end, text in _shown(cue, _escaped, layout):
            print(f"{cue_clock(start, '.')} --> {cue_clock(end, '.')}\n{before}{text}\n", file=file)


def voice(speaker: str | None) -> str:
    """WebVTT's tag of a speaker."""
    name = "" if speaker is None else " ".join(speaker.split())
    return f"<v {escape(name, quote=False)}>" if name else ""


def _plain(text: str) -> str:
    return text.replace("-->", "->")


def _escaped(text: str) -> str:
    return escape(text, quote=False)


def _shown(
    cue: Cue, write: Callable[[str], str], layout: Layout
) -> Iterator[tuple[float, float, str]]:
    """What is shown of a cue, one after the other: the whole, or each word underlined."""
    if not (layout.get(HIGHLIGHT) and cue.timed):
        yield cue.start, cue.end, write(cue.text)
        return
    last = cue.start
    for number, word in enumerate(cue.words):
        if word.start > last:
            yield last, word.start, write(cue.text)
        if word.end > word.start:
            yield word.start, word.end, _underlined(cue, number, write)
        last = word.end
    if cue.end > last:
        yield last, cue.end, write(cue.text)


def _underlined(cue: Cue, chosen: int, write: Callable[[str], str]) -> str:
    lines, number = [], 0
    for line in cue.lines:
        texts = []
        for word in line:
            bare = word.word.lstrip()
            space = word.word[: len(word.word) - len(bare)]
            texts.append(f"{space}<u>{write(bare)}</u>" if number == chosen else write(word.word))
            number += 1
        lines.append("".join(texts))
    return "\n".join(lines)


def cue_clock(seconds: float, mark: str) -> str:
    """1.5 -> 00:00:01.500."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{mark}{thousandths:03}"
