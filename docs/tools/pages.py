"""A hook of mkdocs: pages made from the code, and links that leave the pages.

`reference/cli.md` has the flags of the parsers, `reference/http.md` the routes and the fields of
their forms, `reference/python.md` the docstrings; `project/` has the repository's own pages.
"""

import argparse
import logging
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
DOCS = ROOT / "docs"
PROJECT = {  # pages of the repository that the site has too
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "THIRD_PARTY.md": "project/third-party.md",
}
# flags of other programs
OTHERS = set(
    "--batched --build-arg --extra-index-url --gpus --list --model_directory --read-only "
    "--suppress_numerals --tmpfs".split()
)
logger = logging.getLogger("mkdocs.hooks.pages")
# each public object, and where its docstring is
PYTHON = {
    "Models": ["loading.load_model", "formats.names.available_models", "api.SlimWhisper"],
    "Results": ["types.Transcript", "types.Segment", "types.Word"],
    "Options": [
        "options.Options",
        "longform.options.SearchOptions",
        "longform.options.ThresholdOptions",
        "word_times.options.WordOptions",
        "tokens.options.LanguageOptions",
        "tokens.options.PromptOptions",
        "hot_words.options.HotWordOptions",
        "audio.options.SpeechOptions",
        "audio.options.ChannelOptions",
        "longform.options.RecordingOptions",
        "subtitles.SentenceOptions",
        "trust.TrustOptions",
        "speakers.choice.SpeakerOptions",
    ],
    "Live": [
        "live.types.LiveOptions",
        "live.types.SpeechStarted",
        "live.types.SpeechStopped",
        "live.types.TextUpdate",
        "live.types.UtteranceEnded",
        "live.types.SpeakersNamed",
        "live.types.StreamFailed",
    ],
    "As in whisper": [
        "audio.load.load_audio",
        "audio.mel.log_mel_spectrogram",
        "audio.mel.pad_or_trim",
        "decoding.decode",
        "decoding.detect_language",
        "types.Dims",
    ],
    "As in faster-whisper": [
        "faster_whisper.model.WhisperModel",
        "faster_whisper.batched.BatchedInferencePipeline",
    ],
    "Errors": [
        f"errors.{name}Error"
        for name in "SlimWhisper Audio Cache Checkpoint Dependency Option Output".split()
    ],
    "To extend it": [
        "cache.forms.register",
        "checkpoint.load.register",
        "service.transcriber.Transcriber",
    ],
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    pages = {
        "reference/cli.md": cli_page(),
        "reference/http.md": http_page(),
        "reference/python.md": python_page(),
    }
    for source, page in PROJECT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        pages[page] = re.sub(r"\]\((?!https?:|#|mailto:)", "](../../", text)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files that are not pages lead to the repository; without one they are text.

    Flags that no command has are warned of, which ends a strict build.
    """
    named = " ".join(re.findall(r"^slimwhisper .*|`--[^`]*`", markdown, re.M))
    for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", named):
        if page.file.src_uri not in PROJECT.values() and flag not in known_flags():
            logger.warning("%s: no command has the flag %s", page.file.src_uri, flag)
    here = DOCS / page.file.src_uri

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = Path(os.path.normpath(here.parent / target))
        if path.is_relative_to(DOCS):
            return f"[{text}]({os.path.relpath(path, here.parent)}{anchor})"
        relative = path.relative_to(ROOT).as_posix()
        if relative in PROJECT:
            return f"[{text}]({os.path.relpath(DOCS / PROJECT[relative], here.parent)}{anchor})"
        if not config.repo_url:
            return text
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{relative}{anchor})"

    pattern = re.compile(r"\[([^\]\[]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.S | re.M)  # what is not code, and code
    return "".join(part if part.startswith("```") else pattern.sub(link, part) for part in parts)


@cache
def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    from slimwhisper.cli import build_parser

    return next(a.choices for a in build_parser()._actions if isinstance(a.choices, dict))


@cache
def known_flags() -> set[str]:
    """The flags of all commands, and those of other programs that pages name."""
    ours = (flag for parser in commands().values() for flag in parser._option_string_actions)
    return {*ours, "--version", *OTHERS}


def cli_page() -> str:
    """All commands and flags, from the parsers."""
    from slimwhisper.cli import OVERVIEW

    lines = ["# Command line", f"```text\n{OVERVIEW}```"]
    for name, parser in commands().items():
        lines += [f"## {name}", linked(parser.description or ""), ""]
        for group in parser._action_groups:
            rows = [row(parser, action) for action in group._group_actions]
            if rows:
                about = linked(group.description or "")
                title = (group.title or "").removeprefix("positional ")
                lines += [f"### {name}: {title}", about, *table(rows)]
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]) + "\n"


def row(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str]:
    """A flag with its values, and its help."""
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
    values = ", ".join(f"`{choice}`" for choice in action.choices or ())
    help = parser._get_formatter()._expand_help(action) if action.help else ""
    return names, f"{help}{f' ({values})' if values and values not in help else ''}"


def table(rows: list[tuple[str, str]]) -> Iterator[str]:
    """The lines of a table of two columns."""
    yield from ("", "| | |", "|---|---|")
    for left, right in rows:
        yield f"| {left} | {escape(linked(right))} |"
    yield ""


def linked(text: str) -> str:
    """A text whose names of pages are links."""
    return re.sub(r"\bdocs/([\w/-]*?)([\w-]+)\.md\b", r"[\2](../\1\2.md)", text)


def escape(text: str) -> str:
    """A text in a cell of a table."""
    return text.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")


def http_page() -> str:
    """The addresses and the fields of their forms, from the server's routes and models."""
    from slimwhisper.app.api.asr import AsrForm
    from slimwhisper.app.api.inference import InferenceForm
    from slimwhisper.app.api.request import TranscriptionForm
    from slimwhisper.app.api.routes import make_routers
    from slimwhisper.app.realtime.listen import LiveForm, RecordingForm, add_listen

    host = MagicMock()  # whose routes are not called
    host.service.limits.queue = 1
    openai, others, _ = make_routers(host)
    add_listen(openai, host)
    rows = []
    for prefix, router in (("/v1", openai), ("", others)):
        for route in router.routes:
            methods = ", ".join(sorted(getattr(route, "methods", ()) - {"HEAD"}))
            about = cleandoc(route.endpoint.__doc__ or "").split("\n\n")[0]  # type: ignore[attr-defined]
            if methods:
                rows.append((f"`{methods} {prefix}{route.path}`", about.replace("\n", " ")))  # type: ignore[attr-defined]
    lines = [
        "# HTTP",
        "The routes of `slimwhisper serve`, and the fields that each form takes. A running server",
        "describes OpenAI's routes at `/openapi.json`. What the fields do: [HTTP",
        "APIs](../connect/apis.md); live streams: [Live APIs](../connect/realtime.md).",
        "",
        "## Routes",
        *table(rows),
    ]
    for title, form in {
        "/v1/audio/transcriptions, /v1/audio/translations": TranscriptionForm,
        "/asr, /detect-language": AsrForm,
        "/inference": InferenceForm,
        "/v1/listen, recordings": RecordingForm,
        "/v1/listen, streams": LiveForm,
    }.items():
        fields = form.model_json_schema()["properties"].items()
        lines += [f"## {title}", *table([(f"`{name}`", kind(field)) for name, field in fields])]
    return "\n".join(lines) + "\n"


def kind(field: dict[str, Any]) -> str:
    """A field's type, bounds and default in words."""
    options = [field, *field.get("anyOf", ())]
    found = next((o for o in options if o.get("type", "null") != "null"), {})
    words = found.get("type", "object")
    least, most = found.get("minimum"), found.get("maximum")
    if least is not None or most is not None:
        words += f", {least} to {most}"
    default = field.get("default")
    return f"{words}; {default!r} by default" if default not in (None, "", [], ()) else words


def python_page() -> str:
    """Directives of mkdocstrings for all that is public."""
    lines = ["# Python", "`import slimwhisper`; [the guide](../guides/python.md) has examples.", ""]
    for title, names in PYTHON.items():
        lines += [f"## {title}", ""]
        # the values of fields are in their docstrings
        shown = "false" if title in ("Options", "Live") else "true"
        options = f"    options: {{members: {shown}, show_signature: {shown}}}\n"
        lines += [f"::: slimwhisper.{name}\n{options}" for name in names]
    return "\n".join(lines) + "\n"
