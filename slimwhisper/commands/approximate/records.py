"""The lines of `tradeoff.jsonl`: one for each pair of caches, so that a run can be resumed."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slimwhisper.errors import OutputError
from slimwhisper.text import one_line, shown

NAME = "tradeoff.jsonl"


class Records:
    """What was measured under some conditions: model, recordings, options. JSON on both sides."""

    def __init__(self, folder: Path, conditions: Mapping[str, Any]) -> None:
        """Makes the folder, and reads the lines of earlier runs under the same conditions; others,
        and torn ones, are left alone. Raises OutputError.
        """
        self.path, self.conditions = folder / NAME, json.loads(json.dumps(dict(conditions)))
        self.found: dict[str, dict[str, Any]] = {}  # by pair
        try:
            folder.mkdir(parents=True, exist_ok=True)
            data = self.path.read_bytes() if self.path.exists() else b""
            self.path.open("ab").close()
        except OSError as error:
            raise self._unwritable(error) from error
        self._torn = bool(data) and not data.endswith(b"\n")
        for line in data.splitlines():
            try:
                record = json.loads(line)
                if record["conditions"] == self.conditions:
                    self.found[record["pair"]] = record["measured"]
            except (ValueError, TypeError, KeyError):
                continue

    def add(self, pair: str, measured: Mapping[str, Any]) -> None:
        """Append a line, in one write; it is on disk when this returns. Raises OutputError."""
        record = {"pair": pair, "conditions": self.conditions, "measured": dict(measured)}
        line = ("\n" if self._torn else "") + json.dumps(record) + "\n"
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(line.encode("ascii"))
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error
        self._torn = False
        self.found[pair] = record["measured"]

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(
            f"{shown(self.path)}: cannot be written ({one_line(error)}); choose another -o"
        )
