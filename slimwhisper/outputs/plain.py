"""Text, tables and JSON as openai-whisper writes them, with known speakers; RTTM."""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import TextIO

from slimwhisper.outputs.layout import RECORDING, Layout
from slimwhisper.subtitles.cues import label, shown
from slimwhisper.types import Segment, Transcript

TURN_GAP = 0.5  # seconds between two turns of a speaker; nearer segments are one turn


def has_speakers(transcript: Transcript) -> bool:
    return any(segment.speaker is not None for segment in transcript.segments)


def runs(transcript: Transcript) -> Iterator[tuple[str | None, list[Segment]]]:
    """Runs of segments of one speaker; if there are speakers, without segments without text."""
    speakers = has_speakers(transcript)
    segments = (s for s in transcript.segments if s.text.strip() or not speakers)
    for speaker, run in groupby(segments, key=lambda segment: segment.speaker):
        yield speaker, list(run)


def write_txt(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """A line for each segment; "NAME: " where the speaker changes."""
    for speaker, run in runs(transcript):
        for i, segment in enumerate(run):
            print("" if i else label(speaker), segment.text.strip(), sep="", file=file)


def write_tsv(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """Milliseconds and text; if there are speakers, their names, empty for unknown ones."""
    speakers = has_speakers(transcript)
    print("start", "end", "text", *["speaker"] * speakers, sep="\t", file=file)
    for s in shown(transcript).segments:
        times = (round(1000 * s.start), round(1000 * s.end))
        names = [" ".join((s.speaker or "").split())] * speakers
        print(*times, s.text.strip().replace("\t", " "), *names, sep="\t", file=file)


def write_json(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """The result of `transcribe`."""
    json.dump(transcript, file)


def write_rttm(transcript: Transcript, file: TextIO, layout: Layout) -> None:
    """NIST's RTTM: a line for each turn; empty without speakers. Spaces in names become "_"."""
    recording = _field(str(layout.get(RECORDING) or "")) or "recording"
    for start, end, speaker in _turns(transcript):
        times = f"{start:.3f} {end - start:.3f}"
        print(f"SPEAKER {recording} 1 {times} <NA> <NA> {_field(speaker)} <NA> <NA>", file=file)


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
