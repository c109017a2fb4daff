"""What a live stream is asked for, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass

from slimwhisper.errors import SlimWhisperError
from slimwhisper.types import Segment, Word

POLICIES = ("agreement", "alignatt")  # the values of `LiveOptions.policy`


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options of a live stream. Durations in seconds of audio, except where the name says ms,
    as OpenAI's Realtime API has it.
    """

    task: str = "transcribe"  # or "translate", X -> English
    language: str | None = None  # None: detected in each utterance
    prompt: str | None = None  # text that comes before the first utterance
    hotwords: str | None = None  # words to expect
    # when text is committed: two updates agree on it (LocalAgreement-2, arXiv 2307.14743), or it
    # does not attend to the end of the audio (AlignAtt, arXiv 2305.11408)
    policy: str = "agreement"
    update: float = 1.0  # new audio between two updates of an utterance, at least
    first: float = 0.5  # speech before the first update of an utterance
    words: bool = False  # when each committed word is spoken
    turns: bool = True  # pauses end utterances; False: only `commit` does
    vad_threshold: float = 0.5  # speech begins where its probability is at least this
    prefix_padding_ms: int = 300  # audio kept before speech begins
    silence_duration_ms: int = 500  # silence that ends an utterance
    window: float | None = None  # audio that an update encodes; None: the model's whole window


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Voice activity has opened an utterance."""

    utterance: int  # counts from 0
    start: float  # seconds since the stream began


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """An utterance is over; its last text follows."""

    utterance: int
    end: float  # seconds


@dataclass(frozen=True, slots=True)
class Text:
    """An update of an utterance: its text is all that was committed so far, then `tentative`."""

    utterance: int
    committed: str  # what this update adds to the committed text; "": nothing
    tentative: str  # what follows for now; it may change
    words: tuple[Word, ...] = ()  # of `committed`, if asked for
    heard: float = 0.0  # seconds of audio that the update knew


@dataclass(frozen=True, slots=True)
class Ended:
    """The whole utterance; nothing of it changes any more."""

    utterance: int
    segments: tuple[Segment, ...]  # at least one; times in seconds since the stream began
    text: str  # all that was committed; "": nothing was said
    language: str  # code


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream has ended with an error."""

    error: SlimWhisperError


LiveEvent = SpeechStarted | SpeechStopped | Text | Ended | Failed
