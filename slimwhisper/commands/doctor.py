"""The `doctor` command: what is installed, what works, and how to fix the rest.

Each part is really tried: modules are imported, a sound is decoded, a kernel is run. A failed
check becomes a line of the answer, never an error, so each check imports what it needs itself.
"""

import argparse
import io
import json
import os
import platform
import shutil
import sys
import sysconfig
import textwrap
import warnings
import wave
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TextIO

from slimwhisper.commands.packages import (
    PACKAGES,
    Check,
    check_package,
    check_slimwhisper,
    wanted_versions,
)
from slimwhisper.text import human_size, one_line


def run_doctor(arguments: argparse.Namespace) -> int:
    """The `doctor` command (`json`); 1 if something prevents transcribing."""
    found = checks()
    if arguments.json:
        rows = [{"name": name, **asdict(check)} for name, check in found.items()]
        print(json.dumps({"healthy": not failing(found), "checks": rows}))
    else:
        print_doctor(found, sys.stdout)
    return 1 if failing(found) else 0


def failing(found: Mapping[str, Check]) -> list[str]:
    """What prevents transcribing; a missing GPU or extra does not."""
    return [name for name, check in found.items() if check.ok is False]


def checks() -> dict[str, Check]:
    """Run all checks, by name; takes some seconds. Never raises."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (needed, check) in CHECKS.items():
            try:
                found[name] = check()
            except Exception as error:
                advice = "put right what this names first" if needed else ""
                failed = False if needed else None
                found[name] = Check(f"fails: {one_line(error, kind=True)}", failed, advice)
    return found


def print_doctor(found: Mapping[str, Check], file: TextIO) -> None:
    """A paragraph for each check, and a summary in the last line."""
    width = max(40, shutil.get_terminal_size().columns)
    names = max(map(len, found))

    def write(head: str, text: str) -> None:
        indent = " " * (names + 7)
        lines = textwrap.wrap(text, width, initial_indent=head, subsequent_indent=indent)
        print("\n".join(lines), file=file)

    for name, check in found.items():
        mark = {True: "ok", False: "BAD", None: "-"}[check.ok]
        write(f"{mark:>3}  {name:<{names}}  ", check.value)
        if check.advice:
            write(" " * (names + 7) + "-> ", check.advice)
    if bad := failing(found):
        print(f"In the way of transcribing: {', '.join(bad)}.", file=file)
    else:
        print("Nothing stands in the way of transcribing.", file=file)


def _python() -> Check:
    where = f"{platform.system()} {platform.machine()}"
    return Check(f"{platform.python_version()} on {where}, {sys.executable}", True)


def _cpu() -> Check:
    import torch

    return Check(f"{torch.get_num_threads()} threads, {os.cpu_count()} cores", True)


def _gpu() -> Check:
    import torch

    if torch.cuda.is_available():
        seen = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        value = "; ".join(
            f"cuda:{i} {p.name}, {p.total_memory / 2**30:.0f} GiB, "
            f"compute capability {p.major}.{p.minor}"
            for i, p in enumerate(seen)
        )
        return Check(f"{value}; CUDA {torch.version.cuda}", True)
    if torch.version.cuda is None:
        value = "none: this PyTorch is built for the CPU"
        advice = "with an NVIDIA GPU, install PyTorch's CUDA build: https://pytorch.org/get-started"
    else:
        value = f"none that PyTorch's CUDA {torch.version.cuda} can use"
        advice = "see whether nvidia-smi lists one; a container needs --gpus all"
    if torch.backends.mps.is_available():
        value += "; Apple's (MPS) is not supported"
    return Check(value, None, f"the CPU is used, slower; {advice}")


def _kernels() -> Check:
    """Which kernels are used; on a GPU one is run."""
    import torch

    from slimwhisper.kernels.dispatch import Kernels
    from slimwhisper.kernels.latent import Latent

    if not torch.cuda.is_available():
        kernels = Kernels(torch.device("cpu"), torch.float32)
        fast = kernels.library is not None or kernels.processor is not None
        return Check(kernels.describe(), fast or None, "" if fast else _NOT_COMPILED)
    kernels = Kernels(torch.device("cuda"), torch.float16)
    latent = torch.ones((1, 16, 384), device="cuda", dtype=torch.float16)
    ones = kernels.latent(latent[0, :6, None], Latent(latent), 1.0)
    if not bool((ones == 1).all()):
        return Check("the attention on the GPU gives a wrong result", False, _TORCH_ONLY)
    by_triton = kernels.used["latent", "triton"] > 0
    return Check(kernels.describe(), by_triton or None, "" if by_triton else _WITHOUT_TRITON)


_NOT_COMPILED = (
    "one window at a time is about half as fast: the functions in C were not compiled, or are "
    "turned off, or the processor has no AVX2; install gcc, then slimwhisper again"
)
_WITHOUT_TRITON = (
    "slower than with Triton: see triton above and the C compiler below; or set TRITON_CACHE_DIR "
    "to a folder that can be written"
)
_TORCH_ONLY = "set SLIMWHISPER_KERNELS=torch and report it"


def _c_compiler() -> Check:
    """Triton compiles each kernel's launcher with $CC, gcc or clang against Python's headers."""
    chosen = os.environ.get("CC")
    path = next(filter(None, map(shutil.which, [chosen] if chosen else ["gcc", "clang"])), None)
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    advice = "apt-get install gcc python3-dev; on a GPU, Triton needs them to start kernels"
    if path is None and chosen:
        return Check(f"CC is {chosen!r}, which is not there", None, f"unset CC; {advice}")
    if path is None:
        return Check("none found", None, advice)
    if not headers.is_file():
        return Check(f"{path}, but no {headers}", None, advice)
    return Check(f"{path}, Python.h found", True)


def _decoding() -> Check:
    """A tenth of a second at 44.1 kHz in stereo, which only FFmpeg's libraries can decode."""
    from slimwhisper.audio.load import load_audio

    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((2, 2, 44_100, 0, "NONE", ""))
        sound.writeframes(b"\x00\x20" * 2 * 4_410)  # a quarter of full scale
    try:
        samples = load_audio(file.getvalue())
        if abs(len(samples) - 1_600) > 16 or abs(float(samples[800]) - 0.25) > 0.01:
            raise ValueError(f"{len(samples)} samples of {samples.mean():.2f}, not 1600 of 0.25")
    except Exception as error:
        advice = f"pip install 'av{wanted_versions('av')}' --force-reinstall"
        return Check(f"PyAV fails: {one_line(error, kind=True)}", False, advice)
    return Check("PyAV decodes; the ffmpeg program is not needed", True)


