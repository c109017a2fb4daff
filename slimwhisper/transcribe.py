"""The public functions: `load_model(...)`, then `transcribe` or `transcribe_many`."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from difflib import get_close_matches
from os import PathLike
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from slimwhisper.audio import AudioSource, as_waveform
from slimwhisper.cache.plan import choose_forms
from slimwhisper.checkpoint import load_checkpoint
from slimwhisper.engine import Engine
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.mel import first_window, log_mel
from slimwhisper.model import Model
from slimwhisper.session import Session
from slimwhisper.types import (
    Dims,
    Options,
    Segment,
    Transcript,
)
from slimwhisper.vocabulary import get_vocabulary, language_code

logger = logging.getLogger("slimwhisper")

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

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
    """A dtype by name or itself; None: float16 on a GPU, float32 on a CPU."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.float16
    chosen = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if chosen not in (*DTYPES.values(), torch.float64):
        raise OptionError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    return chosen


def make_options(dims: Dims, name: str = "this model", **values: Any) -> Options:
    """Check what a user chose against what the model can do.

    Raises `OptionError` with the name, the value and what would work.
    """
    known = [f.name for f in fields(Options)]
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise OptionError(f"unknown option {key!r}; {hint}")
    options = Options(**values)
    if options.temperature != 0:
        raise OptionError(f"temperature {options.temperature!r}: only 0, greedy, is supported")
    if options.task not in ("transcribe", "translate"):
        raise OptionError(f"task {options.task!r} is neither 'transcribe' nor 'translate'")
    if options.language is not None:
        language_code(options.language, dims)
    if options.task == "translate":
        if not dims.is_multilingual:
            raise OptionError(f"{name} is English-only and cannot translate; use a model like base")
        if dims.n_text_layer == 4 and dims.n_text_state == 1280:
            raise OptionError(f"{name}: turbo cannot translate; use large-v3 or medium")
    limit = dims.n_text_ctx // 2
    if options.sample_len is not None and not 1 <= options.sample_len <= limit:
        raise OptionError(f"sample_len {options.sample_len!r} is not between 1 and {limit}")
    return options


