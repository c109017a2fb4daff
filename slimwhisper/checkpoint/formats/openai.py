"""Reads OpenAI's .pt files."""

from dataclasses import fields
from pathlib import Path

from slimwhisper.checkpoint.files import Contents, load_error, read_pickle
from slimwhisper.types import Dims


def detect(path: Path) -> bool:
    """Whether it is a file; `read` says what is wrong with one in no other format."""
    return path.is_file()


def read(file: Path) -> Contents:
    """{"dims", "model_state_dict"}: name -> tensor, matrices [out, in], mapped if possible; and the
    settings that stand beside them, which openai-whisper does not read: "audio_window", and
    "generation_config", as a folder's file of this name.
    """
    missing = "no 'dims' and 'model_state_dict'"
    foreign = f"{file}: not an OpenAI Whisper checkpoint ({missing}); give one, or a folder"
    content = read_pickle(file)
    if not isinstance(content, dict) or not {"dims", "model_state_dict"} <= content.keys():
        raise load_error(foreign)
    dims, state = content["dims"], content["model_state_dict"]
    names = [f.name for f in fields(Dims)]
    if not isinstance(dims, dict) or not isinstance(state, dict):
        raise load_error(foreign)
    if set(dims) != set(names) or not all(type(v) is int for v in dims.values()):
        raise load_error(f"{file}: its 'dims' are not the ten whole numbers {', '.join(names)}")
    kept = content.get("generation_config", {})
    if not isinstance(kept, dict):
        raise load_error(f"{file}: its 'generation_config' is no dictionary; leave it out")
    return Contents(Dims(**dims), state, {"audio_window": content.get("audio_window")} | kept)
