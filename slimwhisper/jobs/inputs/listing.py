"""The recordings of one folder, and the names of their outputs.

The names depend only on what the folder contains, so a resumed job uses the same ones.
"""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.outputs.formats import FORMATS


class Listing:
    """The recordings of one folder, sorted, with the names of their outputs."""

    def __init__(self, files: Iterable[str], folders: Iterable[str]) -> None:
        self._files = sorted(files)
        # "a.mp3" cannot have the output "a.txt" next to a mirrored folder of that name
        ends = tuple(f".{name}" for name in FORMATS)
        self._blocked = {Path(f).stem.casefold() for f in folders if f.lower().endswith(ends)}
        self.outputs = self._distinct(name for name in self._files if is_audio(name))

    @staticmethod
    def of(folder: Path) -> "Listing":
        """Of a folder; as if it were empty where it cannot be listed, but its files may be read."""
        _, folders, files = next(os.walk(folder), ("", [], []))
        return Listing(files, folders)

    def output_of(self, name: str) -> str:
        """The output name of any file in the folder.

        Files without an audio suffix must avoid the names of the others.
        """
        if name in self.outputs:
            return self.outputs[name]
        output = self._distinct({name: None, **dict.fromkeys(self._files)})[name]
        taken = {o.casefold() for o in self.outputs.values()}
        while output.casefold() in taken:
            output += "_"
        return output

    def _distinct(self, names: Iterable[str]) -> dict[str, str]:
        """Name -> output name: without the suffix, or with it where two names would collide."""
        outputs = {name: Path(name).stem for name in names}
        while True:
            taken = Counter(output.casefold() for output in outputs.values())
            clashing = [
                name
                for name, output in outputs.items()
                if output != name
                and (taken[output.casefold()] > 1 or output.casefold() in self._blocked)
            ]
            if not clashing:
                return outputs
            outputs.update((name, name) for name in clashing)


def is_audio(name: str) -> bool:
    """Whether a name has the suffix of an audio or video file."""
    return os.path.splitext(name)[1].lower() in AUDIO_SUFFIXES  # noqa: PTH122  (faster than Path, for millions of files)
