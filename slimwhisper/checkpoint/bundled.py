"""Models that come with the package."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "models"

# name -> what its users should know
BUNDLED = {
    "digits": "'digits' reads the English words zero to nine and nothing else; for other speech "
    "choose a Whisper model, such as --model turbo, small or tiny"
}


def bundled_file(name: str) -> Path:
    """Its checkpoint, in OpenAI's format; the model card is the .md file next to it."""
    return FOLDER / f"{name}.pt"
