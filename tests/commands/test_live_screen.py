"""What `slimwhisper live` shows on a terminal, as the terminal's screen has it."""

import re
from typing import Any

import pytest

from slimwhisper.commands.live.outputs import Screen
from slimwhisper.live.types import TextUpdate, UtteranceEnded


class Terminal:
    """What is on a terminal's screen after codes that rewrite lines."""

    def __init__(self, width: int) -> None:
        self.width, self.lines, self.at = width, [""], 0

    def write(self, text: str) -> int:
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if part == "\n":
                self.at += 1
                self.lines += [""] * (self.at == len(self.lines))
            elif part == "\x1b[2K":
                self.lines[self.at] = ""
            elif re.fullmatch(r"\x1b\[\d+A", part):
                self.at -= int(part[2:-1])
            elif part[0] not in "\r\x1b":
                self.lines[self.at] += part
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True

    encoding = "utf-8"

    def text(self) -> list[str]:
        return [line for line in self.lines if line]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal(20)


def test_the_tail_is_rewritten_in_place(terminal: Terminal) -> None:
    screen: Any = Screen(terminal, width=20)  # type: ignore[arg-type]
    for committed, tail, shown in (
        ("", " won", ["won"]),
        (" one", " tool", ["one tool"]),
        ("", " two three", ["one two three"]),
        (" two three", " four five six", ["one two three four", "five six"]),
        (" four five six seven", "", ["one two three four", "five six seven"]),
    ):
        screen.event(TextUpdate(0, committed, tail))
        assert [line.rstrip() for line in terminal.text()] == shown
    screen.event(UtteranceEnded(0, (), " one two three four five six seven", "en"))
    screen.event(TextUpdate(1, "", " next"))
    assert [line.rstrip() for line in terminal.text()][-1] == "next"
    screen.close()
    assert [line.rstrip() for line in terminal.text()] == ["one two three four", "five six seven"]


@pytest.mark.parametrize("no_color", [False, True])
def test_dim_or_bracket(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    written: list[str] = []
    monkeypatch.setattr(terminal, "write", lambda text: written.append(text) or len(text))
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(terminal, width=20)  # type: ignore[arg-type]
    screen.event(TextUpdate(0, " one", " two"))
    everything = "".join(written)
    assert ("\x1b[2m two" in everything) != no_color
    assert ("one [two]" in everything) == no_color
    screen.close()
