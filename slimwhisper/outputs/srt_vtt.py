"""SubRip and WebVTT: https://www.w3.org/TR/webvtt1/.

openai-whisper lays out the cues of each run of one speaker; those of sentences are `subtitles`'.
"""

from collections.abc import Callable, Iterator
from html import escape
from typing import TextIO

from slimwhisper.outputs.layout import HIGHLIGHT, SENTENCES, Layout
from slimwhisper.outputs.plain import runs
from slimwhisper.subtitles.cues import Cue, label, shown, to_cues
from slimwhisper.types import Transcript


def write_srt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write SubRip: "NAME: " where the speaker changes, or always if words are highlighted."""
    cues = _cues(transcript, layout, vtt=False)
    for number, (speaker, named, times, text) in enumerate(cues, start=1):
        print(f"{number}\n{times}\n{label(speaker) if named else ''}{text}\n", file=file)


def write_vtt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Write WebVTT: speakers are voices."""
    print("WEBVTT\n", file=file)
    for speaker, _, times, text in _cues(transcript, layout, vtt=True):
        name = " ".join((speaker or "").split())
        voice = f"<v {_escaped(name)}>" if name else ""
        print(f"{times}\n{voice}{text}\n", file=file)


def _cues(
    transcript: Transcript, layout: Layout, *, vtt: bool
) -> Iterator[tuple[str | None, bool, str, str]]:
    """Each cue's speaker, whether to print the name, its times and its text. With `HIGHLIGHT`,
    there is one for each word, which is underlined.
    """
    if layout.get(SENTENCES):
        mark, write = (".", _escaped) if vtt else (",", _plain)
        for cue in to_cues(transcript, broken=True, labelled=not vtt):
            for start, end, text in _parts(cue, write, layout):
                times = f"{cue_clock(start, mark)} --> {cue_clock(end, mark)}"
                yield cue.speaker, bool(cue.label), times, text
        return
    from slimwhisper.tokens.whisper_package import utils

    writer = (utils.WriteVTT if vtt else utils.WriteSRT)(output_dir="")
    for speaker, run in runs(shown(transcript)):
        result = Transcript("", run, transcript.language)
        for i, (begin, stop, text) in enumerate(writer.iterate_result(result, dict(layout))):
            yield speaker, i == 0 or bool(layout.get(HIGHLIGHT)), f"{begin} --> {stop}", text


def _plain(text: str) -> str:
    return text.replace("-->", "->")


def _escaped(text: str) -> str:
    return escape(text, quote=False)


def _parts(
    cue: Cue, write: Callable[[str], str], layout: Layout
) -> Iterator[tuple[float, float, str]]:
    """The cue, or with `HIGHLIGHT` its text once for each word, which is underlined."""
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


def _underlined(cue: Cue, underlined: int, write: Callable[[str], str]) -> str:
    lines, number = [], 0
    for line in cue.lines:
        texts = []
        for word in line:
            text = word.word.lstrip()
            space = word.word[: len(word.word) - len(text)]
            tagged = number == underlined
            texts.append(f"{space}<u>{write(text)}</u>" if tagged else write(word.word))
            number += 1
        lines.append("".join(texts))
    return "\n".join(lines)


def cue_clock(seconds: float, mark: str) -> str:
    """1.5 -> 00:00:01.500."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{mark}{thousandths:03}"
