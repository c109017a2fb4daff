"""Weights in the formats that several engines of `peers.py` read."""

import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from peer_engines.case import Case
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.commands.convert import write_folder


def half_on_gpu(checkpoint: Checkpoint, case: Case) -> Checkpoint:
    """In float32; for a GPU in float16, as the official checkpoints."""
    dtype = torch.float16 if case.device == "cuda" else torch.float32
    state = {name: tensor.to(dtype) for name, tensor in checkpoint.state.items()}
    return replace(checkpoint, state=state)


def save_openai(checkpoint: Checkpoint, path: Path, case: Case) -> None:
    """A file as OpenAI's."""
    state = half_on_gpu(checkpoint, case).state
    torch.save({"dims": asdict(checkpoint.dims), "model_state_dict": state}, path)


def save_hugging_face(checkpoint: Checkpoint, path: Path, case: Case) -> None:
    """A folder as of Hugging Face."""
    path.mkdir()
    write_folder(half_on_gpu(checkpoint, case), path)


def drop_broken_torchaudio() -> None:
    """Make transformers take a torchaudio that does not fit this torch for missing; it needs none
    here, and fails to import with one that does not load.
    """
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]
