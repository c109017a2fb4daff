"""Runs the `convert` command: writes a model as a .pt file or as a Hugging Face folder.

The new file or folder is read back and compared before it gets its name, so OUT is always complete.
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

from slimwhisper.checkpoint.files import OUTPUT, factored_layers, load_error
from slimwhisper.checkpoint.formats.hugging_face import multiply_factors
from slimwhisper.checkpoint.load import Checkpoint, load_checkpoint
from slimwhisper.commands.conversion.hf_folder import FOLDER_FILES, own_settings, write_folder
from slimwhisper.errors import OptionError, OutputError
from slimwhisper.text import error_line

# what --overwrite may delete with an old folder, weights aside
MODEL_FILES = (*FOLDER_FILES, "config.json", "model.safetensors.index.json")


class Conversion(NamedTuple):
    """The result of a conversion."""

    path: Path
    dropped: tuple[str, ...]  # settings that slimwhisper reads in it, and openai-whisper does not
    products: int = 0  # weights that were two factors, which neither format can store


def run_convert(arguments: argparse.Namespace) -> int:
    """The `convert` command: `input`, `output`, `dtype`, `overwrite`, `model_dir`, `adapter`."""
    a = arguments
    how = {"overwrite": a.overwrite, "adapter": a.adapter, "download_root": a.model_dir}
    conversion = convert(a.input, a.output, dtype=a.dtype, **how)
    if conversion.dropped:
        unread = f"openai-whisper does not read its {', '.join(conversion.dropped)}"
        remedy = "for the same times of words there, call set_alignment_heads"
        hint = f"; {remedy}" if "alignment_heads" in conversion.dropped else ""
        print(f"slimwhisper: {conversion.path}: {unread}{hint}", file=sys.stderr)
    if conversion.products:
        lost = f"the factors of {conversion.products} weights were multiplied"
        speed = "so the encoder is as large and as slow as Whisper's"
        print(f"slimwhisper: {conversion.path}: {lost}, {speed}", file=sys.stderr)
    print(f"{conversion.path}: written, and verified by reading it back")
    return 0


def convert(
    name: str,
    out: str | PathLike[str],
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    adapter: str | PathLike[str] | None = None,
    download_root: str | PathLike[str] | None = None,
) -> Conversion:
    """Write a model as an OpenAI .pt file or as a Hugging Face folder with tokenizer and settings.

    Arguments:
        name: as for `load_checkpoint`.
        out: ends in .pt, or is a folder.
        dtype: "float32", "float16" or "bfloat16"; None: each tensor keeps its own; the product of
            two factors is float32, or float64.
        overwrite: replace an existing file, or a folder that has only a model's files.
        adapter: as for `load_checkpoint`; it is merged into the written weights.
        download_root: folder for downloaded models.
    Raises:
        CheckpointError: the model cannot be loaded, or the format cannot store it.
        OptionError: `out` is neither a .pt file nor a folder, or is the model itself.
        OutputError: `out` exists, or cannot be written.
    """
    target = Path(out).expanduser()
    is_file = target.suffix == ".pt"
    if not is_file and target.suffix in (".pth", ".bin", ".safetensors", ".gguf", ".onnx"):
        raise OptionError(f"{target}: {target.suffix} cannot be written; give NAME.pt or a folder")
    _check_target(target, is_file, overwrite)
    if target.exists() and Path(name).exists() and target.samefile(name):
        raise OptionError(f"{target}: is the model itself; choose another output")
    checkpoint = load_checkpoint(name, download_root=download_root, adapter=adapter)
    if is_file:
        _check_format(checkpoint)
    own = own_settings(checkpoint) if is_file else {}
    ready = replace(checkpoint, state=_tensors_to_write(checkpoint, dtype))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".slimwhisper-") as folder:
            new = Path(folder) / target.name
            if is_file:
                content = {"dims": asdict(ready.dims), "model_state_dict": dict(ready.state)}
                torch.save(content | ({"generation_config": own} if own else {}), new)
            else:
                new.mkdir()
                write_folder(ready, new)
            _check_equal(ready, new, is_file)
            _check_target(target, is_file, overwrite)  # hours may have passed
            _move_into_place(new, target, Path(folder))
    except (OSError, RuntimeError) as error:  # RuntimeError: torch.save, on a full disk
        reason = f"cannot be written: {error_line(error)}"
        raise OutputError(f"{target}: {reason}; free some space, or choose another") from error
    dropped = tuple(name for name in own if name != "audio_window")
    return Conversion(target, dropped, len(factored_layers(checkpoint.state)))


def _check_format(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if a .pt file cannot store something without which the words would
    differ.
    """
    name = checkpoint.name
    if OUTPUT in checkpoint.state:
        what = f"its output matrix, {OUTPUT}, is not the token embedding"
        raise load_error(f"{name}: {what}, and a .pt file has one for both; keep the folder")
    if not checkpoint.tokens.is_whispers:
        what = "its tokenizer is not OpenAI's, and a .pt file cannot store one"
        raise load_error(f"{name}: {what}; keep the folder")


