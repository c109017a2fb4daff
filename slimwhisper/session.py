"""One file's way through the windows: seek, prompt, segments. Knows no model.

`next_window` gives the engine's next request, `accept` takes its answer and moves on; the rules are
`whisper.transcribe`'s at temperature 0.
"""

import zlib
from collections.abc import Sequence

from torch import Tensor

from slimwhisper.errors import SlimWhisperError
from slimwhisper.mel import window
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    WINDOW_FRAMES,
    Decoded,
    Dims,
    Options,
    Segment,
    Transcript,
    Window,
)
from slimwhisper.vocabulary import get_tokenizer, language_code, make_rules


def compression_ratio(text: str) -> float:
    """How much zlib shrinks a text: above 2.4 it repeats itself. An empty text gives 0."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


class Session:
    """State machine of one recording."""

    def __init__(self, mel: Tensor, dims: Dims, options: Options) -> None:
        """mel: float32 [n_mels, content frames + 3000], as `log_mel` gives it."""
        self.mel, self.dims, self.options = mel, dims, options
        self.content_frames = mel.shape[1] - WINDOW_FRAMES
        self.seek = 0  # mel frames
        self.segments: list[Segment] = []
        self.frames_per_token = WINDOW_FRAMES // dims.n_audio_ctx
        self.language: str | None = None if dims.is_multilingual else "en"
        if options.language is not None:
            self.language = language_code(options.language, dims)
        self._tokens: list[int] = []  # initial prompt, then all segments' tokens
        self._prompt_start = 0  # where the text begins that conditions the next window
        self._initial = 0  # length of the initial prompt
        if self.language is not None:
            self._start(self.language)

    def _start(self, language: str) -> None:
        self.language = language
        tokenizer = get_tokenizer(self.dims, language, self.options.task)
        self.tokenizer = tokenizer
        self.rules = make_rules(tokenizer, self.dims, self.options)
        if self.options.initial_prompt is not None:
            self._tokens = tokenizer.encode(" " + self.options.initial_prompt.strip())
            self._initial = len(self._tokens)

    @property
    def seconds_done(self) -> float:
        return min(self.seek, self.content_frames) / FRAMES_PER_SECOND

    def next_window(self) -> Window | None:
        """The next request, or None at the end of the recording."""
        if self.language is None:
            start = get_tokenizer(self.dims).sot
            return Window(self.mel[:, :WINDOW_FRAMES], (start,), 0, rules=None)
        if self.seek >= self.content_frames:
            return None
        before = self._previous_text()[-(self.dims.n_text_ctx // 2 - 1) :]
        if before:
            before = [self.tokenizer.sot_prev, *before]
        sot = self.tokenizer.sot_sequence
        if self.options.without_timestamps:
            sot = self.tokenizer.sot_sequence_including_notimestamps
        return Window(
            window(self.mel, self.seek, self._size()), (*before, *sot), len(before), self.rules
        )

    def _size(self) -> int:
        """Mel frames of speech in the window at `seek`."""
        return min(WINDOW_FRAMES, self.content_frames - self.seek)

    def _previous_text(self) -> list[int]:
        if not self.options.carry_initial_prompt:
            return self._tokens[self._prompt_start :]
        room = max(0, self.dims.n_text_ctx // 2 - 1 - self._initial)
        recent = self._tokens[max(self._initial, self._prompt_start) :]
        return self._tokens[: self._initial] + recent[len(recent) - min(room, len(recent)) :]

    def accept(self, result: Decoded) -> list[Segment]:
        """Take the answer to the last window, move `seek`, return the new segments.

        Raises `SlimWhisperError` when the model's numbers were not finite.
        """
        if result.language_probs is not None:
            self._start(max(result.language_probs, key=result.language_probs.__getitem__))
            return []
        if result.avg_logprob != result.avg_logprob:
            raise SlimWhisperError("the model gave NaN; use another dtype, such as float32")
        size = self._size()
        if self._is_silence(result):
            self.seek += size
            return []
        pieces, advance = self._cut(result.tokens, size)
        offset = self.seek / FRAMES_PER_SECOND
        fresh = [
            self._segment(i, offset, piece, result)
            for i, piece in enumerate(pieces, start=len(self.segments))
        ]
        self.segments += fresh
        self.seek += advance or size
        for segment in fresh:
            self._tokens += segment.tokens
        if not self.options.condition_on_previous_text:
            self._prompt_start = len(self._tokens)
        return fresh

    def _is_silence(self, result: Decoded) -> bool:
        """No speech is likely, and the text was not sampled with confidence all the same."""
        silence, sure = self.options.no_speech_threshold, self.options.logprob_threshold
        if silence is None or result.no_speech_prob <= silence:
            return False
        return sure is None or result.avg_logprob <= sure

    def _cut(
        self, tokens: Sequence[int], size: int
    ) -> tuple[list[tuple[float, float, Sequence[int]]], int]:
        """Tokens of a window -> (pieces of start and end in seconds from its start, and tokens),
        and the mel frames to go forward.

        Between two neighbouring timestamps one segment ends and the next begins. What follows the
        last such pair is unfinished: the next window starts there, unless a single timestamp at
        the end says that nothing follows.
        """
        begin = self.tokenizer.timestamp_begin
        seconds = self.frames_per_token / FRAMES_PER_SECOND
        stamped = [t >= begin for t in tokens]
        ends = [i for i in range(1, len(tokens)) if stamped[i - 1] and stamped[i]]
        nothing_follows = stamped[-2:] == [False, True]
        if not ends:
            stamps = [t for t in tokens if t >= begin]
            duration = size / FRAMES_PER_SECOND
            if stamps and stamps[-1] != begin:
                duration = (stamps[-1] - begin) * seconds
            return [(0.0, duration, tokens)], size
        advance = (tokens[ends[-1] - 1] - begin) * self.frames_per_token
        if nothing_follows:
            ends.append(len(tokens))
            advance = size
        pieces = []
        for start, end in zip([0, *ends], ends, strict=False):
            piece = tokens[start:end]
            pieces.append(((piece[0] - begin) * seconds, (piece[-1] - begin) * seconds, piece))
        return pieces, advance

    def _segment(
        self, number: int, offset: float, piece: tuple[float, float, Sequence[int]], result: Decoded
    ) -> Segment:
        start, end, tokens = piece
        eot = self.tokenizer.eot
        text = self.tokenizer.decode([t for t in tokens if t < eot])
        empty = start == end or not text.strip()
        whole = self.tokenizer.decode(list(result.tokens)).strip()
        return Segment(
            id=number,
            seek=self.seek,
            start=offset + start,
            end=offset + end,
            text="" if empty else text,
            tokens=[] if empty else list(tokens),
            temperature=result.temperature,
            avg_logprob=result.avg_logprob,
            compression_ratio=compression_ratio(whole),
            no_speech_prob=result.no_speech_prob,
        )

    def transcript(self) -> Transcript:
        """The result so far; whole once `next_window` has given None."""
        assert self.language is not None
        text = self.tokenizer.decode(self._tokens[self._initial :])
        return Transcript(text, self.segments, self.language)
