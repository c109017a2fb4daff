"""Where things are, for tests and the programs that they start."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the repository
SAMPLES = ROOT / "samples"
PHONE = SAMPLES / "phone-number.wav"  # the digits of a number, 9 s
WORDS = "five five five zero one four two seven nine eight"
BROKEN = ROOT / "tests/support/broken.m4a"  # half a file
SHARED = ROOT.parent / "shared"  # recordings of people, where there are some


def modules() -> list[Path]:
    """Those of the package; links are not followed."""
    return [p for name in ("slimwhisper", "app", "kernels") for p in (ROOT / name).rglob("*.py")]
