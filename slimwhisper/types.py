"""Defines the dataclasses that are used throughout the package, all of them frozen.

Times are in seconds. A mel frame has 10 ms. A frame of the encoder, and a step of a timestamp
token, has 20 ms. `Options` is in `slimwhisper.options`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

SAMPLE_RATE = 16_000  # Hz, of every waveform inside the package
CHUNK_SECONDS = 30  # a window
HOP_SAMPLES = 160  # one mel frame
FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES
MEL_FRAMES_PER_POSITION = 2  # of the encoder, and per timestamp token
POSITIONS_PER_SECOND = FRAMES_PER_SECOND // MEL_FRAMES_PER_POSITION
WINDOW_FRAMES = CHUNK_SECONDS * FRAMES_PER_SECOND
WHOLE = (None, "full")  # audio windows that always have 30 s
NOT_IN_AUDIO = "not_in_audio"  # the flag of a line of a script that nobody says
TIMESTAMPS = 1501  # tokens: <|0.00|> ... <|30.00|>
DTYPES = ("float32", "float16", "bfloat16")  # to compute in
COMPUTE_TYPES = ("auto", *DTYPES, "int8")  # of a model, by name
# those that the default and "auto" may be, by the kind of device, the fastest first
UNNAMED_DTYPES: dict[object, dict[str, tuple[str, ...]]] = {
    None: {"cpu": ("float32",), "gpu": ("float16",)},
    "auto": {"cpu": ("bfloat16", "float32"), "gpu": ("float16",)},
}


@dataclass(frozen=True)  # no slots: scripts read `dims.__dict__`
class Dims:
    """The ten integers that define a Whisper model, named as in OpenAI's files.

    `slimwhisper.ModelDimensions` is this class, as in `whisper`.

    Attributes:
        n_mels: The bins of a spectrogram, 80 or 128.
        n_audio_ctx: The positions of the encoder's output, 1500 for 30 s.
        n_audio_state: The width of the encoder, d.
        n_audio_head: The attention heads of each layer of the encoder.
        n_audio_layer: The layers of the encoder.
        n_vocab: The tokens of the vocabulary, special ones included.
        n_text_ctx: The most tokens of a text with its prompt, 448.
        n_text_state: The width of the decoder, d.
        n_text_head: The attention heads of each layer of the decoder.
        n_text_layer: The layers of the decoder.
    """

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int

    @property
    def window_frames(self) -> int:
        """The mel frames that are decoded together: 3000, 30 s, with Whisper's 1500 positions."""
        return MEL_FRAMES_PER_POSITION * self.n_audio_ctx

    @property
    def is_multilingual(self) -> bool:
        """Whether the vocabulary has the size of those of multilingual models."""
        return self.n_vocab >= 51_865

    @property
    def end_of_text(self) -> int:
        """The token <|endoftext|>.

        Only special tokens follow it, and <|startoftranscript|> is the first of them.
        """
        return 50_257 if self.is_multilingual else 50_256

    @property
    def num_languages(self) -> int:
        """The number of languages that a vocabulary of this size has tokens for."""
        return self.n_vocab - 51_765 - int(self.is_multilingual)


