"""Loading errors as one printable line."""

from slimwhisper.errors import CheckpointError
from slimwhisper.text import shown


def problem(text: str) -> CheckpointError:
    """The error with this text on one printable line: it may quote names from untrusted files."""
    line = shown(text)
    return CheckpointError(line if len(line) < 700 else f"{line[:450]} ... {line[-200:]}")
