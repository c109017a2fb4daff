"""The `doctor` command: what is installed, what works, and how to fix the rest.

Each part is really tried: modules are imported, a sound is decoded, a kernel is run. A failed
check becomes a line of the answer, never an error, so each check imports what it needs itself.
"""

import argparse
import importlib
import io
import json
import os
import platform
import shutil
import sys
import sysconfig
import time
import warnings
import wave
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper import SPINS
from slimwhisper.text import error_line, human_size, install_command

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    value: str
    ok: bool | None  # False: prevents transcribing; None: does not, but users should know
    advice: str = ""  # what to do, if anything


def run_doctor(arguments: argparse.Namespace) -> int:
    """The `doctor` command (`json`); 1 if something prevents transcribing."""
    results = checks(arguments.threads)
    bad = [name for name, check in results.items() if check.ok is False]
    if arguments.json:
        rows = [{"name": name, **asdict(check)} for name, check in results.items()]
        print(json.dumps({"healthy": not bad, "checks": rows}))
    else:
        print_doctor(results)
        if bad:
            print(f"Problems that prevent transcription: {', '.join(bad)}.")
            print(f"Next: {results[bad[0]].advice}")
        else:
            missing = any(check.ok is None for check in results.values())
            legend = " (-: optional, and missing)" if missing else ""
            print(f"No problems{legend}.")
            print("Next: slimwhisper transcribe YOUR_RECORDING --model small")
    return 1 if bad else 0


def checks(threads: int = 0) -> dict[str, Check]:
    """Run all checks, by name; takes some seconds. threads: as in `set_threads`. Never raises."""
    results = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packages = {}
        with suppress(ImportError):  # packaging, or slimwhisper itself, is not installed
            packages = package_checks()
        cpu = {"CPU": (True, partial(_cpu, threads))}
        for name, (needed, check) in (packages | CHECKS | cpu).items():
            try:
                results[name] = check()
            except Exception as error:
                advice = "fix this first" if needed else ""
                failed = False if needed else None
                results[name] = Check(f"fails: {error_line(error, kind=True)}", failed, advice)
    return results


def print_doctor(results: Mapping[str, Check]) -> None:
    """A paragraph for each check."""
    from rich.table import Table

    from slimwhisper.commands.tables import console

    page = Table.grid(padding=(0, 2, 0, 0))
    for whole in (True, True, False):
        page.add_column(no_wrap=whole, overflow="fold")
    for name, check in results.items():
        verdict = {True: "ok", False: "BAD", None: "-"}[check.ok]
        page.add_row(verdict, name, check.value + (f"\n-> {check.advice}" if check.advice else ""))
    console(None).print(page)


# requirements whose modules have other names; "": importing it would set torch's threads
MODULES = {"safetensors": "safetensors.torch", "silero-vad": ""}
OPTIONAL = {  # requirements that transcription does not need
    "torchaudio": "not needed, as soxr resamples too; but `transformers` does not import with it: "
    "install torchaudio from the same index as torch, or pip uninstall torchaudio"
}


def package_checks() -> dict[str, tuple[bool, Callable[[], Check]]]:
    """A row of `CHECKS` for each of slimwhisper's own requirements."""
    from packaging.requirements import Requirement  # comes with huggingface_hub

    requirements = (Requirement(text) for text in metadata.requires("slimwhisper") or ())
    required = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return {r.name: (r.name not in OPTIONAL, partial(check_package, r)) for r in required}


def check_package(requirement: "Requirement") -> Check:
    """Its version, whether slimwhisper supports that version, and whether it imports."""
    name, specifier = requirement.name, requirement.specifier
    failed, install = None if name in OPTIONAL else False, f"pip install '{name}{specifier}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check("not installed", failed, OPTIONAL.get(name, install))
    try:
        if module := MODULES.get(name, name):
            importlib.import_module(module)
    except Exception as error:
        advice = OPTIONAL.get(name, f"{install} --force-reinstall")
        return Check(f"{version}, does not import: {error_line(error, kind=True)}", failed, advice)
    if not specifier.contains(version, prereleases=True):
        return Check(version, None, f"slimwhisper supports {specifier}; {install}")
    return Check(version, True)


