"""The library's model class, `SlimWhisper`: the methods of `whisper`'s model, and more."""

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
from slimwhisper.audio.readers import Readers
from slimwhisper.devices import check_batch_size, choose_loaders
from slimwhisper.errors import OptionError, SlimWhisperError
from slimwhisper.kernels.memory import bucket_of
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
    """A loaded model with `whisper`'s methods.

    Its `network` does the decoding. It is not public API and may change in any version.
    """

    def __init__(self, network: Model) -> None:
        if not isinstance(network, Model):  # `whisper.Whisper` takes dimensions
            raise OptionError("a model is not made of its dimensions; use load_model")
        self.network = network
        self.transcriber = Transcriber(network)
        self._shortened: dict[int, SlimWhisper] = {}  # by their positions

    def release(self) -> None:
        """Free the caches that are kept for the next call; a later call allocates them again."""
        self.transcriber.drop()
        for other in self._shortened.values():
            other.release()

    def text_memory(self) -> TextMemory:
        """`peak_bytes`, the most that the texts of all windows took at one time, and `preemptions`,
        how often a text had to wait for an older one as `cache_memory` was used up. Both are of the
        engine that is kept for the next call; 0 without one.
        """
        return self.transcriber.text_memory()

    def default_batch_size(self, **options: Any) -> int:
        """How many windows `transcribe_many` decodes together by default: 16 on a CPU; on a GPU, as
        many as fit with their caches in half of the memory that was free when this was first
        needed: a multiple of 8, from 8 to 256. Raises OptionError.
        """
        return self._slots(None, self.make_options(**options))

    def _slots(self, batch_size: int | None, options: Options) -> int:
        if batch_size is None:
            return self.transcriber.default_slots(search_of(options))
        return check_batch_size(batch_size)

    # -- options ---------------------------------------------------------------------------------

    @property
    def settings(self) -> list[str]:
        """One line for each of the model's own settings that differs from Whisper's."""
        return list(map(str, changed_settings(self.network.facts)))

    def make_options(self, name: str | None = None, **options: Any) -> Options:
        """The options of a call: those given, else the model's settings, else Whisper's.

        name: of the model in error messages. Raises OptionError.
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

        Arguments:
            audio: a path, the bytes of a file, a binary file object, or a waveform: array or
                tensor [n], [channels, n] or [n, channels] at `sample_rate` Hz.
            verbose: True prints every segment as it is decoded, False shows a progress bar.
            batch_size: windows decoded side by side with `parallel`, None: see `transcribe_many`;
                or with `channels`, None: 2.
            options: the fields of `slimwhisper.Options`, `whisper`'s names and defaults.
        Returns:
            `whisper`'s dictionary, "text", "segments", "language", with the same as attributes.
        Raises:
            AudioError, OptionError.
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
            for _, result in outcomes:
                if isinstance(result, SlimWhisperError):
                    raise result
                return result
        raise AssertionError("one source gives one result")

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
        """Transcribe recordings side by side; yields (source, result) as each one is done.

        A recording that fails yields its error, and the others continue. The results do not depend
        on which recordings are decoded together. `sources` may be endless: recordings are taken
        from it as slots become free, and a few are loaded ahead in other threads.

        Arguments:
            batch_size: windows decoded together; None: see `default_batch_size`.
            allow_truncated: transcribe the readable part of files that end early.
            loaders: processes that decode the files of sources that are paths; if one crashes, only
                its file fails. 0: threads of this process; None: processes, with a GPU or 8 cores.
            script: lines to align with each recording, see `align`.
            on_segments: called as windows end, with new segments and the seconds done so far.
            on_duration: called with a recording's length in seconds when it begins.
            on_step: called after each step with the slots in use, all slots, and its seconds.
            options: as in `transcribe`.
        Raises:
            OptionError, before anything is read.
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
            readers=readers,
        )
        callbacks = Callbacks(on_segments, on_duration, on_step)
        return transcribe_all(self.transcriber, sources, load, chosen, slots, callbacks, readers)

    def align(
        self, audio: AudioSource, text: str | Path | Sequence[str], **options: Any
    ) -> Transcript:
        """Find where a known text is spoken in a recording of any length.

        Arguments:
            audio, options: as in `transcribe_many`.
            text: of which each line becomes a segment, as it is: a string, lines, or the path of a
                text, an .srt, a .vtt or an .lrc, whose own times are ignored.
        Returns:
            as `transcribe`, with words. A line that is not in the audio has no
            length, and stands in "flags" as "not_in_audio". "unscripted" lists the speech that is
            not in the text: "start", "end", and what was heard as "text".
        Raises:
            AudioError, OptionError.
        """
        from slimwhisper.forced_alignment.script import as_lines

        ((_, result),) = self.transcribe_many([audio], script=as_lines(text), **options)
        if isinstance(result, SlimWhisperError):
            raise result
        return result

    def decode(
        self, mel: Tensor, options: "DecodingOptions | None" = None, **changes: Any
    ) -> "DecodingResult | list[DecodingResult]":
        """Decode windows [n_mels, 3000] or [B, n_mels, 3000], or what `embed_audio` makes of them;
        see `slimwhisper.decode`.
        """
        from slimwhisper.windows import decode_windows

        return decode_windows(self.transcriber, mel, options, **changes)

    @overload
    def detect_language(self, audio: Tensor) -> tuple[Any, Any]: ...
    @overload
    def detect_language(self, audio: AudioSource) -> tuple[str, dict[str, float]]: ...
    def detect_language(self, audio: AudioSource) -> tuple[Any, Any]:
        """The most likely language, and every language's probability.

        For a recording, of which the first 30 s are used, the language is a code such as "de". For
        the spectrogram of a window, [n_mels, 3000], it is a token as in `whisper`, int64 []; for
        several, [B, n_mels, 3000], the results are tokens [B] and a list of B dictionaries. The
        encoder's output, [1500, d] or [B, 1500, d], does as well.
        """
        from slimwhisper.windows import as_windows, detect_languages, is_encoded

        window = (self.dims.n_mels, self.dims.window_frames)
        if isinstance(audio, Tensor) and (
            audio.shape[-2:] == window or is_encoded(audio, self.dims)
        ):
            languages = detect_languages(self.transcriber, as_windows(audio, self.dims))
            tokenizer = self.network.vocabulary.tokenizer()
            tokens = torch.tensor([tokenizer.to_language_token(x.most_likely()) for x in languages])
            if audio.ndim == 3:
                return tokens, [x.probs for x in languages]
            return tokens[0], languages[0].probs
        mel = first_window(as_waveform(audio), *window)
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

        Arguments:
            source: pieces of audio as they come, float32 [n] at 16 kHz of any length: an iterable
                or an asynchronous one; None: you append them to what is returned.
            options: the fields of `slimwhisper.live.types.LiveOptions`.
        Returns:
            The stream's events, `slimwhisper.live.types.LiveEvent`: an iterator, or an asynchronous
            one, which works in a thread and leaves nothing running; or a `Live`.
        Raises:
            OptionError, and DependencyError without silero-vad, immediately; AudioError for pieces
            that are not such audio.
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
        """A model with the same weights, not copied, whose windows are shorter: several times
        cheaper, not exact, and no window may end in speech. The same one for the same number.

        seconds: from 4 to the model's own window, 30. Raises OptionError.
        """
        from slimwhisper.live.types import LEAST_WINDOW

        whole = self.dims.n_audio_ctx / POSITIONS_PER_SECOND
        if not LEAST_WINDOW <= seconds <= whole:
            raise OptionError(f"window {seconds!r} is not from {LEAST_WINDOW:g} to {whole:g} s")
        positions = round(seconds * POSITIONS_PER_SECOND)
        if positions == self.dims.n_audio_ctx:
            return self
        if positions not in self._shortened:
            self._shortened[positions] = SlimWhisper(self.network.shortened(positions))
        return self._shortened[positions]


Whisper = SlimWhisper  # by `whisper`'s name
