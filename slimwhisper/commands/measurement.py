"""Makes one measurement for the `bench` command, in a process of its own: memory that an earlier
measurement has freed would distort the peak.
"""

import ctypes
import gc
import re
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.api import SlimWhisper
from slimwhisper.cache.forms import choose_forms
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.commands.costs import OFFICIAL_DIMS
from slimwhisper.commands.random_weights import random_checkpoint
from slimwhisper.cores import set_threads
from slimwhisper.devices import INT8, choose_device, choose_dtype
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.guard import guarded_plan
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import FRAMES_PER_SECOND, SAMPLE_RATE, WINDOW_FRAMES

RECORDING_SECONDS = 29  # one window
DIFFERENT = 8  # recordings, which are then repeated
FIRST_TOKENS = 3  # how often the time to the first token is measured, after one warm-up

Audio = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Case:
    """The settings of one measurement."""

    cache: str  # a preset
    batch: int  # windows decoded together
    windows: int  # recordings in all, one window each
    tokens: int  # sampled in each window
    model: str
    random: bool  # `model` is an official name, and only its shape is used
    model_dir: str | None = None
    adapter: str | None = None
    device: str | None = None
    dtype: str | None = None
    threads: int = 0  # as in `set_threads`
    beam_size: int | None = None  # None: greedy


class EncoderClock:
    """Times the calls of an encoder, without synchronizing a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.clear()

    def clear(self) -> None:
        """Discard all calls."""
        self.windows = 0
        self._spans: list[tuple[Any, Any]] = []

    def wrap(self, encode: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The same function, mels [G, n_mels, 3000] -> [G, p, d], timed."""

        def timed(mel: Tensor) -> Tensor:
            start = self._now()
            features = encode(mel)
            self._spans.append((start, self._now()))
            self.windows += len(mel)
            return features

        return timed

    def seconds(self) -> float:
        """The total time of all calls."""
        if self._cuda:
            torch.cuda.synchronize()
            return sum(start.elapsed_time(end) for start, end in self._spans) / 1000
        return sum(end - start for start, end in self._spans)

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Memory:
    """The peak memory use of this process, or of its GPU."""

    def __init__(self, device: torch.device) -> None:
        """`grown` does not count memory that is in use now."""
        self._device, self._cuda = device, device.type == "cuda"
        gc.collect()
        with suppress(OSError, AttributeError):  # memory freed after loading must not hide a rise
            ctypes.CDLL(None).malloc_trim(0)
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with suppress(OSError):  # reset the peak; else it stays that of loading
                Path("/proc/self/clear_refs").write_text("5")
        self._before = self.peak()

    def peak(self) -> int:
        """Bytes; 0 if the system does not report it."""
        if self._cuda:
            return torch.cuda.max_memory_allocated(self._device)
        with suppress(OSError):  # ru_maxrss would begin with the parent's peak
            match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
            return int(match[1]) * 1024 if match else 0
        return 0

    def grown(self) -> int:
        """Bytes by which the peak has risen."""
        return self.peak() - self._before


