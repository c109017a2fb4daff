"""The model class of the library, `SlimWhisper`.

It has the methods of `whisper`'s model, and more.
"""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from tqdm import tqdm

from slimwhisper.audio.load import AudioSource, as_waveform
from slimwhisper.audio.mel import first_window
from slimwhisper.audio_formats.readers import Readers
from slimwhisper.devices import bucket_of, check_batch_size, choose_loaders
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.loaded_model import LoadedModel
from slimwhisper.longform.requests import search_of
from slimwhisper.model.model import Model
from slimwhisper.options import Options, changed_settings, make_options
from slimwhisper.outputs import segment_line
from slimwhisper.recordings.passes import prepare_passes
from slimwhisper.recordings.transcribe import Callbacks, load_recording, transcribe_all
from slimwhisper.service.transcriber import TextMemory, Transcriber
from slimwhisper.text import SafeStream
from slimwhisper.types import POSITIONS_PER_SECOND, SAMPLE_RATE, Segment, Transcript

if TYPE_CHECKING:
    from slimwhisper.live.listen import Live
    from slimwhisper.live.types import LiveEvent
    from slimwhisper.windows import DecodingOptions, DecodingResult

logger = logging.getLogger("slimwhisper")

Source = TypeVar("Source", bound=AudioSource)


