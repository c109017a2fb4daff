"""The `transcribe` command: recordings in, text on the screen and files in the output folder."""

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.files import find_recordings, prepare_output_dir, write_outputs
from slimwhisper.transcribe import SlimWhisper, load_model, segment_line
from slimwhisper.types import Segment
from slimwhisper.writers import FORMATS


def run_transcribe(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """Transcribe all recordings with the decoding options; 0 when every one succeeded, else 1.

    A bad recording costs one line and no other's work.
    """
    if arguments.threads is not None:
        if arguments.threads < 1:
            raise OptionError(f"threads {arguments.threads} is not a positive number")
        torch.set_num_threads(arguments.threads)
    recordings, errors = find_recordings(arguments.audio, Path(arguments.output_dir))
    for error in errors:
        print(f"slimwhisper: {error}", file=sys.stderr)
    if not recordings:
        return 1
    prepare_output_dir(Path(arguments.output_dir))
    logging.getLogger("slimwhisper.cache").addHandler(logging.NullHandler())  # the summary says it
    model = load_model(
        arguments.model,
        arguments.device,
        arguments.model_dir,
        dtype=arguments.dtype,
        cache=arguments.cache,
        cross_cache=arguments.cross_cache,
        self_cache=arguments.self_cache,
        strict_cache=arguments.strict_cache,
        guard_audio=arguments.guard_audio,
    )
    formats = FORMATS if arguments.output_format == "all" else (arguments.output_format,)
    outputs = {r.path: r for r in recordings}
    live = arguments.verbose and len(recordings) == 1
    seconds: dict[Path, float] = {}

    began = time.perf_counter()
    failed = 0
    bar = tqdm(total=len(recordings), unit="file", disable=None, leave=False)

    def note(source: Path, segments: list[Segment], done: float) -> None:
        seconds[source] = done
        if live:
            _print_segments(segments)
        audio = sum(seconds.values())
        bar.set_postfix_str(f"{audio:.0f} s of audio, {audio / (time.perf_counter() - began):.1f}x")

    results = model.transcribe_many(
        list(outputs),
        batch_size=arguments.batch_size,
        allow_truncated=arguments.allow_truncated,
        on_segments=note,
        **options,
    )
    with bar:
        for path, result in results:
            if not isinstance(result, SlimWhisperError):
                if arguments.verbose and not live:
                    tqdm.write(f"{path}:", file=sys.stdout)
                    _print_segments(result.segments)
                try:
                    write_outputs(result, outputs[path], formats)
                except SlimWhisperError as error:
                    result = error
            if isinstance(result, SlimWhisperError):
                failed += 1
                tqdm.write(f"slimwhisper: {_naming(path, result)}", file=sys.stderr)
            bar.update()
    failed += len(errors)
    spent = time.perf_counter() - began
    print(
        _summary(model, len(recordings) + len(errors), failed, sum(seconds.values()), spent),
        file=sys.stderr,
    )
    return 1 if failed else 0


def _print_segments(segments: list[Segment]) -> None:
    for segment in segments:
        tqdm.write(segment_line(segment), file=sys.stdout)
    sys.stdout.flush()


def _naming(path: Path, error: SlimWhisperError) -> str:
    """The error's line, with the file's name if it has none yet."""
    text = str(error)
    return text if str(path) in text or repr(str(path)) in text else f"{path}: {text}"


def _summary(model: SlimWhisper, files: int, failed: int, audio: float, spent: float) -> str:
    kept, baseline = model.bytes_per_window(), model.baseline_bytes_per_window()
    dtype = str(model.dtype).removeprefix("torch.")
    lines = [
        f"{files - failed} of {files} files transcribed, {failed} failed; "
        f"{audio:.1f} s of audio in {spent:.1f} s ({audio / spent:.1f} x real time)",
        f"{model.name} on {model.device}, {dtype}; cache {'+'.join(model.forms)}: "
        f"{kept / 1e6:.1f} MB a window, {baseline / kept:.1f} times less than {baseline / 1e6:.1f}",
        *model.fallbacks,
    ]
    return "\n".join(lines)
