"""One folder's recordings, and the names of their outputs.

A name depends on what is in the folder alone, so that a resumed job names its outputs as before.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from slimwhisper.audio.formats import AUDIO_SUFFIXES
from slimwhisper.writers import FORMATS


class Listing:
    """The recordings of one folder with their outputs' names, and the folders in it."""

    def __init__(self, files: Sequence[str] = (), folders: Sequence[str] = ()) -> None:
        self.folders = folders
        self._files = files
        # the output "a.txt" of "a.mp3" cannot be written beside a mirrored folder "a.txt"
        ends = tuple(f".{name}" for name in FORMATS)
        self._blocked = {Path(f).stem.casefold() for f in folders if f.lower().endswith(ends)}
        self.outputs = self._distinct(name for name in files if is_audio(name))

    def output_of(self, name: str) -> str:
        """The output's name of any file here; one without an audio suffix gives way to the rest."""
        if name in self.outputs:
            return self.outputs[name]
        output = self._distinct({name: None, **dict.fromkeys(self._files)})[name]
        taken = {o.casefold() for o in self.outputs.values()}
        while output.casefold() in taken:
            output += "_"
        return output

    def _distinct(self, names: Iterable[str]) -> dict[str, str]:
        """Name -> output: without its suffix, or whole where two would be the same."""
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


def list_folder(folder: Path) -> Listing:
    """List a folder, sorted; links to folders are left out. Raises OSError."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                is_folder, is_file = entry.is_dir(), entry.is_file()
                is_broken = not is_folder and entry.is_symlink() and not Path(entry.path).exists()
            except OSError:  # a link in a circle, or to where we may not look
                is_folder, is_file, is_broken = False, False, True
            if is_folder and not entry.is_symlink():
                folders.append(entry.name)
            elif is_file or is_broken:  # the latter is a recording that fails, not nothing
                files.append(entry.name)
    return Listing(sorted(files), sorted(folders))


def is_audio(name: str) -> bool:
    """Whether a file is one of those that are looked for in folders, by its suffix."""
    return os.path.splitext(name)[1].lower() in AUDIO_SUFFIXES  # noqa: PTH122  (a million times)
