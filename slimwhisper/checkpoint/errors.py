"""The errors of models and adapters that cannot be loaded, on one line."""

from slimwhisper.errors import CheckpointError
from slimwhisper.text import escape_line


def load_error(text: str) -> CheckpointError:
    """A CheckpointError with this text, escaped: it may quote names from untrusted files."""
    line = escape_line(text)
    return CheckpointError(line if len(line) < 700 else f"{line[:450]} ... {line[-200:]}")
