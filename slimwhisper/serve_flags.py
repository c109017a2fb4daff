"""The flags of the `serve` command."""

import argparse
import os
from typing import Any

from slimwhisper.bench_flags import positive
from slimwhisper.flags import MODEL, add_cache_flags, add_model_flags


def login(text: str) -> tuple[str, str]:
    """A user and a password from user:password."""
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise argparse.ArgumentTypeError("give user:password")
    return user, password


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def add_serve(commands: Any) -> None:
    """The parser of `serve`."""
    p = commands.add_parser(
        "serve",
        help="a web page, and OpenAI's audio API over HTTP",
        description="One server with one model: all users' requests share its batch. "
        "See docs/serving.md.",
    )
    p.add_argument("--model", default="turbo", help=f"{MODEL} [%(default)s]")
    add_model_flags(p)
    p.add_argument("--device", help="such as cpu, cuda or cuda:1 [a GPU where there is one]")
    p.add_argument("--threads", type=int, default=0, help="CPU threads [0: all cores]")
    p.add_argument("--batch_size", type=positive, help="windows at a time [64; 16 on a CPU]")
    p.add_argument(
        *("--allow-download", "--allow_download"),
        action="store_true",
        help="users may choose models that are not installed yet",
    )
    p.add_argument(
        *("--unload-after", "--unload_after"),
        type=seconds,
        help="idle seconds after which the model is given up [never]",
    )
    add_cache_flags(p)
    g = p.add_argument_group("who reaches it")
    g.add_argument("--host", default="127.0.0.1", help="address to listen at [%(default)s]")
    g.add_argument("--port", type=int, default=7860, help="[%(default)s]")
    g.add_argument("--root-path", "--root_path", default="", help="behind a proxy, its path")
    g.add_argument("--auth", type=login, help="user:password, for page and API [none]")
    g.add_argument(
        *("--api-key", "--api_key"),
        default=os.environ.get("SLIMWHISPER_API_KEY") or None,
        help="for the API, and the page's password [SLIMWHISPER_API_KEY, else none]",
    )
    g.add_argument(
        *("--no-page", "--no_page"),
        dest="page",
        action="store_false",
        help="the API alone, without the page",
    )
    g = p.add_argument_group("what it takes")
    g.add_argument(
        *("--max-upload", "--max_upload"),
        type=positive,
        default=1024,
        help="MB of a file [%(default)s]",
    )
    g.add_argument(
        *("--max-minutes", "--max_minutes"),
        type=positive,
        default=240,
        help="of a recording [%(default)s]",
    )
    g.add_argument("--queue", type=positive, default=256, help="requests at a time [%(default)s]")
    g.add_argument("--timeout", type=seconds, default=3600.0, help="seconds a request [3600]")
    g.add_argument(
        "--patience", type=seconds, default=30.0, help="seconds for what runs at the end [30]"
    )
