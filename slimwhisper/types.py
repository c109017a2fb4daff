"""Defines the frozen dataclasses that are used throughout the package; `Options` in `options`.

Units: times in seconds, mel frames of 10 ms, encoder frames (and timestamp tokens) of 20 ms.
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
    """The ten integers that define a Whisper model, named as in OpenAI's files."""

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
        """Mel frames that are decoded together: 3000, 30 s, with Whisper's 1500 positions."""
        return MEL_FRAMES_PER_POSITION * self.n_audio_ctx

    @property
    def is_multilingual(self) -> bool:
        return self.n_vocab >= 51_865

    @property
    def end_of_text(self) -> int:
        """<|endoftext|>; only special tokens follow, <|startoftranscript|> first."""
        return 50_257 if self.is_multilingual else 50_256

    @property
    def num_languages(self) -> int:
        return self.n_vocab - 51_765 - int(self.is_multilingual)


@dataclass(frozen=True, eq=False)
class SpecialTokens:
    """The token ids that decoding needs. What a vocabulary does not have is None, or empty."""

    size: int  # logits of the model; ids that have no token may be among them
    eot: int  # <|endoftext|>
    no_speech: int | None
    no_timestamps: int | None
    timestamps: range  # <|0.00|>, <|0.02|>, ...: one token per 20 ms
    languages: dict[int, str]  # token: code
    texts: tuple[range, ...]  # the ids of text, in order

    def is_text(self, token: int) -> bool:
        return any(token in ids for ids in self.texts)

    @cached_property
    def specials(self) -> tuple[range, ...]:
        """The ids that are neither text nor timestamps, in order; some may have no token."""
        others = sorted([*self.texts, self.timestamps], key=lambda ids: ids.start)
        edges = [range(0), *others, range(self.size, self.size)]
        return tuple(range(a.stop, b.start) for a, b in pairwise(edges) if a.stop < b.start)

    @cached_property
    def boundaries(self) -> tuple[int, int, int, int] | None:
        """<|endoftext|>, the timestamps' begin and end, and <|notimestamps|>, if text tokens are
        those below the first and those after the timestamps; else None.
        """
        begin, end = self.timestamps.start, self.timestamps.stop
        after = (range(end, self.size),) if end < self.size else ()
        if self.no_timestamps is None or self.texts != (range(self.eot), *after):
            return None
        return self.eot, begin, end, self.no_timestamps


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a segment; the fields of `whisper`'s word dictionaries."""

    word: str  # with its leading space
    start: float  # seconds
    end: float
    probability: float
    speaker: str | None = None  # None: not requested, or not known


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech; the fields of `whisper`'s segment dictionaries, in their order."""

    id: int
    seek: int  # mel frames: where this segment's window starts
    start: float  # seconds
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None  # None: not requested
    speaker: str | None = None  # None: not requested, or not known
    flags: tuple[str, ...] = ()  # reasons to doubt it: names in `slimwhisper.trust.REASONS`
    token_logprobs: list[float] | None = None  # of `tokens`, one by one; None: not requested


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of audio, and what was heard in it."""

    start: float  # seconds
    end: float
    text: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Transcript(dict[str, Any]):
    """One recording's result: `whisper.transcribe`'s dictionary, with attributes.

    The keys are "text", "segments" and "language"; beside them, if there are any, "flags", which
    has those of each segment by its id, "unscripted" and "dropped". Segments are dictionaries there
    with the keys of `whisper`'s, as programs refuse others; "speaker" and "token_logprobs" only if
    they were requested. Keys may be changed; the attributes stay what was heard.
    """

    text: str
    segments: list[Segment]
    language: str
    unscripted: tuple[Span, ...] = ()  # heard, and not in the text that was aligned
    dropped: Sequence[Segment] = ()  # left out of the text and the segments by `Options.drop`

    def __post_init__(self) -> None:
        segments = self.segment_rows()
        flags = {s["id"]: s.pop("flags") for s in segments if "flags" in s}
        self.update(text=self.text, segments=segments, language=self.language)
        if flags:
            self["flags"] = flags
        if self.unscripted:
            self["unscripted"] = [asdict(span) for span in self.unscripted]
        self.update(self.dropped_rows())

    def __repr__(self) -> str:
        """One line."""
        text = self.text if len(self.text) <= 60 else f"{self.text[:60]}..."
        return f"Transcript({text!r}, {len(self.segments)} segments, language={self.language!r})"

    def as_dict(self) -> dict[str, Any]:
        """A plain dictionary of the same keys and values."""
        return dict(self)

    def segment_rows(self) -> list[dict[str, Any]]:
        """The segments with all that is known of them; keys without a value are left out."""
        return [_row(segment) for segment in self.segments]

    def dropped_rows(self) -> dict[str, list[dict[str, Any]]]:
        """The dropped segments, as `segment_rows`, under the key "dropped"; {}: there are none."""
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
