"""Chooses the names of outputs, so that no two recordings of a folder share one."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from slimwhisper.audio.formats import Selection
from slimwhisper.outputs.formats import FORMATS


class Listing:
    """The recordings of one folder, sorted, with the names of their outputs. These depend only on
    what the folder contains, so a resumed job uses the same ones.
    """

    def __init__(
        self,
        folder: str | Path,
        files: Iterable[str],
        folders: Iterable[str],
        selection: Selection | None = None,
    ) -> None:
        """selection: counts the files that are no recordings."""
        self._files = sorted(files)
        # "a.mp3" cannot have the output "a.txt" next to a mirrored folder of that name
        ends = tuple(f".{name}" for name in FORMATS)
        self._blocked = {Path(f).stem.casefold() for f in folders if f.lower().endswith(ends)}
        takes = (selection or Selection()).takes
        join = os.path.join
        self.outputs = self._distinct(n for n in self._files if takes(join(folder, n)))

    @staticmethod
    def of(folder: Path) -> "Listing":
        """The listing of a folder, empty if the folder cannot be listed: it may still be read."""
        _, folders, files = next(os.walk(folder), ("", [], []))
        return Listing(folder, files, folders)

    def output_of(self, name: str) -> str:
        """The output name of any file in the folder.

        Files without an audio suffix must avoid the names of the others.
        """
        if name in self.outputs:
            return self.outputs[name]
        output = self._distinct({name: None, **dict.fromkeys(self._files)})[name]
        used = {each.casefold() for each in self.outputs.values()}
        while output.casefold() in used:
            output += "_"
        return output

    def _distinct(self, names: Iterable[str]) -> dict[str, str]:
        """Name -> output name: without the suffix, or with it where two names would collide."""
        outputs = {name: Path(name).stem for name in names}
        while True:
            counts = Counter(output.casefold() for output in outputs.values())
            taken = self._blocked | {output for output, count in counts.items() if count > 1}
            clashing = [n for n, o in outputs.items() if o != n and o.casefold() in taken]
            if not clashing:
                return outputs
            outputs.update((name, name) for name in clashing)