class SlimWhisper(LoadedModel):
    """A loaded model with the methods of `whisper`'s model.

    `load_model` makes one. Its methods may be called from several threads. `Whisper` is another
    name for this class, for scripts that were written for openai-whisper.

    Attributes:
        network: The network that does the decoding. It is not public API, and may change in any
            version.
        transcriber: The loop that decodes for all callers of this model. It is not public API
            either; docs/internals/architecture.md describes it.
    """

    def __init__(self, network: Model) -> None:
        """Wrap a loaded network. Use `load_model` instead of this.

        Args:
            network: The network, as `load_model` makes it.

        Raises:
            OptionError: When something else is given, such as the dimensions that `whisper.Whisper`
                takes.
        """
        if not isinstance(network, Model):  # `whisper.Whisper` takes dimensions
            raise OptionError("a model is not made of its dimensions; use load_model")
        self.network = network
        self.transcriber = Transcriber(network)
        self._shortened: dict[int, SlimWhisper] = {}  # by their positions

    def release(self) -> None:
        """Free the memory that is kept for the next call.

        These are the caches of the audio and of the texts. A later call allocates them again.
        """
        self.transcriber.drop()
        for other in self._shortened.values():
            other.release()

    def text_memory(self) -> TextMemory:
        """Report how much memory the texts of the last call took.

        The numbers are those of the engine that is kept for the next call. Without one they are 0.

        Returns:
            `peak_bytes`, the most bytes that the texts of all windows took at one time, and
                `preemptions`, how often a text had to wait for an older one because `cache_memory`
                was used up.
        """
        return self.transcriber.text_memory()

    def default_batch_size(self, **options: Any) -> int:
        """Return how many windows `transcribe_many` decodes together by default.

        On a CPU that is 16. On a GPU it is as many as fit, with their caches, in half of the memory
        that was free when this was first needed: a multiple of 8, from 8 to 256.

        Args:
            **options: The fields of `Options`. Beams and samples need memory, so they change the
                number.

        Returns:
            The number of windows.

        Raises:
            OptionError: When an option has an invalid name or value.
            DependencyError: When an option needs a package that is not installed.
        """
        return self._slots(None, self.make_options(**options))

    def _slots(self, batch_size: int | None, options: Options) -> int:
        if batch_size is None:
            return self.transcriber.default_slots(search_of(options))
        return check_batch_size(batch_size)

    # -- options ---------------------------------------------------------------------------------

    @property
    def settings(self) -> list[str]:
        """The model's own settings that differ from Whisper's, one line of text for each."""
        chosen = {} if self.origin is None else self.origin.load.keywords  # settings no more
        rows = changed_settings(self.network.facts)
        return [str(row) for row in rows if chosen.get(row.name) is None]

    def make_options(self, name: str | None = None, **options: Any) -> Options:
        """Make the complete options of a call.

        An option that is not given has the value of the model's own settings, if they have one, and
        else Whisper's default.

        Args:
            name: The model's name for error messages. None means the name that it was loaded by.
            **options: The fields of `Options`.

        Returns:
            The checked options.

        Raises:
            OptionError: When an option has an unknown name or an invalid value, or when the options
                contradict each other or are not for this model.
            DependencyError: When an option needs a package that is not installed.
        """
        facts = self.network.facts
        chosen = make_options(facts if name is None else replace(facts, name=name), **options)
        self.network.check_audio_window(chosen.audio_window)
        return chosen

    # -- recordings ------------------------------------------------------------------------------

    def transcribe(
        self,
        audio: AudioSource,
        *,
        sample_rate: int = SAMPLE_RATE,
        verbose: bool | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> Transcript:
        """Transcribe one recording of any length.

        The arguments and the result are those of `whisper.transcribe`.

        Args:
            audio: A path, the bytes of a file, a binary file object, or a waveform. A waveform is
                an array or a tensor of shape [n], [channels, n] or [n, channels]; channels are
                averaged.
            sample_rate: The rate of a waveform in Hz. A file has its own rate.
            verbose: True prints every segment as it is decoded. False shows a progress bar. None
                shows nothing.
            batch_size: How many windows are decoded together with the option `parallel` or
                `channels`. None means the default of `transcribe_many` with `parallel`, and 2 with
                `channels`.
            **options: The fields of `Options`, which have the names and the defaults of `whisper`.

        Returns:
            The dictionary of `whisper`, with the keys "text", "segments" and "language". It has the
                same values as attributes.

        Raises:
            AudioError: When the recording cannot be read.
            OptionError: When an option has an unknown name or an invalid value, or when there is
                too little memory.
            DependencyError: When an option needs a package that is not installed.

        Examples:
            >>> model = slimwhisper.load_model("turbo")
            >>> result = model.transcribe("talk.mp3", language="en", word_timestamps=True)
            >>> for segment in result.segments:
            ...     print(segment.start, segment.end, segment.text)
        """
        chosen = self.make_options(**options)
        prepare_passes(chosen)
        err = SafeStream("stderr")
        bar = tqdm(unit="s", disable=verbose is not False, file=err, dynamic_ncols=True)

        def show(_: Any, segments: list[Segment], done: float) -> None:
            for segment in segments if verbose else ():
                print(segment_line(segment), file=SafeStream("stdout"), flush=True)
            bar.update(round(done, 1) - bar.n)

        slots = chosen.windows_of_one
        if chosen.parallel or (chosen.channels and batch_size is not None):
            slots = self._slots(batch_size, chosen)
        load = partial(load_recording, model=self.network, options=chosen, sample_rate=sample_rate)
        callbacks = Callbacks(show, lambda _, seconds: bar.reset(round(seconds, 1)))
        outcomes = transcribe_all(
            self.transcriber, [audio], load, chosen, slots, callbacks, Readers(0)
        )
        with bar, closing(outcomes):
            _, result = next(outcomes)
        if isinstance(result, SlimWhisperError):
            raise result
        return result

    def transcribe_many(
        self,
        sources: Iterable[Source],
        *,
        batch_size: int | None = None,
        allow_truncated: bool = False,
        loaders: int | None = 0,
        script: Sequence[str] = (),
        on_segments: Callable[[Source, list[Segment], float], None] | None = None,
        on_duration: Callable[[Source, float], None] | None = None,
        on_step: Callable[[int, int, float], None] | None = None,
        **options: Any,
    ) -> Iterator[tuple[Source, Transcript | SlimWhisperError]]:
        """Transcribe many recordings side by side.

        The results come in the order in which the recordings are done. A recording that fails gives
        its error in place of a result, and the others continue. The results do not depend on which
        recordings are decoded together, but for rounding, which in int8 may change a word.

        `sources` may be endless: recordings are taken from it as slots become free, and a few of
        them are loaded ahead in other threads.

        Args:
            sources: The recordings, each as in `transcribe`. Waveforms have 16 kHz.
            batch_size: How many windows are decoded together. None means `default_batch_size`.
            allow_truncated: Whether to transcribe the readable part of a file that ends early. By
                default such a file is an error.
            loaders: How many processes decode the files of sources that are paths. If one of them
                crashes, only its file fails. 0 means threads of this process. None means processes
                on a machine with a GPU or at least 8 cores.
            script: The lines of a text to align with each recording, as in `align`.
            on_segments: A function that is called as windows end, with the source, its new
                segments, and the seconds of it that are done so far.
            on_duration: A function that is called when a recording begins, with the source and its
                length in seconds.
            on_step: A function that is called after each step of the engine, with the number of
                slots in use, the number of all slots, and the seconds that the step took.
            **options: The fields of `Options`.

        Yields:
            A source, as it was given, and its result or its error.

        Raises:
            OptionError: When an option has an unknown name or an invalid value. This is raised
                before anything is read.
            DependencyError: When an option needs a package that is not installed.

        Examples:
            >>> for source, result in model.transcribe_many(["a.wav", "b.flac"]):
            ...     if isinstance(result, slimwhisper.SlimWhisperError):
            ...         print(source, "failed:", result)
            ...     else:
            ...         print(source, result.text)
        """
        chosen = self.make_options(**options)
        prepare_passes(chosen)
        slots = self._slots(batch_size, chosen)
        if isinstance(sources, list) and not (chosen.parallel or script):
            windows = len(sources) * chosen.windows_of_one
            slots = bucket_of(max(1, windows), slots)  # few sizes, so that engines are reused
        readers = Readers(choose_loaders(loaders, self.device))

        load = partial(
            load_recording,
            model=self.network,
            options=chosen,
            script=script,
            allow_truncated=allow_truncated,
            read=readers.read_source,
        )
        callbacks = Callbacks(on_segments, on_duration, on_step)
        return transcribe_all(self.transcriber, sources, load, chosen, slots, callbacks, readers)

    def align(
        self, audio: AudioSource, text: str | Path | Sequence[str], **options: Any
    ) -> Transcript:
        """Find where a known text is spoken in a recording of any length.

        Args:
            audio: The recording, as in `transcribe_many`.
            text: The text, each line of which becomes a segment, unchanged. It is a string, a list
                of lines, or the `Path` of a text file, an .srt, a .vtt or an .lrc file, whose own
                times are ignored.
            **options: The fields of `Options`, and the arguments of `transcribe_many`.

        Returns:
            A result as that of `transcribe`, with the times of all words. A line that is not in the
                audio has no length, and the name "not_in_audio" in "flags". "unscripted" lists the
                speech that is not in the text, with its "start", its "end", and what was heard as
                "text".

        Raises:
            AudioError: When the recording cannot be read.
            OptionError: When the text cannot be read or is empty, or an option has an unknown name
                or an invalid value.
            DependencyError: When an option needs a package that is not installed.

        Examples:
            >>> result = model.align("talk.mp3", ["The first line.", "The second line."])
            >>> [(segment.start, segment.end) for segment in result.segments]
        """
        from slimwhisper.forced_alignment.script import as_lines

        ((_, result),) = self.transcribe_many([audio], script=as_lines(text), **options)
        if isinstance(result, SlimWhisperError):
            raise result
        return result

    def decode(
        self, mel: Tensor, options: "DecodingOptions | None" = None, **changes: Any
    ) -> "DecodingResult | list[DecodingResult]":
        """Decode single windows of 30 s, as the method of `whisper`'s model does.

        Args:
            mel: Spectrograms of shape [n_mels, 3000] or [B, n_mels, 3000], or what `embed_audio`
                makes of them.
            options: The options. None means the defaults of `DecodingOptions`.
            **changes: Fields of `DecodingOptions` that replace those of `options`.

        Returns:
            The result of the window, or a list of B results. See `slimwhisper.decode`.

        Raises:
            OptionError: When `mel` has another shape or is not finite, or an option has an invalid
                value.
        """
        from slimwhisper.windows import decode_windows

        return decode_windows(self.transcriber, mel, options, **changes)

    @overload
    def detect_language(self, audio: Tensor) -> tuple[Any, Any]: ...
    @overload
    def detect_language(self, audio: AudioSource) -> tuple[str, dict[str, float]]: ...
    def detect_language(self, audio: AudioSource) -> tuple[Any, Any]:
        """Detect the language of a recording, or of single windows.

        For a recording the result is the code of the most likely language, such as "de", and a
        dictionary with the probability of every language by its code. Only the first 30 s are used.

        For the spectrogram of a window, as in `whisper`, the language is a token in place of a
        code. For several windows, the results are B tokens and a list of B dictionaries.

        Args:
            audio: A recording as in `transcribe`; or a tensor of spectrograms, [n_mels, 3000] or
                [B, n_mels, 3000]; or the encoder's output, [1500, d] or [B, 1500, d].

        Returns:
            The most likely language, and the probabilities. Tokens are int64 tensors, [] or [B].

        Raises:
            AudioError: When the recording cannot be read.
            OptionError: When a window is not finite, or there is too little memory.

        Examples:
            >>> language, probabilities = model.detect_language("talk.mp3")
        """
        from slimwhisper.windows import as_windows, detect_languages, is_windows

        if is_windows(audio, self.dims):
            languages = detect_languages(self.transcriber, as_windows(audio, self.dims))
            tokenizer = self.network.vocabulary.tokenizer()
            tokens = torch.tensor([tokenizer.to_language_token(x.most_likely()) for x in languages])
            if audio.ndim == 3:
                return tokens, [x.probs for x in languages]
            return tokens[0], languages[0].probs
        mel = first_window(as_waveform(audio), self.dims.n_mels, self.dims.window_frames)
        languages = detect_languages(self.transcriber, mel.unsqueeze(0))
        return languages[0].most_likely(), languages[0].probs

    # -- streams -------------------------------------------------------------------------------

    @overload
    def live(self, source: None = None, **options: Any) -> "Live": ...
    @overload
    def live(
        self, source: AsyncIterable[ArrayLike], **options: Any
    ) -> "AsyncIterator[LiveEvent]": ...
    @overload
    def live(self, source: Iterable[ArrayLike], **options: Any) -> "Iterator[LiveEvent]": ...
    def live(self, source: Any = None, **options: Any) -> Any:
        """Transcribe speech while it is spoken.

        Args:
            source: The pieces of audio as they come, float32 [n] at 16 kHz and of any length, from
                an iterable or an asynchronous one. None means that you append them to the `Live`
                that is returned.
            **options: The fields of `slimwhisper.live.types.LiveOptions`.

        Returns:
            The events of the stream, `slimwhisper.live.types.LiveEvent`, from an iterator. It is an
                asynchronous iterator for an asynchronous source; that one works in a thread, and
                leaves nothing running. Without a source the result is a `Live`.

        Raises:
            OptionError: When an option has an unknown name or an invalid value. This is raised
                immediately.
            DependencyError: When silero-vad is not installed. This is raised immediately.
            AudioError: When a piece of audio has another shape or dtype. This is raised by the
                iterator.

        Examples:
            >>> for event in model.live(microphone(), language="en"):
            ...     if isinstance(event, TextUpdate):
            ...         print(event.committed, end="", flush=True)
        """
        from slimwhisper.live.listen import Live, listen_async
        from slimwhisper.live.setup import live_options

        chosen = live_options(**options)
        model = self if chosen.window is None else self.shortened(chosen.window)
        live = Live(model.transcriber, chosen)
        if isinstance(source, AsyncIterable):
            return listen_async(live, source)
        return live if source is None else live.listen(source)

    def shortened(self, seconds: float) -> "SlimWhisper":
        """Return a model with the same weights whose windows are shorter.

        It is several times cheaper for short audio, but not exact, and no window may end in speech.
        The weights are not copied. The same number gives the same model again.

        Args:
            seconds: The length of a window in seconds, from 4 to that of the model's own windows,
                30.

        Returns:
            The other model, or this one for 30 s.

        Raises:
            OptionError: When `seconds` is outside these limits.
        """
        from slimwhisper.live.types import LEAST_WINDOW

        whole = self.dims.n_audio_ctx / POSITIONS_PER_SECOND
        if not (hasattr(seconds, "__float__") and LEAST_WINDOW <= seconds <= whole):
            raise OptionError(f"window {seconds!r} is not from {LEAST_WINDOW:g} to {whole:g} s")
        positions = round(seconds * POSITIONS_PER_SECOND)
        if positions == self.dims.n_audio_ctx:
            return self
        if positions not in self._shortened:
            self._shortened[positions] = SlimWhisper(self.network.shortened(positions))
        return self._shortened[positions]


Whisper = SlimWhisper  # by `whisper`'s name