class SlimWhisper(Model):
    """A loaded model with `whisper`'s calls."""

    def transcribe(
        self,
        audio: AudioSource,
        *,
        sample_rate: int = 16_000,
        verbose: bool | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Transcribe one recording of any length.

        Arguments:
            audio: a path, the bytes of a file, a binary file object, or a waveform: array or
                tensor [n] or [channels, n] at `sample_rate` Hz.
            verbose: True prints every segment as it is decoded.
            options: the fields of `slimwhisper.Options`, `whisper`'s names and defaults.
        Returns:
            `whisper`'s dictionary: "text", "segments", "language".
        Raises:
            AudioError, OptionError.
        """

        def show(_: Any, segments: list[Segment], __: float) -> None:
            for segment in segments:
                print(segment_line(segment), flush=True)

        def load(source: AudioSource) -> np.ndarray:
            return as_waveform(source, sample_rate=sample_rate)

        chosen = make_options(self.dims, self.name, **options)
        on_segments = show if verbose else None
        for _, result in self._run([audio], chosen, 1, load, on_segments):
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
        **options: Any,
    ) -> Iterator[tuple[Source, Transcript | SlimWhisperError]]:
        """Transcribe recordings side by side; yields (source, result) as each one is done.

        A recording that fails yields its error, and the others go on. Each is decoded exactly as
        alone. `on_segments(source, new segments, seconds of it done)` is called as windows end.
        `batch_size`: windows decoded together; None: 64 on a GPU, 8 on a CPU.
        """
        chosen = make_options(self.dims, self.name, **options)
        size = batch_size if batch_size is not None else 8 if self.device.type == "cpu" else 64
        if size < 1:
            raise OptionError(f"batch_size {size!r} is not a positive number")

        def load(source: AudioSource) -> np.ndarray:
            return as_waveform(source, allow_truncated=allow_truncated)

        return self._run(sources, chosen, size, load, on_segments)

    def _run(
        self,
        sources: Iterable[Source],
        options: Options,
        slots: int,
        load: Callable[[AudioSource], np.ndarray],
        on_segments: Callable[[Source, list[Segment], float], None] | None,
    ) -> Iterator[tuple[Source, Transcript | SlimWhisperError]]:
        if isinstance(sources, list):
            slots = min(slots, max(1, len(sources)))
        engine: Engine[tuple[Source, Session]] = Engine(self, get_vocabulary(self.dims), slots)
        queue = iter(sources)
        exhausted = False
        while not (exhausted and engine.idle):
            while not exhausted and engine.room > 0:
                try:
                    source = next(queue)
                except StopIteration:
                    exhausted = True
                    break
                try:
                    session = Session(log_mel(load(source), self.dims.n_mels), self.dims, options)
                except SlimWhisperError as error:
                    yield source, error
                    continue
                first = session.next_window()
                if first is None:  # shorter than one mel frame
                    yield source, session.transcript()
                else:
                    engine.submit((source, session), first)
            for (source, session), decoded in engine.step():
                try:
                    segments = session.accept(decoded)
                except SlimWhisperError as error:
                    yield source, error
                    continue
                if on_segments is not None:
                    on_segments(source, segments, session.seconds_done)
                following = session.next_window()
                if following is None:
                    yield source, session.transcript()
                else:
                    engine.submit((source, session), following)

    def detect_language(self, audio: AudioSource) -> tuple[str, dict[str, float]]:
        """The most likely language of the first 30 s, and every language's probability."""
        if not self.dims.is_multilingual:
            return "en", {"en": 1.0}
        mel = log_mel(as_waveform(audio), self.dims.n_mels)
        session = Session(mel, self.dims, Options())
        request = session.next_window()
        assert request is not None
        engine: Engine[None] = Engine(self, get_vocabulary(self.dims), 1)
        engine.submit(None, request)
        ((_, decoded),) = engine.step()
        assert decoded.language_probs is not None
        probs = decoded.language_probs
        return max(probs, key=probs.__getitem__), probs


def segment_line(segment: Segment) -> str:
    """A segment as `whisper` prints it."""
    from whisper.utils import format_timestamp

    start, end = format_timestamp(segment.start), format_timestamp(segment.end)
    return f"[{start} --> {end}] {segment.text}"


def load_model(
    name: str | PathLike[str],
    device: str | torch.device | None = None,
    download_root: str | PathLike[str] | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    cache: str = "slim",
    cross_cache: str | None = None,
    self_cache: str | None = None,
    strict_cache: bool = False,
    guard_audio: AudioSource | None = None,
) -> SlimWhisper:
    """Load a model by name, Hugging Face id or folder, or `.pt` file.

    Arguments:
        device: such as "cpu" or "cuda:1"; None: a GPU where there is one.
        download_root: where named models are kept; None: ~/.cache/whisper.
        dtype: "float32", "float16" or "bfloat16"; None: float16 on a GPU, float32 on a CPU.
        cache: "slim", "option1", "option2" or "baseline"; `cross_cache` ("kv", "k", "v", "e",
            "hybrid") and `self_cache` ("kv", "k", "v", "x") replace its two halves.
        strict_cache: raise `CacheError` where a form is not exact, instead of falling back.
        guard_audio: real speech for the guard to measure an inverse-based form on.
    Raises:
        CheckpointError, OptionError, CacheError.
    """
    forms = choose_forms(cache, cross_cache, self_cache)
    place = choose_device(device)
    number = choose_dtype(dtype, place)
    if place.type == "cpu" and number == torch.float16:
        logger.warning("float16 is very slow on a CPU; float32 or bfloat16 are not")
    checkpoint = load_checkpoint(name, download_root=download_root)
    mel: Tensor | None = None
    if guard_audio is not None:
        mel = first_window(as_waveform(guard_audio), checkpoint.dims.n_mels)
    return SlimWhisper(checkpoint, place, number, forms, strict_cache, mel)
