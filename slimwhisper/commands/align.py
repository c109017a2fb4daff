"""Runs the `align` command: the times of a known text in its recording."""

import argparse
from pathlib import Path

from tqdm import tqdm

from slimwhisper.audio_formats.names import AUDIO_SUFFIXES
from slimwhisper.errors import AudioError, OptionError
from slimwhisper.files import open_sink
from slimwhisper.flags import load_chosen
from slimwhisper.forced_alignment.script import CUES, read_script
from slimwhisper.outputs import FORMATS, cue_times, formats_of, segment_line
from slimwhisper.trust import NOT_IN_AUDIO
from slimwhisper.types import Transcript


def run_align(arguments: argparse.Namespace) -> int:
    """The `align` command. Returns 0, also if some lines are not in the audio."""
    stdin = arguments.audio == "-"
    audio, text = Path("/dev/stdin" if stdin else arguments.audio), Path(arguments.text)
    if text.suffix.lower() in AUDIO_SUFFIXES:
        raise OptionError(f"{text}: is a recording; give AUDIO first, then TEXT")
    lines = read_script(text)
    sink = open_sink(arguments.output_dir)
    outputs = {f: f"{audio.stem}.{f}" for f in formats_of(arguments.output_format)}
    for name in outputs.values() if sink.local is not None else ():
        path = Path(sink.name(name))
        if path.exists() and (path.samefile(text) or (audio.exists() and path.samefile(audio))):
            raise OptionError(f"{path}: would be overwritten; choose another --output_dir")
    sink.check()
    model = load_chosen(arguments)
    with tqdm(unit="s", disable=None, dynamic_ncols=True) as bar:
        aligned = model.align(
            audio,
            list(lines.values()),
            language=arguments.language,
            allow_truncated=arguments.allow_truncated,
            on_duration=lambda _, seconds: bar.reset(round(seconds, 1)),
            on_segments=lambda _, _segments, done: bar.update(round(done, 1) - bar.n),
        )
    unit = "cue" if text.suffix.lower() in CUES else "line"
    # before the files, which a full disk may refuse after hours
    count = _print(aligned, [f"{unit} {number}" for number in lines])
    if not count:
        raise AudioError(f"{audio}: nothing of {text} was heard; take a larger --model")
    for format, name in outputs.items():
        sink.write(name, FORMATS[format].render(aligned, {}))
    where = ", ".join(map(sink.name, outputs.values()))
    print(f"{count} of {len(lines)} {unit}s aligned: {where}")
    return 0


def _print(aligned: Transcript, names: list[str]) -> int:
    """Print the lines with their times, and what is missing on either side; returns how many lines
    have times. names: of all lines.
    """
    missing = [s for s in aligned.segments if NOT_IN_AUDIO in s.flags]
    for segment in aligned.segments:
        if NOT_IN_AUDIO not in segment.flags:
            print(segment_line(segment))
    for segment in missing:
        print(f"not in the audio, {names[segment.id]}: {segment.text}")
    for span in aligned.unscripted:
        times = cue_times(span.start, span.end, ".", hours=False)
        print(f"not in the text, [{times}]: {span.text}")
    return len(aligned.segments) - len(missing)