def recordings(count: int) -> list[Audio]:
    """Seeded noise that swells and stops, float32 [n] each; the first `DIFFERENT` ones differ."""

    def noise(seed: int) -> Audio:
        rng = np.random.default_rng(seed)
        n = RECORDING_SECONDS * SAMPLE_RATE
        envelope = np.repeat(rng.uniform(0, 0.3, RECORDING_SECONDS * 4), SAMPLE_RATE // 4)
        return (rng.standard_normal(n) * envelope).astype(np.float32)

    distinct = [noise(seed) for seed in range(min(count, DIFFERENT))]
    return [distinct[i % DIFFERENT] for i in range(count)]


def fixed_length(vocabulary: Vocabulary, case: Case, tokens: int) -> dict[str, Any]:
    """The options with which every window samples exactly `tokens` tokens."""
    banned = [-1, vocabulary.eot]
    if not case.random:  # random models never sample timestamps, which would move the window
        banned += vocabulary.timestamps
    return {
        "language": "en",
        "sample_len": tokens,
        "suppress_tokens": ",".join(map(str, banned)),
        "without_timestamps": True,
        "temperature": 0.0,
        "beam_size": case.beam_size,
        "condition_on_previous_text": False,
        "no_speech_threshold": None,
        "logprob_threshold": None,
        "compression_ratio_threshold": None,
    }


def _checkpoint(case: Case) -> Checkpoint:
    if not case.random:
        return load_checkpoint(case.model, download_root=case.model_dir, adapter=case.adapter)
    if case.model not in OFFICIAL_DIMS:
        shapes = ", ".join(OFFICIAL_DIMS)
        raise OptionError(f"--model {case.model!r} is not an official shape; give one of: {shapes}")
    return random_checkpoint(OFFICIAL_DIMS[case.model])


def measure(case: Case) -> dict[str, Any]:
    """Load the model, time first tokens, then decode all windows.

    Returns the values of one round for a row of the answer (`bench.summarize`), and its "place":
    the device and dtype. Raises `SlimWhisperError`, also if the number of sampled tokens is not the
    requested one.
    """
    set_threads(case.threads)
    device = choose_device(case.device)
    dtype = choose_dtype(case.dtype, device)
    clock = EncoderClock(device)
    checkpoint = _checkpoint(case)
    dims, vocabulary, name = checkpoint.dims, checkpoint.tokens, checkpoint.name
    if dims.window_frames != WINDOW_FRAMES:
        length = f"{dims.window_frames / FRAMES_PER_SECOND:g} s long, but bench measures 30 s"
        raise OptionError(f"{name}: its windows are {length}; choose another model")
    if case.tokens > (most := dims.n_text_ctx // 2):
        raise OptionError(f"--tokens {case.tokens}: a window has room for {most}; give fewer")
    forms = choose_forms(case.cache)
    network = Model(checkpoint, device, dtype, forms, guarded_plan, case.dtype == INT8)
    model = SlimWhisper(network)
    vars(network)["encoder"] = clock.wrap(network.encoder)
    del checkpoint
    audio = recordings(case.windows)
    once, all_of_it = (fixed_length(vocabulary, case, n) for n in (1, case.tokens))
    memory = Memory(device)

    waits = [_seconds(model, case.batch, audio[:1], once)[0] for _ in range(1 + FIRST_TOKENS)][1:]
    clock.clear()
    seconds, counts = _seconds(model, case.batch, audio, all_of_it)
    if counts != [case.tokens] * case.windows or clock.windows != case.windows:
        sampled = f"{clock.windows} windows sampled {sum(counts)} tokens"
        expected = f"{case.windows} with {case.tokens} each"
        raise SlimWhisperError(f"{name}: {sampled}, not {expected}; use --random")
    return {
        "forms": "+".join(map(str, forms)),
        "tokens_sampled": sum(counts),
        "seconds": seconds,  # all windows
        "encoder_seconds": clock.seconds(),  # of these
        "first_token_seconds": statistics.median(waits),  # from the call, one recording
        "memory_bytes": memory.grown(),  # the peak, less what was in use with the model loaded
        # of the pages of all texts, at most
        "text_bytes": model.text_memory().peak_bytes,
        "peak_bytes": memory.peak(),  # of the process; on a GPU, of its tensors
        "fallbacks": list(network.plan.fallbacks),  # forms that the guard replaced
        "place": {
            "device": str(device),
            "dtype": INT8 if case.dtype == INT8 else str(dtype).removeprefix("torch."),
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
            "threads": torch.get_num_threads(),
        },
    }


def _seconds(
    model: SlimWhisper, batch: int, audio: list[Audio], options: dict[str, Any]
) -> tuple[float, list[int]]:
    """How long the recordings take, and the tokens of each text."""
    began, counts = time.perf_counter(), []
    # an iterator, so that there are always `batch` slots, however few the recordings
    for _, result in model.transcribe_many(iter(audio), batch_size=batch, **options):
        if isinstance(result, SlimWhisperError):
            raise result
        counts.append(sum(len(segment.tokens) for segment in result.segments))
    return time.perf_counter() - began, counts