@dataclass(frozen=True, eq=False)
class SpecialTokens:
    """The token ids that decoding needs.

    What a vocabulary does not have is None, or empty.

    Attributes:
        size: The number of logits of the model. There may be ids among them that have no token.
        eot: The token <|endoftext|>.
        no_speech: The token <|nospeech|>.
        no_timestamps: The token <|notimestamps|>.
        timestamps: The tokens <|0.00|>, <|0.02|> and so on, one for every 20 ms.
        languages: The code of each language by its token.
        texts: The ids of text, in order.
    """

    size: int
    eot: int
    no_speech: int | None
    no_timestamps: int | None
    timestamps: range
    languages: dict[int, str]
    texts: tuple[range, ...]

    def is_text(self, token: int) -> bool:
        """Return whether a token is text, neither special nor a timestamp.

        Args:
            token: The token.

        Returns:
            Whether it is text.
        """
        return any(token in ids for ids in self.texts)

    @cached_property
    def specials(self) -> tuple[range, ...]:
        """The ids that are neither text nor timestamps, in order. Some may have no token."""
        others = sorted([*self.texts, self.timestamps], key=lambda ids: ids.start)
        edges = [range(0), *others, range(self.size, self.size)]
        return tuple(range(a.stop, b.start) for a, b in pairwise(edges) if a.stop < b.start)

    @cached_property
    def boundaries(self) -> tuple[int, int, int, int] | None:
        """The numbers by which fast kernels know the kinds of tokens, or None.

        They are <|endoftext|>, the first timestamp, the end of the timestamps, and
        <|notimestamps|>. They are known if text tokens are those below the first of these and those
        after the timestamps.
        """
        begin, end = self.timestamps.start, self.timestamps.stop
        after = (range(end, self.size),) if end < self.size else ()
        if self.no_timestamps is None or self.texts != (range(self.eot), *after):
            return None
        return self.eot, begin, end, self.no_timestamps


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a segment, with the fields of `whisper`'s word dictionaries.

    Attributes:
        word: The text of the word, with its leading space.
        start: When it begins, in seconds since the beginning of the recording.
        end: When it ends, in seconds.
        probability: The mean probability of its tokens.
        speaker: Who spoke it. None means that speakers were not requested, or that this one is not
            known.
    """

    word: str
    start: float
    end: float
    probability: float
    speaker: str | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech, with the fields of `whisper`'s segment dictionaries in their order.

    Attributes:
        id: The number of the segment in its recording, from 0.
        seek: The mel frame of 10 ms at which this segment's window starts.
        start: When it begins, in seconds since the beginning of the recording.
        end: When it ends, in seconds.
        text: Its text, which usually begins with a space.
        tokens: The tokens of its text, with its timestamps.
        temperature: The temperature that its window's text was sampled at.
        avg_logprob: The mean log-probability of its window's tokens.
        compression_ratio: The length of its window's text divided by its length after compression.
        no_speech_prob: The probability that its window has no speech.
        words: Its words with their times. None means that they were not requested.
        speaker: Who spoke it. None means that speakers were not requested, or that this one is not
            known.
        flags: Reasons to doubt the text, which are names in `slimwhisper.trust.REASONS`.
        token_logprobs: The log-probability of each of `tokens`. None means that they were not
            requested.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None
    speaker: str | None = None
    flags: tuple[str, ...] = ()
    token_logprobs: list[float] | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of audio, and what was heard in it.

    Attributes:
        start: When it begins, in seconds.
        end: When it ends, in seconds.
        text: What was heard.
    """

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Transcript(dict[str, Any]):
    """The result of one recording: the dictionary of `whisper.transcribe`, with attributes.

    The keys are "text", "segments" and "language", as in `whisper`. Where there are any, there are
    also "flags", with the flags of each segment by its id, "unscripted" and "dropped". The segments
    are dictionaries with the keys of `whisper` there, because programs refuse others; "speaker" and
    "token_logprobs" are among them only if they were requested.

    The dictionary may be changed. The attributes stay what was heard.

    Attributes:
        text: The whole text.
        segments: The segments, in the order of their times.
        language: The code of the language that is spoken.
        unscripted: The speech that is not in the text that was aligned, see `SlimWhisper.align`.
        dropped: The segments that the option `drop` leaves out of the text and the segments.
        translated: Whether the text is a translation into English.
    """

    text: str
    segments: list[Segment]
    language: str
    unscripted: tuple[Span, ...] = ()
    dropped: Sequence[Segment] = ()
    translated: bool = False

    @property
    def text_language(self) -> str:
        """The code of the language of the text; `language` is the one that is spoken."""
        return "en" if self.translated else self.language

    def __post_init__(self) -> None:
        segments = self.segment_rows()
        flags = {s["id"]: s.pop("flags") for s in segments if "flags" in s}
        unscripted = [asdict(span) for span in self.unscripted]
        others = {"flags": flags, "unscripted": unscripted, **self.dropped_rows()}
        self.update(text=self.text, segments=segments, language=self.language)
        self.update((name, value) for name, value in others.items() if value)

    def __repr__(self) -> str:
        """Return a short description in one line."""
        text = self.text if len(self.text) <= 60 else f"{self.text[:60]}..."
        return f"Transcript({text!r}, {len(self.segments)} segments, language={self.language!r})"

    def segment_rows(self) -> list[dict[str, Any]]:
        """Return the segments as dictionaries with all that is known of them.

        Returns:
            A dictionary for each segment. Keys without a value are left out.
        """
        return [_row(segment) for segment in self.segments]

    def dropped_rows(self) -> dict[str, list[dict[str, Any]]]:
        """Return the dropped segments, as `segment_rows` does the others.

        Returns:
            A dictionary with the rows under the key "dropped". It is empty if nothing was dropped.
        """
        return {"dropped": [_row(s) for s in self.dropped]} if self.dropped else {}


def _row(of: Segment | Word) -> dict[str, Any]:
    """The fields, those without a value left out; what is in them is copied."""
    row: dict[str, Any] = {}
    for name in of.__slots__:
        value = getattr(of, name)
        if name == "flags":
            value = list(value) or None
        elif name == "words" and value is not None:
            value = [_row(word) for word in value]
        elif isinstance(value, list):
            value = value.copy()
        if value is not None:
            row[name] = value
    return row
