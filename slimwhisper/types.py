"""The frozen dataclasses that flow through the package.

Units: times in seconds, mel frames of 10 ms, encoder frames (and timestamp tokens) of 20 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line starts without torch
    pass

SAMPLE_RATE = 16_000  # Hz, of every waveform inside the package
CHUNK_SECONDS = 30  # a window
HOP_SAMPLES = 160  # one mel frame
FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES
MEL_FRAMES_PER_POSITION = 2  # of the encoder, and per timestamp token
WINDOW_FRAMES = CHUNK_SECONDS * FRAMES_PER_SECOND
ON_FAILURE = ("last", "best")  # the values of `Options.on_failure`
DTYPES = ("float32", "float16", "bfloat16")  # to compute in
DEFAULT_DTYPES = {"cpu": "float32", "gpu": "float16"}  # by the kind of device


@dataclass(frozen=True, slots=True)
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

    def other_encoder(self, other: Dims) -> str | None:
        """Where the encoder of `other` has other dimensions, in words; None: nowhere."""
        names = (f.name for f in fields(self) if f.name == "n_mels" or "_audio_" in f.name)
        for name in names:
            theirs, ours = getattr(other, name), getattr(self, name)
            if theirs != ours:
                return f"its {name} is {theirs}, not {ours}"
        return None

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


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a transcription; names and defaults are `whisper`'s.

    `hotwords`, `multilingual` and `vad_filter` with its settings are faster-whisper's; `languages`,
    `parallel`, `seed`, `token_logprobs`, `on_failure`, `check`, `sentences` and what is about
    speakers our own.
    """

    task: str = "transcribe"  # or "translate", X -> English
    language: str | None = None  # None: detected from the first 30 s of each file
    languages: tuple[str, ...] = ()  # detect the language among these; (): among all
    multilingual: bool = False  # detect the language anew in every window
    # tried in turn until a window's text passes the thresholds; 0 is greedy, or beam search
    temperature: float | tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    best_of: int | None = None  # samples drawn where temperature > 0; None: 1
    beam_size: int | None = None  # beams where temperature is 0; None: greedy
    patience: float | None = None  # beam_size * patience texts end a search; None: 1.0
    length_penalty: float | None = None  # Google NMT's alpha; None: mean log-probability
    sample_len: int | None = None  # most tokens sampled a window; None: n_text_ctx // 2
    seed: int = 0  # for sampling; each file has its own random stream
    initial_prompt: str | None = None
    carry_initial_prompt: bool = False  # prepend initial_prompt to every window's prompt
    condition_on_previous_text: bool = True
    prefix: str | None = None  # every window's text begins with it
    hotwords: str | None = None  # words to expect, in every window's prompt
    # a text that the recording follows: a file, or a folder of NAME.txt. Drafts: the same result
    # in fewer steps, without beams
    expected: str | None = None
    without_timestamps: bool = False
    max_initial_timestamp: float | None = 1.0  # seconds
    suppress_blank: bool = True
    suppress_tokens: str | tuple[int, ...] | None = "-1"  # -1: symbols that are not spoken
    compression_ratio_threshold: float | None = 2.4  # above: the text repeats itself; fall back
    logprob_threshold: float | None = -1.0  # average below: the model is unsure; fall back
    no_speech_threshold: float | None = 0.6
    on_failure: str = "last"  # which text to keep where all temperatures fail; or "best"
    check: bool = False  # decode again what is flagged, and keep the better text
    word_timestamps: bool = False
    prepend_punctuations: str = "\"'“¿([{-"
    append_punctuations: str = "\"'.。,，!！?？:：”)]}、"
    clip_timestamps: str | tuple[float, ...] = "0"  # seconds: start,end,start,end,...
    hallucination_silence_threshold: float | None = None  # seconds; with word_timestamps
    vad_filter: bool = False  # leave out what is not speech
    parallel: bool = False  # decode the speech regions of one file side by side
    # what is speech, for `vad_filter` and `parallel`
    vad_threshold: float = 0.5  # speech begins where its probability is at least this
    vad_min_silence_duration_ms: int | None = None  # that ends speech; None: 2000; parallel: 300
    vad_speech_pad_ms: int | None = None  # added on both sides; None: 400; parallel: 200
    token_logprobs: bool = False  # keep the log-probability of every token
    diarize: str | None = None  # "embedding", "pyannote", or an .rttm file; None: no speakers
    speakers: int | None = None  # how many there are; None: found
    known_speakers: tuple[tuple[str, str], ...] = ()  # name, path of a recording of that voice
    sentences: bool = False  # segments are sentences that can be read as subtitles

    @property
    def temperatures(self) -> tuple[float, ...]:
        """`temperature`, one or several, in the order in which they are tried."""
        given = self.temperature
        return tuple(given) if isinstance(given, Sequence) else (given,)

    @property
    def clip_seconds(self) -> list[float]:
        """The numbers of `clip_timestamps`. Raises ValueError or TypeError for others."""
        given = self.clip_timestamps
        parts = [t for t in given.split(",") if t.strip()] if isinstance(given, str) else given
        return [float(t) for t in parts]


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a segment; the fields of `whisper`'s word dictionaries."""

    word: str  # with its leading space
    start: float  # seconds
    end: float
    probability: float
    speaker: str | None = None  # None: not requested, or nobody known


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
    speaker: str | None = None  # None: not requested, or nobody known
    flags: tuple[str, ...] = ()  # why not to trust it: names in `slimwhisper.trust.REASONS`
    token_logprobs: list[float] | None = None  # of `tokens`, one by one; None: not requested


@dataclass(frozen=True, slots=True)
class Transcript:
    """One file's result."""

    text: str
    segments: list[Segment]
    language: str

    def as_dict(self) -> dict[str, Any]:
        """`whisper.transcribe`'s result dictionary: text, segments, language.

        What is not `whisper`'s, "speaker", "flags" and "token_logprobs", is there only where it
        says something.
        """
        result = asdict(self)
        for segment in result["segments"]:
            for key in ("words", "speaker", "token_logprobs"):
                if segment[key] is None:
                    del segment[key]
            segment["flags"] = list(segment["flags"])
            if not segment["flags"]:
                del segment["flags"]
            for word in segment.get("words", ()):
                if word["speaker"] is None:
                    del word["speaker"]
        return result
