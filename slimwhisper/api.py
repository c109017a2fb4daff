"""The public functions: `load_model(...)`, then `transcribe` or `transcribe_many`."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import Tensor
from tqdm import tqdm

from slimwhisper.audio.load import AudioSource, as_waveform, load_samples
from slimwhisper.audio.mel import first_window
from slimwhisper.cache.forms import choose_forms
from slimwhisper.checkpoint.load import load_checkpoint
from slimwhisper.decoding import as_windows, decode, hear_languages
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.longform.batch import transcribe_all
from slimwhisper.longform.recording import Recording
from slimwhisper.model.model import Model
from slimwhisper.options import make_options
from slimwhisper.types import SAMPLE_RATE, WINDOW_FRAMES, Segment, Transcript
from slimwhisper.writers import segment_line

if TYPE_CHECKING:
    from whisper import DecodingOptions, DecodingResult

logger = logging.getLogger("slimwhisper")

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
INT8 = "int8"

GPU_BATCH, CPU_BATCH = 64, 16

Source = TypeVar("Source", bound=AudioSource)


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device named, else CUDA where there is some, else the CPU; `OptionError` if it fails."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise OptionError(f"device {device!r} cannot be used here ({reason}); try 'cpu'") from error
    return chosen


def choose_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """A dtype by name or itself; None: float16 on a GPU, float32 on a CPU.

    "int8" computes in float32 but for its products, and needs a CPU. Raises OptionError.
    """
    if dtype == INT8:
        if device.type != "cpu" or "onednn" not in torch.backends.quantized.supported_engines:
            raise OptionError("int8 needs an x86 CPU; on a GPU choose float16, and cache_dtype fp8")
        return torch.float32
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.float16
    return as_dtype(dtype, INT8)


def as_dtype(dtype: str | torch.dtype, *others: str) -> torch.dtype:
    """A dtype by name or itself. Raises OptionError, which names `others` too."""
    chosen = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if chosen not in (*DTYPES.values(), torch.float64):
        raise OptionError(f"dtype {dtype!r} is not one of {', '.join((*DTYPES, *others))}")
    return chosen


class SlimWhisper(Model):
    """A loaded model with `whisper`'s calls."""

    def transcribe(
        self,
        audio: AudioSource,
        *,
        sample_rate: int = SAMPLE_RATE,
        verbose: bool | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Transcribe one recording of any length.

        Arguments:
            audio: a path, the bytes of a file, a binary file object, or a waveform: array or
                tensor [n] or [channels, n] at `sample_rate` Hz.
            verbose: True prints every segment as it is decoded, False shows a progress bar.
            batch_size: pieces decoded side by side with `parallel`; None: see `transcribe_many`.
            options: the fields of `slimwhisper.Options`, `whisper`'s names and defaults.
        Returns:
            `whisper`'s dictionary: "text", "segments", "language".
        Raises:
            AudioError, OptionError.
        """
        chosen = make_options(self.dims, self.name, **options)
        bar = tqdm(unit="s", disable=verbose is not False)

        def show(_: Any, segments: list[Segment], done: float) -> None:
            if verbose:
                for segment in segments:
                    print(segment_line(segment), flush=True)
            bar.update(round(done, 1) - bar.n)

        def load(source: AudioSource) -> Recording:
            return Recording(load_samples(source, sample_rate=sample_rate), self.dims, chosen)

        slots = self.choose_batch_size(batch_size) if chosen.parallel else 1
        outcomes = transcribe_all(
            self,
            [audio],
            load,
            chosen,
            slots,
            show,
            lambda _, seconds: bar.reset(round(seconds, 1)),
        )
        with bar, closing(outcomes):
            for _, result in outcomes:
                if isinstance(result, SlimWhisperError):
                    raise result
                return result.as_dict()
        raise AssertionError("one source gives one result")

    def transcribe_many(
        self,
        sources: Iterable[Source],
        *,
        batch_size: int | None = None,
        allow_truncated: bool = False,
        on_segments: Callable[[Source, list[Segment], float], None] | None = None,
        on_duration: Callable[[Source, float], None] | None = None,
        **options: Any,
    ) -> Iterator[tuple[Source, Transcript | SlimWhisperError]]:
        """Transcribe recordings side by side; yields (source, result) as each one is done.

        A recording that fails yields its error, and the others go on. Each is decoded exactly as
        alone. `sources` may be endless: recordings are taken from it as slots come free, and a few
        decoded ahead in other threads.

        Arguments:
            batch_size: windows decoded together; None: 64 on a GPU, on a CPU `CPU_BATCH`.
            allow_truncated: take what can be read of files that end early.
            on_segments: called as windows end, with new segments and the seconds that are done.
            on_duration: called with a recording's seconds when it begins.
            options: as in `transcribe`.
        Raises:
            OptionError, before anything is read.
        """
        chosen = make_options(self.dims, self.name, **options)
        slots = self.choose_batch_size(batch_size)
        if isinstance(sources, list) and not chosen.parallel:
            slots = min(slots, max(1, len(sources)))

        def load(source: Source) -> Recording:
            samples = load_samples(source, allow_truncated=allow_truncated)
            return Recording(samples, self.dims, chosen)

        return transcribe_all(self, sources, load, chosen, slots, on_segments, on_duration)

    def choose_batch_size(self, asked: int | None) -> int:
        """How many windows to decode together. Raises OptionError."""
        if asked is None:
            return CPU_BATCH if self.device.type == "cpu" else GPU_BATCH
        if asked < 1:
            raise OptionError(f"batch_size {asked!r} is not a positive number")
        return asked

    def decode(
        self, mel: Tensor, options: "DecodingOptions | None" = None, **changes: Any
    ) -> "DecodingResult | list[DecodingResult]":
        """Decode one window of 30 s, or several; see `slimwhisper.decode`."""
        return decode(self, mel, options, **changes)

    @overload
    def detect_language(self, audio: Tensor) -> tuple[Any, Any]: ...
    @overload
    def detect_language(self, audio: AudioSource) -> tuple[str, dict[str, float]]: ...
    def detect_language(self, audio: AudioSource) -> tuple[Any, Any]:
        """The most likely language code, and every language's probability.

        `audio`: a recording, whose first 30 s are heard; or a window's spectrogram, a tensor
        [n_mels, 3000]; or several, [B, n_mels, 3000], which give two lists.
        """
        window = (self.dims.n_mels, WINDOW_FRAMES)
        if isinstance(audio, Tensor) and audio.shape[-2:] == window:
            heard = hear_languages(self, as_windows(audio, self.dims))
            if audio.ndim == 3:
                return [h.likeliest for h in heard], [h.probs for h in heard]
        else:
            mel = first_window(as_waveform(audio), self.dims.n_mels)
            heard = hear_languages(self, mel.unsqueeze(0))
        return heard[0].likeliest, heard[0].probs


def load_model(
    name: str | PathLike[str],
    device: str | torch.device | None = None,
    download_root: str | PathLike[str] | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    cache: str = "slim",
    cross_cache: str | None = None,
    self_cache: str | None = None,
    cache_dtype: str | None = None,
    strict_cache: bool = False,
    guard_audio: AudioSource | None = None,
) -> SlimWhisper:
    """Load a model by name, Hugging Face id or folder, or `.pt` file.

    Arguments:
        device: such as "cpu" or "cuda:1"; None: a GPU where there is one.
        download_root: where named models are kept; None: ~/.cache/whisper.
        dtype: "float32", "float16" or "bfloat16"; None: float16 on a GPU, float32 on a CPU;
            "int8": float32 with the large matrices in int8, on a CPU faster, not exact
            (docs/numerics.md).
        cache: "slim", "option1", "option2" or "baseline"; `cross_cache` ("kv", "k", "v", "e",
            "hybrid") and `self_cache` ("kv", "k", "v", "x") replace its two halves.
        cache_dtype: "fp8" keeps slim's caches in float8: half the bytes, not exact
            (docs/numerics.md); None: in `dtype`.
        strict_cache: raise `CacheError` where a form is not exact, instead of falling back.
        guard_audio: real speech for the guard to measure an inverse-based form on.
    Raises:
        CheckpointError, OptionError, CacheError.
    """
    forms = choose_forms(cache, cross_cache, self_cache, cache_dtype)
    place = choose_device(device)
    number = choose_dtype(dtype, place)
    if place.type == "cpu" and number == torch.float16:
        logger.warning("float16 is very slow on a CPU; float32 or bfloat16 are not")
    checkpoint = load_checkpoint(name, download_root=download_root)
    mel: Tensor | None = None
    if guard_audio is not None:
        mel = first_window(as_waveform(guard_audio), checkpoint.dims.n_mels)
    return SlimWhisper(checkpoint, place, number, forms, strict_cache, mel, dtype == INT8)
