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
from slimwhisper.audio.threads import set_threads
from slimwhisper.cache.forms import PRESETS, choose_forms, research
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.devices import INT8, choose_device, choose_dtype, device_warning, is_slow
from slimwhisper.errors import OptionError
from slimwhisper.kernels.cpu.library import library
from slimwhisper.loaded_model import ModelOrigin
from slimwhisper.model.model import Guard, Model
from slimwhisper.option_group import AUDIO_WINDOWS
from slimwhisper.text import not_one_of, parse_size

logger = logging.getLogger("slimwhisper")


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
    draft: str | PathLike[str] | None = None,
    cache_memory: int | str | None = None,
    audio_window: str | None = None,
    local_files_only: bool = False,
) -> SlimWhisper:
    """Load a model by name, Hugging Face id or folder, or `.pt` file.

    Where torch would use more threads than this process has cores, by a quota or with
    hyper-threads, it gets fewer; `torch.set_num_threads` and OMP_NUM_THREADS rule.

    Arguments:
        device: such as "cpu" or "cuda:1"; None: a GPU if available (docs/internals/gpu.md).
        download_root: folder for downloaded models; None: ~/.cache/whisper.
        in_memory: read the file's weights into memory first, instead of mapping them.
        dtype: "float32", "float16" or "bfloat16"; None: float16 on a GPU, float32 on a CPU;
            "auto": the fastest of them here that keeps the rule of docs/internals/numerics.md,
            bfloat16 on CPUs with instructions for it. "int8": float32 with the large matrices in
            int8, faster on a CPU, but not exact.
        cache: "slim", "option1", "option2" or "baseline"; `cross_cache` ("kv", "k", "v", "e",
            "hybrid") and `self_cache` ("kv", "k", "v", "x") replace its two halves. Or the path of
            a file that `slimwhisper calibrate` wrote for this checkpoint
            (docs/internals/tradeoff.md).
        cache_dtype: "fp8" keeps slim's caches in float8: half the bytes, but not exact
            (docs/internals/numerics.md); None: in `dtype`.
        strict_cache: raise `CacheError` if a form is not exact, instead of falling back.
        guard_audio: real speech for the guard to measure an inverse-based form on.
        adapter: folder or Hugging Face id of a LoRA adapter in PEFT's format, which is merged
            into the weights.
        draft: a smaller model with the same encoder, such as distil-large-v3 for large-v3: it
            drafts tokens, and the model verifies several in one pass. The same texts in fewer
            steps; not with beams (docs/guides/transcribing.md#drafts).
        cache_memory: bytes for the cache of texts, such as "2GB": pages of 16 tokens, which texts
            take as they grow. If they run out, the youngest windows wait, and start again later.
            None: enough for the context of every window, or a GPU's free memory
            (docs/internals/caches.md).
        audio_window: "auto": windows as long as their audio, several times faster for short ones;
            only for models that were trained with such windows: others then write nonsense.
            "near": of 20 s if the audio is shorter, for other models; "full": of 30 s, with silence
            after the audio. None: as the model's settings say, else "full"
            (docs/guides/transcribing.md#short-recordings).
        local_files_only: download nothing.
    Raises:
        CheckpointError, OptionError, CacheError.
    """
    load = partial(load_model, **locals())
    set_threads()
    cache = fspath(cache)
    try:
        memory = parse_size(cache_memory) if isinstance(cache_memory, str) else cache_memory
    except ValueError as error:
        raise OptionError(f"cache_memory: {error}") from None
    forms = choose_forms(cache, cross_cache, self_cache, cache_dtype)
    chosen, device = device is None, choose_device(device)
    if warning := device_warning(device, chosen):
        logger.warning("%s", warning)
    compute_dtype = choose_dtype(dtype, device)
    if is_slow(compute_dtype, device):
        slow = str(compute_dtype).removeprefix("torch.")
        logger.warning("%s is very slow on this CPU; use auto", slow)
    if device.type == "cpu" and library() is None and "SLIMWHISPER_KERNELS" not in os.environ:
        logger.warning("no compiled kernels: about half the speed; slimwhisper doctor says why")
    read = partial(
        load_checkpoint,
        name,
        download_root=download_root,
        local_files_only=local_files_only,
        in_memory=in_memory,
        adapter=adapter,
    )
    checkpoint = read()
    if audio_window is not None:
        if audio_window not in AUDIO_WINDOWS:
            raise OptionError(f"audio_window {not_one_of(audio_window, AUDIO_WINDOWS)}")
        settings = replace(checkpoint.settings, audio_window=audio_window)
        checkpoint = replace(checkpoint, settings=settings)
    if cache not in PRESETS:
        forms = research(".cache_file").read_forms(cache, forms, checkpoint)
    guard = Guard(strict_cache)
    if guard_audio is not None:
        dims = checkpoint.dims
        mel = first_window(as_waveform(guard_audio), dims.n_mels, dims.window_frames)
        guard = Guard(strict_cache, mel)
    int8 = dtype == INT8
    model = Model(checkpoint, device, compute_dtype, forms, guard, int8)
    model.check_audio_window(audio_window)
    model.cache_memory = memory
    if draft is not None:
        from slimwhisper.engine.drafting import load_draft

        smaller = load_checkpoint(draft, download_root=download_root, in_memory=in_memory)
        model.draft = load_draft(smaller, checkpoint, model)
    loaded = SlimWhisper(model)
    loaded.origin = ModelOrigin(load, read)
    return loaded