def _slimwhisper() -> Check:
    folder = Path(__file__).parents[1]
    try:
        return Check(f"{metadata.version('slimwhisper')} in {folder}", True)
    except metadata.PackageNotFoundError:
        advice = f"to check its packages too: pip install {folder.parent}"
        return Check(f"not installed; run from {folder}", None, advice)


def _python() -> Check:
    where = f"{platform.system()} {platform.machine()}"
    return Check(f"{platform.python_version()} on {where}, {sys.executable}", True)


def _cpu(threads: int = 0) -> Check:
    """The threads, as `set_threads` sets them, and why they are as many."""
    import torch

    from slimwhisper.cores import VARIABLES, find_cores, set_threads

    set_threads(threads)
    count, found = torch.get_num_threads(), find_cores()
    rules = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ][:1]
    if threads:
        rules = ["--threads"]
    value = f"{count} thread{'s' * (count != 1)}, of {found.machine} cores"
    if why := ", ".join(filter(None, (found.limits(), *rules))):
        value += f": {why}"
    if count <= found.threads:
        return Check(value, True)
    return Check(value, None, f"more threads than cores wait for each other; use {found.threads}")


def _gpu() -> Check:
    import torch

    from slimwhisper.devices import choose_device, device_warning, unused_gpu

    if torch.cuda.is_available():
        seen = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        names = [
            f"cuda:{i} {p.name}, {p.total_memory / 2**30:.0f} GiB, compute capability "
            f"{p.major}.{p.minor}"
            for i, p in enumerate(seen)
        ]
        built = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        advice = device_warning(torch.device("cuda"), True)
        if not advice and find_spec("triton") is None:
            advice = f"decoding is faster with Triton: {install_command('gpu')}"
        return Check(f"{'; '.join(names)}; {built}", None if advice else True, advice)
    if (device := choose_device(None)).type != "cpu":
        return Check(f"{device.type}, by PyTorch's operators", None, device_warning(device, True))
    if torch.version.cuda is None:
        value = "none: this is PyTorch's CPU build"
        advice = "with an NVIDIA GPU, install PyTorch's CUDA build: https://pytorch.org/get-started"
    else:
        value = f"none that PyTorch's CUDA {torch.version.cuda} can use"
        advice = unused_gpu() or "check that nvidia-smi lists one; a container needs --gpus all"
    return Check(value, None, f"the CPU is used, which is slower; {advice}")


def _kernels() -> Check:
    """The kernels that are used; on a GPU, one is run."""
    import torch

    from slimwhisper.kernels.attention import Latent
    from slimwhisper.kernels.cpu.library import why_not_compiled
    from slimwhisper.kernels.dispatch import Kernels
    from slimwhisper.kernels.linear import describe_paths

    if not torch.cuda.is_available():
        kernels = Kernels(torch.device("cpu"), torch.float32)
        fast = kernels.library is not None or kernels.triton_device is not None
        slow = f"one window at a time is about half as fast: {why_not_compiled()}"
        paths = f"{kernels.describe()}; {describe_paths()}; {_WAITING}"
        return Check(paths, fast or None, "" if fast else slow)
    kernels = Kernels(torch.device("cuda"), torch.float16)
    latent = torch.ones((1, 16, 384), device="cuda", dtype=torch.float16)
    if not bool((kernels.latent(latent[0, :6, None], Latent(latent), 1.0) == 1).all()):
        return Check("attention on the GPU gives a wrong result", False, _TORCH_ONLY)
    remedy = "check the C compiler below, or set TRITON_CACHE_DIR to a writable folder"
    advice = "" if kernels.used["latent", "torch"] == 0 else f"slower than with Triton: {remedy}"
    return Check(kernels.describe(), None if advice else True, advice)


_WAITING = f"programs that import torch before slimwhisper should set GOMP_SPINCOUNT={SPINS}"
_TORCH_ONLY = "set SLIMWHISPER_KERNELS=torch, and report this as a bug"


WINDOWS, TOKENS = 2, 50  # that `job_seconds` decodes


