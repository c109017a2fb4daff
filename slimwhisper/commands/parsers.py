"""Defines the flags of the smaller commands; see also `jobs/flags.py`, `serve_flags.py`."""

from typing import Any

from slimwhisper.cache.forms import PRESETS
from slimwhisper.flags import (
    ADAPTER,
    MODEL,
    MODEL_DIR,
    THREADS,
    add_main_flags,
    add_model_flags,
    positive,
)
from slimwhisper.outputs import FORMATS
from slimwhisper.types import DTYPES

BATCHES = (1, 8, 16, 64)


def add_bench(commands: Any) -> None:
    """The parser of `bench`."""
    p = commands.add_parser(
        "bench",
        description="Decodes recordings of noise, a fixed number of tokens each, with every cache "
        "at every batch size, in turn. Prints medians, the machine, and one line of JSON.",
    )
    caches = tuple(reversed(PRESETS))
    p.add_argument("--model", help=f"{MODEL} [random weights in the shape of tiny]")
    help = "random weights in the shape that --model names"
    p.add_argument("--random", action="store_true", help=help)
    add_model_flags(p, caches=False)
    p.add_argument("--threads", **THREADS)
    p.add_argument("--cache", nargs="+", choices=caches, default=list(caches), help="[all]")
    p.add_argument(
        *("--batch", "--batch_size"),
        nargs="+",
        type=positive,
        default=list(BATCHES),
        help="windows decoded together [1 8 16 64]",
    )
    p.add_argument("--tokens", type=positive, default=100, help="tokens per window [100]")
    p.add_argument("--windows", type=positive, help="in all [twice the batch, 4 to 128 or batch]")
    p.add_argument("--rounds", type=positive, default=3, help="to take medians of [3]")
    p.add_argument("--beam_size", type=positive, help="beams [greedy]")
    help = "also measure openai-whisper, one by one, on the files of the largest batch"
    p.add_argument("--against_whisper", action="store_true", help=help)
    p.add_argument("--json", action="store_true", help="print only the line of JSON")


def add_align(commands: Any) -> None:
    """The parser of `align`."""
    p = commands.add_parser(
        "align",
        description="Writes the lines of a text, or the cues of a subtitle file, with their times. "
        "Lists lines that are not in the audio, and speech that is not in the text.",
    )
    p.add_argument("audio", metavar="AUDIO", help="recording of any length; - for standard input")
    p.add_argument("text", metavar="TEXT", help=".txt, .srt, .vtt or .lrc, whose times are ignored")
    help = "of the file NAME.FORMAT, with the recording's name [srt]"
    p.add_argument(*("-f", "--output_format"), choices=("all", *FORMATS), default="srt", help=help)
    p.add_argument("-o", "--output_dir", default=".", help="folder to write it to [.]")
    p.add_argument("--language", help="code or name [detected]")
    add_main_flags(p, batches=False)
    add_model_flags(p)


def add_models(commands: Any) -> None:
    """The parser of `models`."""
    p = commands.add_parser(
        "models", description="Lists the names that --model knows. Nothing is downloaded."
    )
    p.add_argument("--model_dir", **MODEL_DIR)
    p.add_argument("--json", action="store_true", help="print JSON")


def add_convert(commands: Any) -> None:
    """The parser of `convert`."""
    p = commands.add_parser(
        "convert",
        description="Writes a model as a .pt file for openai-whisper, or as a folder for "
        "transformers with tokenizer and settings; reads it back and compares.",
    )
    p.add_argument("input", metavar="IN", help=f"{MODEL}; also faster-whisper's and whisper.cpp's")
    p.add_argument("output", metavar="OUT", help="NAME.pt, or a folder")
    p.add_argument("--dtype", choices=DTYPES, help="of the weights [as they are]")
    p.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    p.add_argument("--adapter", **ADAPTER)
    p.add_argument("--model_dir", **MODEL_DIR)


def add_doctor(commands: Any) -> None:
    """The parser of `doctor`."""
    p = commands.add_parser(
        "doctor", description="Checks the installation, and says how to fix it."
    )
    p.add_argument("--threads", **THREADS)
    p.add_argument("--json", action="store_true", help="print JSON")
