"""Runs the `align` command: the times of a known text in its recording."""

import argparse
from pathlib import Path

from tqdm import tqdm

from slimwhisper.errors import OptionError
from slimwhisper.files import open_sink
from slimwhisper.flags import load_chosen
from slimwhisper.forced_alignment.script import read_script
from slimwhisper.outputs import FORMATS, cue_times, formats_of, segment_line
from slimwhisper.trust import NOT_IN_AUDIO
from slimwhisper.types import Transcript


def run_align(arguments: argparse.Namespace) -> int:
    """The `align` command. Returns 0, also if lines are not in the audio."""
    stdin = arguments.audio == "-"
    audio, text = Path("/dev/stdin" if stdin else arguments.audio), Path(arguments.text)
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
            lines,
            language=arguments.language,
            on_duration=lambda _, seconds: bar.reset(round(seconds, 1)),
            on_segments=lambda _, _segments, done: bar.update(round(done, 1) - bar.n),
        )
    count = _print(aligned)  # before the files, which a full disk may refuse after hours
    for format, name in outputs.items():
        sink.write(name, FORMATS[format].render(aligned, {}))
    print(f"{count} lines aligned: {', '.join(map(sink.name, outputs.values()))}")
    return 0


def _print(aligned: Transcript) -> str:
    """Print the lines with their times, and what is missing on either side. Returns "9 of 10"."""
    missing = [s for s in aligned.segments if NOT_IN_AUDIO in s.flags]
    for segment in aligned.segments:
        if NOT_IN_AUDIO not in segment.flags:
            print(segment_line(segment))
    for segment in missing:
        print(f"not in the audio, line {segment.id + 1}: {segment.text}")
    for span in aligned.unscripted:
        times = cue_times(span.start, span.end, ".", hours=False)
        print(f"not in the text, [{times}]: {span.text}")
    count = len(aligned.segments)
    return f"{count - len(missing)} of {count}"
