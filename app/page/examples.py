"""Recordings to try the bundled model with: `digits` understands little else."""

from pathlib import Path

MODEL = "digits"
FOLDER = Path(__file__).with_name("samples")


def examples(model: str) -> dict[str, Path]:
    """The recordings for a model, by the name to show; none for any other than `MODEL`."""
    if model != MODEL:
        return {}
    return {path.stem.replace("-", " ").capitalize(): path for path in sorted(FOLDER.iterdir())}
