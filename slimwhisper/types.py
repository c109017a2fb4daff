"""The frozen dataclasses that flow through the package.

Units: times in seconds, mel frames of 10 ms, encoder frames (and timestamp tokens) of 20 ms.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line starts without torch
    from torch import Tensor

SAMPLE_RATE = 16_000  # Hz, of every waveform inside the package
CHUNK_SECONDS = 30  # a window
HOP_SAMPLES = 160  # one mel frame
FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES
WINDOW_FRAMES = CHUNK_SECONDS * FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class Dims:
    """The ten integers that say everything about a Whisper model, named as in OpenAI's files."""

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
    def is_multilingual(self) -> bool:
        return self.n_vocab >= 51_865

    @property
    def num_languages(self) -> int:
        return self.n_vocab - 51_765 - int(self.is_multilingual)


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose about a transcription; names and defaults are `whisper`'s.

    `temperature` is greedy decoding's 0 only.
    """

    task: str = "transcribe"  # or "translate", X -> English
    language: str | None = None  # None: detected from the first 30 s of each file
    temperature: float = 0.0
    sample_len: int | None = None  # most tokens sampled a window; None: n_text_ctx // 2
    initial_prompt: str | None = None
    carry_initial_prompt: bool = False  # prepend initial_prompt to every window's prompt
    condition_on_previous_text: bool = True
    without_timestamps: bool = False
    max_initial_timestamp: float | None = 1.0  # seconds
    suppress_blank: bool = True
    suppress_tokens: str | tuple[int, ...] | None = "-1"  # -1: symbols that are not spoken
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """What may be sampled in a window; one object for all windows of a file."""

    suppress: Tensor  # [n_vocab] bool: never sampled
    suppress_first: Tensor  # [n_vocab] bool: not as the first token either
    timestamps: bool  # sample timestamps, in pairs and in order
    max_initial_timestamp: int | None  # tokens of 20 ms; None: no limit
    sample_len: int  # most tokens sampled


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One request to the engine: 30 s of audio and the tokens to start from."""

    mel: Tensor  # [n_mels, 3000] float32, zeros where the file has ended
    prompt: tuple[int, ...]  # [<|startofprev|> previous text] <|startoftranscript|> ...
    sot_index: int  # where <|startoftranscript|> stands in `prompt`
    rules: Rules | None  # None: answer with language_probs alone, decode nothing


@dataclass(frozen=True, slots=True)
class Decoded:
    """The engine's answer to one window."""

    tokens: tuple[int, ...] = ()  # sampled, without the prompt and without <|endoftext|>
    avg_logprob: float = float("nan")
    no_speech_prob: float = float("nan")
    temperature: float = 0.0
    language_probs: dict[str, float] | None = None  # when the window asked for it


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


@dataclass(frozen=True, slots=True)
class Transcript:
    """One file's result."""

    text: str
    segments: list[Segment]
    language: str

    def as_dict(self) -> dict[str, Any]:
        """`whisper.transcribe`'s result dictionary: text, segments, language."""
        return asdict(self)
