"""The `convert` command: a model as a .pt file, or as a Hugging Face folder.

What is written is read back and compared before it gets its name, so OUT is whole or not there.
"""

import argparse
import sys
import tempfile
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.load import Adapters, Checkpoint, load_checkpoint
from slimwhisper.checkpoint.validate import OUTPUT
from slimwhisper.commands.conversion.hf_folder import FOLDER_FILES, write_folder
from slimwhisper.errors import OptionError, OutputError
from slimwhisper.options import changed_settings
from slimwhisper.text import one_line

# what --overwrite may delete with an old folder, weights aside
MODEL_FILES = (*FOLDER_FILES, "config.json", "model.safetensors.index.json")


class Conversion(NamedTuple):
    """What was written."""

    path: Path
    left_behind: tuple[str, ...]  # settings for which the format has no place


def run_convert(arguments: argparse.Namespace) -> int:
    """The `convert` command: `input`, `output`, `dtype`, `overwrite`, `model_dir`, `adapter`."""
    found = convert(
        arguments.input,
        arguments.output,
        dtype=arguments.dtype,
        overwrite=arguments.overwrite,
        adapter=arguments.adapter,
        download_root=arguments.model_dir,
    )
    if found.left_behind:
        print(
            f"slimwhisper: {found.path}: a .pt file has no place for {', '.join(found.left_behind)}"
            "; they stay behind",
            file=sys.stderr,
        )
    print(f"{found.path}: read back and equal")
    return 0


def convert(
    name: str,
    out: str | PathLike[str],
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    adapter: Adapters = None,
    download_root: str | PathLike[str] | None = None,
) -> Conversion:
    """Write a model as an OpenAI .pt file or as a Hugging Face folder with tokenizer and settings.

    Arguments:
        name: whatever `load_checkpoint` takes.
        out: ends in .pt, or is a folder.
        dtype: "float32", "float16" or "bfloat16"; None: as it is, tensor by tensor.
        overwrite: replace an existing file, or a folder that holds only a model's files.
        adapter: as for `load_checkpoint`; what is written has it merged.
        download_root: where named models are kept.
    Raises:
        CheckpointError: the model cannot be loaded, or the format cannot hold it.
        OptionError: `out` is not of either kind, or is the model itself.
        OutputError: `out` exists, or cannot be written.
    """
    target = Path(out).expanduser()
    is_file = target.suffix == ".pt"
    if not is_file and target.suffix in (".pth", ".bin", ".safetensors", ".gguf", ".onnx"):
        raise OptionError(f"{target}: {target.suffix} cannot be written; give NAME.pt or a folder")
    _check_place(target, is_file, overwrite)
    if target.exists() and Path(name).exists() and target.samefile(name):
        raise OptionError(f"{target}: is the model itself; give another place")
    checkpoint = load_checkpoint(name, download_root=download_root, adapter=adapter)
    left_behind = _left_behind(checkpoint) if is_file else ()
    ready = replace(checkpoint, state=_ready(checkpoint, dtype))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".slimwhisper-") as place:
            new = Path(place) / target.name
            if is_file:
                content = {"dims": asdict(ready.dims), "model_state_dict": dict(ready.state)}
                torch.save(content, new)
            else:
                new.mkdir()
                write_folder(ready, new)
            _check_equal(ready, new, is_file)
            _check_place(target, is_file, overwrite)  # hours may have passed
            _put(new, target, Path(place))
    except (OSError, RuntimeError) as error:  # RuntimeError: torch.save, on a full disk
        raise OutputError(
            f"{target}: cannot be written: {one_line(error)}; free the space, or choose another "
            "place"
        ) from error
    return Conversion(target, left_behind)


def _left_behind(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The settings that a .pt file has no place for, by name; not Whisper's own. Raises
    CheckpointError if the words would differ without what it cannot hold.
    """
    name = checkpoint.name
    if OUTPUT in checkpoint.state:
        raise problem(
            f"{name}: its output matrix, {OUTPUT}, is not the token embedding, and a .pt file has "
            "one matrix for both; keep the folder"
        )
    if not checkpoint.tokens.is_whispers:
        raise problem(
            f"{name}: its tokenizer is not OpenAI's, and a .pt file has no place for one; keep "
            "the folder"
        )
    settings = checkpoint.settings
    rows = changed_settings(checkpoint.dims, checkpoint.tokens, settings)
    heads = ("alignment_heads",) if settings.alignment_heads else ()
    return (*heads, *(row.name for row in rows))


def _ready(checkpoint: Checkpoint, dtype: str | None) -> dict[str, Tensor]:
    """The tensors to write, in their dtype, each with storage of its own.

    Biases of keys are left out: neither format has them, and they cancel in the softmax.
    """
    number = None if dtype is None else getattr(torch, dtype)
    state: dict[str, Tensor] = {}
    for name, tensor in checkpoint.state.items():
        if name.endswith(".key.bias"):
            continue
        own = tensor.contiguous() if number is None else tensor.to(number).contiguous()
        if not bool(torch.isfinite(own).all()):
            raise problem(
                f"{checkpoint.name}: {name} has numbers beyond {dtype}; choose --dtype bfloat16 or "
                "float32"
            )
        whole = own.untyped_storage().nbytes() == own.nbytes
        state[name] = own if whole else own.clone()
    return state


def _check_place(target: Path, is_file: bool, overwrite: bool) -> None:
    """Raise OutputError unless `target` is free or may be replaced."""
    if not target.exists() and not target.is_symlink():
        return
    empty = not is_file and target.is_dir() and not any(target.iterdir())
    if not (overwrite or empty):
        raise OutputError(f"{target}: exists; give another place, or --overwrite")
    if target.is_symlink():
        raise OutputError(f"{target}: is a link; give the place that it points to")
    if not (target.is_file() if is_file else target.is_dir()):
        kind = "file" if is_file else "folder"
        raise OutputError(f"{target}: is no {kind} and is left alone; give another place")
    for file in () if is_file else target.iterdir():
        known = file.name in MODEL_FILES or file.suffix == ".safetensors"
        if not (known and file.is_file()):
            raise OutputError(
                f"{target}: also holds {file.name}, which --overwrite would delete; give another "
                "place, or move that file"
            )


def _check_equal(ready: Checkpoint, written: Path, is_file: bool) -> None:
    """Raise OutputError unless what was written reads as what was meant."""
    found = load_checkpoint(written)
    same = found.dims == ready.dims and set(found.state) == set(ready.state)
    same = same and (is_file or found.alignment_heads == ready.alignment_heads)
    if not same or not all(_equal(t, found.state[name]) for name, t in ready.state.items()):
        raise OutputError(
            f"{written.name}: what was written does not read back as {ready.name}, and was "
            "deleted; check the disk"
        )


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def _put(new: Path, target: Path, place: Path) -> None:
    """Give `new` its name. A folder in its place goes to `place`, and back if that fails."""
    if not target.is_dir():
        new.replace(target)
        return
    old = place / "old"
    target.replace(old)
    try:
        new.replace(target)
    except OSError:
        old.replace(target)
        raise
