"""Files on disk: written as a whole or not at all, short texts, locks, and digests."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EWOULDBLOCK
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.errors import OptionError

if TYPE_CHECKING:  # a job with nothing to do does not import torch
    from torch import Tensor

PART = (".slimwhisper-", ".part")  # prefix and suffix of the name of an unfinished file


@contextmanager
def atomic_write(path: Path, *, text: bool = False) -> Iterator[Any]:
    """A file to write to, in bytes or in UTF-8, which replaces `path` at the end.

    Until then it has another name in the same folder; after an error, or if the process is killed,
    `path` is unchanged. The folder has to exist. Raises OSError.
    """
    temporary = path.with_name(secrets.token_hex(6).join(PART))
    try:
        with temporary.open("x" if text else "xb", encoding="utf-8" if text else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_text(path: Path, most: int, option: str = "") -> str:
    """Read a text in UTF-8 that an option names. Raises OptionError, also for one of more than
    `most` MiB. option: the name of the option, where messages need it.
    """
    name = f"{option}: {path}" if option else f"{path}:"
    try:
        if path.stat().st_size > most * MIB:
            raise OptionError(f"{name} has more than {most} MiB; give a shorter text")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OptionError(f"{name} cannot be read ({error.strerror}); give a text file") from None
    except UnicodeDecodeError:
        raise OptionError(f"{name} is not UTF-8; save it as UTF-8") from None


# what Windows alone or Unix alone has: bytes as they are, and no links
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


def open_locked(path: Path, *, required: bool = False) -> int:
    """Open a file, which is created if need be, to read it and append to it; lock it until its
    descriptor is closed or this process ends. Where the file system has no locks, only open it.

    Raises BlockingIOError if it is locked already; OSError if it is a link, cannot be opened, or if
    it cannot be locked and `required`.
    """
    from filelock import lock_descriptor  # takes a moment

    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _FLAGS, 0o666)
    try:
        if not lock_descriptor(descriptor, blocking=False):
            raise BlockingIOError(EWOULDBLOCK, "locked by another process", str(path))
    except OSError as error:
        if required or isinstance(error, BlockingIOError):
            os.close(descriptor)
            raise
    return descriptor


MIB = 1 << 20
WHOLE_FILE = 64 * MIB  # a file up to this size is read completely
SAMPLE = 4096  # bytes read at the start of each MiB of a larger file, whose last MiB is read too

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
            for offset in range(0, size - MIB, MIB):
                file.seek(offset)
                digest.update(file.read(SAMPLE))
            file.seek(size - MIB)
            digest.update(file.read(MIB))
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
        if len(data) <= MIB:
            digest.update(data)
            continue
        for offset in range(0, len(data), EVERY):
            digest.update(data[offset : offset + SAMPLE])
        digest.update(data[-SAMPLE:])
    return digest.hexdigest()