def _tensors_to_write(checkpoint: Checkpoint, dtype: str | None) -> dict[str, Tensor]:
    """The tensors to write, in their dtype, each with storage of its own.

    Biases of keys are left out: neither format has them, and they cancel in the softmax. Factors
    are multiplied: other programs read them with code of the model's own, or not at all.
    """
    number = None if dtype is None else getattr(torch, dtype)
    state: dict[str, Tensor] = {}
    for name, tensor in multiply_factors(checkpoint.state).items():
        if name.endswith(".key.bias"):
            continue
        converted = tensor.contiguous() if number is None else tensor.to(number).contiguous()
        if not bool(torch.isfinite(converted).all()):
            what = f"{name} has numbers beyond the range of {dtype}"
            raise load_error(f"{checkpoint.name}: {what}; choose --dtype bfloat16 or float32")
        whole = converted.untyped_storage().nbytes() == converted.nbytes
        state[name] = converted if whole else converted.clone()
    return state


def _check_target(target: Path, is_file: bool, overwrite: bool) -> None:
    """Raise OutputError unless `target` is free or may be replaced."""
    if not target.exists() and not target.is_symlink():
        return
    empty = not is_file and target.is_dir() and not any(target.iterdir())
    if not (overwrite or empty):
        raise OutputError(f"{target}: already exists; choose another output, or add --overwrite")
    if target.is_symlink():
        raise OutputError(f"{target}: is a link; give the path that it points to")
    if not (target.is_file() if is_file else target.is_dir()):
        kind = "file" if is_file else "folder"
        raise OutputError(f"{target}: is not a {kind} and is not replaced; choose another output")
    for file in () if is_file else target.iterdir():
        deletable = file.name in MODEL_FILES or file.suffix == ".safetensors"
        if not (deletable and file.is_file()):
            what = f"also contains {file.name}, which --overwrite would delete"
            raise OutputError(f"{target}: {what}; choose another output, or move that file")


def _check_equal(ready: Checkpoint, written: Path, is_file: bool) -> None:
    """Raise OutputError unless the written model reads back as the same."""
    checkpoint = load_checkpoint(written)
    same = checkpoint.dims == ready.dims and set(checkpoint.state) == set(ready.state)
    same = same and checkpoint.alignment_heads == ready.alignment_heads
    if not same or not all(_equal(t, checkpoint.state[name]) for name, t in ready.state.items()):
        what = f"does not read back as {ready.name} and was deleted"
        raise OutputError(f"{written.name}: the written file {what}; check the disk")


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def _move_into_place(new: Path, target: Path, folder: Path) -> None:
    """Give `new` its name. A folder in its place goes to `place`, and back if that fails."""
    if not target.is_dir():
        new.replace(target)
        return
    old = folder / "old"
    target.replace(old)
    try:
        new.replace(target)
    except OSError:
        old.replace(target)
        raise