def job_seconds(dtype: str) -> float:
    """How long recordings of noise take, one at a time, in tiny's shape with random weights."""
    from slimwhisper.api import SlimWhisper
    from slimwhisper.cache.forms import choose_forms
    from slimwhisper.commands.costs import OFFICIAL_DIMS
    from slimwhisper.commands.random_weights import random_checkpoint, recordings
    from slimwhisper.devices import INT8, choose_device, choose_dtype
    from slimwhisper.guard import guarded_plan
    from slimwhisper.model.model import Model

    checkpoint, device = random_checkpoint(OFFICIAL_DIMS["tiny"]), choose_device(None)
    how = choose_dtype(dtype, device), choose_forms("slim"), guarded_plan, dtype == INT8
    model, audio = SlimWhisper(Model(checkpoint, device, *how)), recordings(WINDOWS)
    options: dict[str, Any] = {"language": "en", "temperature": 0.0, "sample_len": TOKENS}
    for some in (audio[:1], audio):  # the first time, kernels are compiled and memory is fetched
        began = time.perf_counter()
        list(model.transcribe_many(some, batch_size=1, **options))
    return time.perf_counter() - began


def _speed() -> Check:
    """How fast a small job is in each dtype, but those that are slow on this processor."""
    from slimwhisper.commands.random_weights import RECORDING_SECONDS
    from slimwhisper.devices import INT8, choose_device, choose_dtype, is_slow
    from slimwhisper.errors import OptionError
    from slimwhisper.types import COMPUTE_TYPES

    device, speeds = choose_device(None), []
    for name in COMPUTE_TYPES[1:]:
        with suppress(OptionError):  # int8 is not for every device
            if not is_slow(choose_dtype(name, device), device):
                kind = "inexact " if name == INT8 else ""
                speed = WINDOWS * RECORDING_SECONDS / job_seconds(name)
                speeds.append(f"{kind}{name} {speed:.0f}")
    auto = str(choose_dtype("auto", device)).removeprefix("torch.")
    how = f"tiny's shape, {TOKENS} tokens a window, one at a time"
    value = f"{', '.join(speeds)} times real time ({how}); --compute_type auto is {auto}"
    return Check(value, True)


def _c_compiler() -> Check:
    """Triton compiles each kernel's launcher with $CC, gcc or clang against Python's headers."""
    if find_spec("triton") is None:
        return Check("not needed without Triton", True)
    names = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    path = next(filter(None, map(shutil.which, names)), None)
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if path is not None and headers.is_file():
        return Check(f"{path}, Python.h found", True)
    problem = f"no {' or '.join(names)}" if path is None else f"{path}, but no {headers}"
    return Check(problem, None, "apt-get install gcc python3-dev; Triton starts kernels with them")


def _decoding() -> Check:
    """Decodes a tenth of a second at 44.1 kHz in stereo with FFmpeg's libraries."""
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
        advice = "pip install av --force-reinstall"
        return Check(f"PyAV fails: {error_line(error, kind=True)}", False, advice)
    return Check("PyAV works; the ffmpeg program is not needed", True)


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
    return Check("--diarize can read only .rttm files", None, advice)


def _models() -> Check:
    from slimwhisper.formats.downloads import default_download_root

    advice = "pass --model_dir FOLDER, or set XDG_CACHE_HOME"
    return _folder_check(Path(default_download_root()), False, advice)


def _hub() -> Check:
    from huggingface_hub.constants import HF_HUB_CACHE

    return _folder_check(Path(HF_HUB_CACHE), None, "set HF_HUB_CACHE to another folder")


def _folder_check(folder: Path, failed: bool | None, remedy: str) -> Check:
    """Whether a folder for models is or can be made writable, and the free disk space."""
    exists = next(path for path in (folder, *folder.parents) if path.exists())
    if not (exists.is_dir() and os.access(exists, os.W_OK | os.X_OK)):
        return Check(f"{folder}: {exists} is not writable", failed, remedy)
    free = shutil.disk_usage(exists).free
    advice = f"large-v3 takes 3.1 GB; to keep models on another disk, {remedy}"
    return Check(f"{folder}; {human_size(free)} free", True, advice if free < 4e9 else "")


# name -> whether it is needed, and the check; those of packages come first
CHECKS: dict[str, tuple[bool, Callable[[], Check]]] = {
    "python": (False, _python),
    "slimwhisper": (False, _slimwhisper),
    "CPU": (True, _cpu),
    "GPU": (False, _gpu),
    "kernels": (False, _kernels),
    "C compiler": (False, _c_compiler),
    "speed": (False, _speed),
    "decoding audio": (True, _decoding),
    "resampling": (True, _resampling),
    "speakers": (False, _speakers),
    "models folder": (True, _models),
    "hub cache": (False, _hub),
}
