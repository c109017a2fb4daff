"""Transcript -> txt, srt, vtt, tsv, json: openai-whisper's own writers, on a file of ours."""

from typing import TextIO

from slimwhisper.types import Transcript

FORMATS = ("txt", "vtt", "srt", "tsv", "json")


def write_transcript(transcript: Transcript, form: str, file: TextIO) -> None:
    """Write one of `FORMATS` to an open text file."""
    from whisper import utils

    writers = {
        "txt": utils.WriteTXT,
        "vtt": utils.WriteVTT,
        "srt": utils.WriteSRT,
        "tsv": utils.WriteTSV,
        "json": utils.WriteJSON,
    }
    writers[form](output_dir="").write_result(transcript.as_dict(), file=file, options={})
