"""Shows live text on a terminal: committed text stays, tentative text is dim and rewritten."""

import os
import sys
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text as Styled

from slimwhisper.live.types import LiveEvent, TextUpdate, UtteranceEnded


def is_screen(file: TextIO) -> bool:
    """Whether lines of a file can be rewritten."""
    return file.isatty() and os.environ.get("TERM") not in (None, "dumb", "unknown")


class Screen:
    """Shows a line for each utterance; with NO_COLOR, tentative text is in brackets."""

    def __init__(self, file: TextIO, width: int | None = None) -> None:
        """width: in columns; None: the terminal's."""
        self._console = Console(
            file=file, width=width, force_terminal=True, highlight=False, markup=False
        )
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),  # warnings go above the tail
            vertical_overflow="crop",
        )
        self._last_line = ""  # committed text of the utterance whose line may still grow
        self._any = False  # whether the utterance has committed text
        self._live.start()

    def event(self, event: LiveEvent) -> None:
        match event:
            case TextUpdate(committed=committed, tentative=tentative):
                self._add(committed)
                self._show(tentative if self._any else tentative.lstrip())
            case UtteranceEnded(text=text):
                if not self._any:
                    self._add(text)
                self._end()

    def close(self) -> None:
        """Remove the tentative text."""
        self._end()
        self._live.stop()

    def _add(self, text: str) -> None:
        """Print all lines but the last, which may become longer."""
        self._last_line += text if self._any else text.lstrip()
        self._any = self._any or bool(self._last_line)
        for line in list(Styled(self._last_line).wrap(self._console, self._console.width))[:-1]:
            self._console.print(line.plain.rstrip())
            self._last_line = self._last_line[len(line.plain) :].lstrip()

    def _show(self, tentative: str) -> None:
        styled = Styled(self._last_line)
        if self._console.no_color:
            bare = tentative.lstrip()
            styled.append(tentative.replace(bare, f"[{bare}]") if bare else "")
        else:
            styled.append(tentative, style="dim")
        self._live.update(styled, refresh=True)

    def _end(self) -> None:
        self._live.update(Styled(""), refresh=True)
        if self._last_line:
            self._console.print(self._last_line)
        self._last_line, self._any = "", False
