"""Models that come with the package."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "models"

# name -> a warning for its users
BUNDLED = {
    "digits": "'digits' knows only the English words zero to nine; choose --model turbo or small"
}


def bundled_file(name: str) -> Path:
    """Its checkpoint, in OpenAI's format; the model card is the .md file next to it."""
    return FOLDER / f"{name}.pt"
