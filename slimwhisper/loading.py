"""Defines `load_model`, which makes a `SlimWhisper` of a checkpoint, cache forms and a device."""

import logging
import os
from dataclasses import replace
from functools import partial
from os import PathLike, fspath

import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import AudioSource, as_waveform
from slimwhisper.audio.mel import first_window
from slimwhisper.cache.forms import PRESETS, choose_forms, research
from slimwhisper.cores import set_threads
from slimwhisper.devices import INT8, choose_device, choose_dtype, device_warning, has_room, is_slow
from slimwhisper.errors import CheckpointError, OptionError, memory_errors
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.kernels.cpu.library import library
from slimwhisper.loaded_model import ModelOrigin
from slimwhisper.model.model import MakePlan, Model, baseline_bytes, exact_plan
from slimwhisper.option_group import AUDIO_WINDOWS, check_count
from slimwhisper.text import not_one_of, parse_size

logger = logging.getLogger("slimwhisper")

FEW_WINDOWS = 8  # whose steps a GPU makes faster with keys and values: docs/internals/gpu.md


def load_model(
    name: str | PathLike[str],
    device: str | torch.device | None = None,
    download_root: str | PathLike[str] | None = None,
    in_memory: bool = False,
    *,
    dtype: str | torch.dtype | None = None,
    cache: str | PathLike[str] = "slim",
    cross_cache: str | None = None,
    self_cache: str | None = None,
    cache_dtype: str | None = None,
    strict_cache: bool = False,
    guard_audio: AudioSource | None = None,
    adapter: str | PathLike[str] | None = None,
    cache_memory: int | str | None = None,
    audio_window: str | None = None,
    local_files_only: bool = False,
    windows: int | None = None,
) -> SlimWhisper:
    """Load a model by its name, Hugging Face id or folder, or from a `.pt` file.

    The first arguments are those of `whisper.load_model`. Where torch would use more threads than
    this process has cores, because of a quota or of hyper-threads, it gets fewer threads. A call of
    `torch.set_num_threads` and the variable OMP_NUM_THREADS take precedence.

    Args:
        name: A name of `available_models`, an id of the Hugging Face hub, or the path of a file or
            a folder. A `Path` is never taken for an id.
        device: The device, such as "cpu" or "cuda:1". None means a GPU if one is available. See
            docs/internals/gpu.md.
        download_root: The folder for downloaded models. None means ~/.cache/whisper. Models of the
            Hugging Face hub stay in the hub's own cache.
        in_memory: Whether to read the weights into memory first, instead of mapping them from the
            file.
        dtype: The dtype to compute in: "float32", "float16" or "bfloat16". None means float16 on a
            GPU and float32 on a CPU. "auto" means the fastest of them on this machine that keeps
            the rule of docs/internals/numerics.md: bfloat16 on CPUs that have instructions for it.
            "int8" means float32 with the large matrices in int8, which is faster on a CPU, but not
            exact.
        cache: The forms of the decoder's cache: "slim", "option1", "option2" or "baseline". It may
            also be the path of a file that `slimwhisper calibrate` wrote for this checkpoint; see
            docs/internals/caches.md.
        cross_cache: The form of the cache of the audio, in place of that of `cache`: "kv", "k",
            "v", "e" or "hybrid".
        self_cache: The form of the cache of the text, in place of that of `cache`: "kv", "k", "v"
            or "x".
        cache_dtype: "fp8" keeps the caches of "slim" in float8, which takes half the bytes, but is
            not exact; see docs/internals/numerics.md. None keeps them in `dtype`.
        strict_cache: Whether to raise `CacheError` if a form is not exact for this checkpoint. By
            default another form replaces it.
        guard_audio: Real speech for the exactness check of forms that need an inverse matrix.
        adapter: The folder or the Hugging Face id of a LoRA adapter in PEFT's format, which is
            merged into the weights.
        cache_memory: The bytes for the cache of texts, as a number or such as "2GB". Texts take
            pages of 16 tokens as they grow. If the pages run out, the youngest windows wait, and
            start again later. None means enough for the context of every window, or a GPU's free
            memory. See docs/internals/caches.md.
        audio_window: The length of windows. "auto" makes them as long as their audio, which is
            several times faster for short audio, but only for models that were trained with such
            windows; others write nonsense then. "near" makes windows of 20 s of audio that is
            shorter, for other models. "full" makes windows of 30 s, with silence after the audio.
            None means what the model's settings say, or else "full". See
            docs/guides/transcribing.md#short-recordings.
        local_files_only: Whether to use only what is on this machine, and to download nothing.
        windows: How many windows you will decode at the same time, at most. With up to 8, "slim"
            becomes "baseline" on a GPU with room for it, which is faster for so few. None means any
            number.

    Returns:
        The loaded model.

    Raises:
        CheckpointError: When the model cannot be found, downloaded or loaded.
        OptionError: When an argument has an invalid value, or the arguments do not fit the model.
        CacheError: When a form is not exact and `strict_cache` is set, or when the file that
            `cache` names is damaged or for another checkpoint.
        AudioError: When `guard_audio` cannot be read.

    Examples:
        >>> import slimwhisper
        >>> model = slimwhisper.load_model("turbo", device="cpu", dtype="auto")
        >>> model.transcribe("talk.mp3")["text"]
    """
    load = partial(load_model, **locals())
    set_threads()
    if not isinstance(name, str | PathLike):
        raise OptionError(f"name {name!r}: give a name such as turbo, or a path")
    cache = fspath(cache)
    try:
        memory = parse_size(cache_memory) if isinstance(cache_memory, str) else cache_memory
        if memory is not None and not memory > 0:
            raise ValueError(f"'{cache_memory}' is not a size above 0, in bytes")
    except ValueError as error:
        raise OptionError(f"cache_memory: {error}") from None
    forms = choose_forms(cache, cross_cache, self_cache, cache_dtype)
    chosen, device = device is None, choose_device(device)
    if warning := device_warning(device, chosen):
        logger.warning("%s", warning)
    compute_dtype = choose_dtype(dtype, device)
    if is_slow(compute_dtype, device):
        slow = str(compute_dtype).removeprefix("torch.")
        kind = "CPU" if device.type == "cpu" else "GPU"
        logger.warning("%s is very slow on this %s; use auto", slow, kind)
    if device.type == "cpu" and library() is None and "SLIMWHISPER_KERNELS" not in os.environ:
        logger.warning("no compiled kernels: about half the speed; slimwhisper doctor says why")
    read = partial(
        load_checkpoint,
        name,
        adapter=adapter,
        download_root=download_root,
        local_files_only=local_files_only,
        in_memory=in_memory,
    )
    checkpoint = read()
    if audio_window is not None:
        if audio_window not in AUDIO_WINDOWS:
            raise OptionError(f"audio_window {not_one_of(audio_window, AUDIO_WINDOWS)}")
        settings = replace(checkpoint.settings, audio_window=audio_window)
        checkpoint = replace(checkpoint, settings=settings)
    chosen_by_user = cross_cache or self_cache or cache_dtype or cache != "slim"
    if windows and check_count("windows", windows) <= FEW_WINDOWS and not chosen_by_user:
        weights = sum(t.numel() for t in checkpoint.state.values()) * compute_dtype.itemsize
        if has_room(device, windows * baseline_bytes(checkpoint.dims, compute_dtype), weights):
            forms = choose_forms("baseline")
    if cache not in PRESETS:
        forms = research(".cache_file").read_forms(cache, forms, checkpoint)
    mel = None
    if guard_audio is not None:
        dims = checkpoint.dims
        mel = first_window(as_waveform(guard_audio), dims.n_mels, dims.window_frames)
    make_plan: MakePlan = exact_plan
    if any(form.guarded for form in forms):
        from slimwhisper.guard import guarded_plan

        make_plan = partial(guarded_plan, mel=mel, strict=strict_cache)
    problem = f"{checkpoint.name}: not enough memory on {device} for its weights"
    with memory_errors(CheckpointError, f"{problem}; choose a smaller model, or another device"):
        model = Model(checkpoint, device, compute_dtype, forms, make_plan, dtype == INT8)
    model.check_audio_window(audio_window)
    model.cache_memory = memory
    loaded = SlimWhisper(model)
    loaded.origin = ModelOrigin(load, read)
    return loaded
