"""Computes digests of files and of a checkpoint's weights; large ones are sampled."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a job with nothing to do does not import torch
    from torch import Tensor

MIB = 1 << 20
WHOLE_FILE = 64 * MIB  # a file up to this size is read completely
SAMPLE = 4096  # bytes read at the start of each MiB of a larger file
TAIL = MIB  # bytes read at the end of a larger file

WHOLE_TENSOR = MIB  # bytes of a tensor that is read completely
EVERY = 1 << 16  # of a larger tensor, `SAMPLE` bytes of each `EVERY` are read


def file_digest(path: Path) -> str:
    """A digest of a file's size and content; large files are sampled.

    Of a file over 64 MiB it reads 4 KiB of every MiB, and the last MiB: about 13 MB of 3 GB, in
    milliseconds once the file is cached. New weights for a whole model, a layer, or a matrix of
    1 MiB or more change the digest. So does any other change to a `.pt` file that PyTorch wrote as
    a zip archive: the last MiB holds a checksum of every tensor. A change to a few small tensors of
    a large safetensors file can go unnoticed.
    """
    digest = blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        if size <= WHOLE_FILE:
            while block := file.read(MIB):
                digest.update(block)
        else:
            for offset in range(0, size - TAIL, MIB):
                file.seek(offset)
                digest.update(file.read(SAMPLE))
            file.seek(size - TAIL)
            digest.update(file.read(TAIL))
    return digest.hexdigest()


def folder_digest(folder: Path, suffixes: Sequence[str]) -> str:
    """Of the names and contents of the files in a folder that have one of the suffixes."""
    digest = blake2b(digest_size=16)
    for file in sorted(folder.iterdir()):
        if file.suffix in suffixes and file.is_file():
            digest.update(f"{file.name} {file_digest(file)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def content_digest(name: str, suffixes: Sequence[str] = ()) -> str:
    """Of a file, or of such files in a folder; the name itself if it cannot be read, which whoever
    uses it reports.
    """
    path = Path(name)
    with suppress(OSError, ValueError):
        return folder_digest(path, suffixes) if path.is_dir() else file_digest(path)
    return name


def weights_digest(state: Mapping[str, "Tensor"]) -> str:
    """A digest of a checkpoint's weights (tensor names, dtypes, shapes and values), which does not
    depend on the format of its file.

    Of a tensor over 1 MiB it reads 4 KiB of every 64 KiB, and the end: 190 MB of 3 GB. A change to
    a few rows of a large matrix can go unnoticed.
    """
    import torch

    digest = blake2b(digest_size=16)
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
        if len(data) <= WHOLE_TENSOR:
            digest.update(data)
            continue
        for offset in range(0, len(data), EVERY):
            digest.update(data[offset : offset + SAMPLE])
        digest.update(data[-SAMPLE:])
    return digest.hexdigest()
