"""Which of the packages that slimwhisper needs are installed, in supported versions.

Imports none of slimwhisper's modules, so that it works when any of them is missing.
"""

import importlib
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from slimwhisper.text import one_line

# distribution, needed, module to import, what to say if it fails
PACKAGES = (
    ("torch", True, "torch", "the models run on it"),
    ("triton", False, "triton", "for kernels on a GPU; elsewhere not used"),
    ("openai-whisper", True, "whisper", "for its tokenizer and list of models"),
    ("av", True, "av", "decodes audio"),
    ("soundfile", True, "soundfile", "reads WAV"),
    (
        "torchaudio",
        False,
        "torchaudio",
        "not needed: soxr resamples in its place; but `transformers` does not load beside it: "
        "install torchaudio from the index that torch came from, or pip uninstall torchaudio",
    ),
    ("soxr", True, "soxr", "resamples"),
    ("safetensors", True, "safetensors.torch", "reads Hugging Face checkpoints"),
    ("huggingface_hub", True, "huggingface_hub", "downloads from Hugging Face"),
    ("tokenizers", True, "tokenizers", "reads tokenizers that came with a checkpoint"),
    ("silero-vad", True, "", "finds speech"),  # its import sets torch's threads, so not tried
    ("gradio", False, "", "an extra, for the web page alone"),  # slow to import, so not tried
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's answer."""

    value: str
    ok: bool | None  # False: prevents transcribing; None: does not, but is worth knowing
    advice: str = ""  # what to do, if anything


def check_slimwhisper() -> Check:
    """This package's version, and the folder that it runs from."""
    folder = Path(__file__).parents[1]
    try:
        return Check(f"{metadata.version('slimwhisper')} in {folder}", True)
    except metadata.PackageNotFoundError:
        advice = "install it: pip install ."
        return Check(f"not installed, runs from {folder}", None, advice)


def check_package(name: str, needed: bool, module: str, use: str) -> Check:
    """Its version, whether slimwhisper supports that version, and whether it imports."""
    wanted = wanted_versions(name)
    install = f"pip install '{'slimwhisper[app]' if name == 'gradio' else name + wanted}'"
    failed = False if needed else None
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check("not installed", failed, f"{use}; {install}")
    try:
        value = version + (_libraries(importlib.import_module(module)) if module else "")
    except Exception as error:
        advice = f"{use}; {install} --force-reinstall" if needed else use
        return Check(f"{version}, does not import: {one_line(error, kind=True)}", failed, advice)
    if not _is_among(version, wanted):
        return Check(value, None, f"slimwhisper is made for {wanted}; {install}")
    return Check(value, True)


def wanted_versions(name: str) -> str:
    """The specifier in slimwhisper's own requirements, such as ">=2.11,<2.14"; "" if unknown."""
    try:
        required = metadata.requires("slimwhisper") or []
    except metadata.PackageNotFoundError:
        return ""
    found = (re.fullmatch(r"([\w.-]+)\s*([^;]*?)\s*(;.*)?", text) for text in required)
    return next((m[2] for m in found if m and m[1] == name), "")


def _is_among(version: str, specifier: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet  # comes with huggingface_hub
    except ImportError:
        return True
    return SpecifierSet(specifier).contains(version, prereleases=True)


def _libraries(module: Any) -> str:
    """The versions of the libraries that come with a package."""
    if module.__name__ == "av":
        known = [f"{n} {'.'.join(map(str, v))}" for n, v in module.library_versions.items()]
        names = ("libavcodec", "libavformat")
        return f" (FFmpeg {', '.join(text for text in known if text.startswith(names))})"
    if module.__name__ == "soundfile":
        return f" (libsndfile {module.__libsndfile_version__})"
    return ""
