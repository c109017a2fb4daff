"""Transcripts with speakers: RTTM, and what the names change in whisper's formats.

openai-whisper's writers lay out the cues. None of them has more than one speaker. WebVTT has the
name in each, as a voice; txt and SubRip where the speaker changes, before the text.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import TextIO

from slimwhisper.outputs.layout import HIGHLIGHT, RECORDING, Layout
from slimwhisper.outputs.srt_vtt import voice
from slimwhisper.subtitles.cues import label
from slimwhisper.types import Segment, Transcript

TURN_GAP = 0.5  # seconds: neighbours of one speaker that are nearer are one turn


def has_speakers(transcript: Transcript) -> bool:
    return any(segment.speaker is not None for segment in transcript.segments)


def write_txt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """A line for each segment; "NAME: " where the speaker changes."""
    for speaker, run in _runs(transcript):
        for i, segment in enumerate(run):
            print("" if i else label(speaker), segment.text.strip(), sep="", file=file)


def write_srt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """SubRip; "NAME: " where the speaker changes, or always if words are highlighted."""
    for number, (speaker, first, start, end, text) in enumerate(
        _cues("WriteSRT", transcript, layout), start=1
    ):
        before = label(speaker) if first or layout.get(HIGHLIGHT) else ""
        print(f"{number}\n{start} --> {end}\n{before}{text}\n", file=file)


def write_vtt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """WebVTT with voices: https://www.w3.org/TR/webvtt1/#webvtt-cue-voice-span."""
    print("WEBVTT\n", file=file)
    for speaker, _, start, end, text in _cues("WriteVTT", transcript, layout):
        print(f"{start} --> {end}\n{voice(speaker)}{text}\n", file=file)


def write_tsv(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """whisper's columns, and a fourth with the speaker, empty if nobody is known."""
    print("start", "end", "text", "speaker", sep="\t", file=file)
    for s in transcript.segments:
        times = (round(1000 * s.start), round(1000 * s.end))
        text = s.text.strip().replace("\t", " ")
        print(*times, text, " ".join((s.speaker or "").split()), sep="\t", file=file)


def write_rttm(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """NIST's RTTM: a line for each turn; empty without speakers. Its fields have no spaces: those
    of names become "_".
    """
    recording = _field(str(layout.get(RECORDING) or "")) or "recording"
    for start, end, speaker in _turns(transcript):
        times = f"{start:.3f} {end - start:.3f}"
        print(f"SPEAKER {recording} 1 {times} <NA> <NA> {_field(speaker)} <NA> <NA>", file=file)


def _runs(transcript: Transcript) -> Iterator[tuple[str | None, list[Segment]]]:
    """Neighbouring segments of one speaker; those without text are left out."""
    spoken = (segment for segment in transcript.segments if segment.text.strip())
    for speaker, run in groupby(spoken, key=lambda segment: segment.speaker):
        yield speaker, list(run)


def _cues(
    writer: str, transcript: Transcript, layout: Layout
) -> Iterator[tuple[str | None, bool, str, str, str]]:
    """Each cue's speaker, whether that speaker begins with it, its times and its text."""
    from slimwhisper.tokens.whisper_package import utils

    theirs = getattr(utils, writer)(output_dir="")
    for speaker, run in _runs(transcript):
        result = Transcript("", run, transcript.language).as_dict()
        for i, (start, end, text) in enumerate(theirs.iterate_result(result, dict(layout))):
            yield speaker, i == 0, start, end, text


def _turns(transcript: Transcript) -> list[tuple[float, float, str]]:
    """Start, end and speaker of each turn."""
    turns: list[tuple[float, float, str]] = []
    for segment in transcript.segments:
        if segment.speaker is None or segment.end <= segment.start:
            continue
        start, end, speaker = turns[-1] if turns else (0.0, 0.0, None)
        if speaker == segment.speaker and segment.start - end < TURN_GAP:
            turns[-1] = (start, max(end, segment.end), segment.speaker)
        else:
            turns.append((segment.start, segment.end, segment.speaker))
    return turns


def _field(name: str) -> str:
    return "_".join(name.split())