def _resampling() -> Check:
    from slimwhisper.audio.load import resampler

    name, why = resampler()
    return Check(f"{name}: {why.split(':')[0]}", True)


def _speakers() -> Check:
    from slimwhisper.speakers.choice import BACKENDS, missing

    ready = [name for name in BACKENDS if not missing(name)]
    if ready:
        return Check(f"--diarize can use {', '.join(ready)}", True)
    advice = f"to find who speaks: {BACKENDS['embedding'].install}"
    return Check("--diarize can only read .rttm files", None, advice)


def _models() -> Check:
    from slimwhisper.checkpoint.formats.openai import default_download_root

    folder = Path(default_download_root())
    kept = {p.stem: p.stat().st_size for p in sorted(folder.glob("*.pt")) if p.is_file()}
    advice = "pass --model_dir FOLDER, or set XDG_CACHE_HOME"
    return _place(folder, kept, False, advice)


def _hub() -> Check:
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE)
    kept = {}
    for model in sorted(folder.glob("models--*whisper*")):
        name = model.name.removeprefix("models--").replace("--", "/")
        kept[name] = sum(p.stat().st_size for p in model.glob("blobs/*"))
    return _place(folder, kept, None, "set HF_HUB_CACHE to another folder")


def _place(folder: Path, kept: dict[str, int], failed: bool | None, elsewhere: str) -> Check:
    """Whether a folder exists and is writable, what it holds (bytes), and the free disk space."""
    exists = folder
    while not exists.exists():
        exists = exists.parent
    inside = ", ".join(f"{model} {human_size(size)}" for model, size in kept.items()) or "no models"
    value = f"{folder}: {inside if exists == folder else 'not made yet'}"
    if not exists.is_dir():
        return Check(f"{folder}: {exists} is not a folder", failed, elsewhere)
    if not os.access(exists, os.W_OK | os.X_OK):
        return Check(f"{value}; {exists} cannot be written", failed, elsewhere)
    free = shutil.disk_usage(exists).free
    advice = f"large-v3 takes 3.1 GB; to keep models on another disk, {elsewhere}"
    return Check(f"{value}; {human_size(free)} free", True, advice if free < 4e9 else "")


# by name: whether it is needed, and the check
CHECKS: dict[str, tuple[bool, Callable[[], Check]]] = {
    "python": (False, _python),
    "slimwhisper": (False, check_slimwhisper),
    **{package[0]: (package[1], partial(check_package, *package)) for package in PACKAGES},
    "CPU": (True, _cpu),
    "GPU": (False, _gpu),
    "kernels": (False, _kernels),
    "C compiler": (False, _c_compiler),
    "decoding audio": (True, _decoding),
    "resampling": (True, _resampling),
    "speakers": (False, _speakers),
    "models folder": (True, _models),
    "hub cache": (False, _hub),
}
