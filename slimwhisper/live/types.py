"""The options of a live stream, and its events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from slimwhisper.errors import SlimWhisperError
from slimwhisper.option_group import MILLISECONDS, TASKS, WITHIN, option
from slimwhisper.types import Segment, Word

LEAST_WINDOW = 4.0  # seconds
MOST_PADDING_MS = 5_000
live = partial(option, section="live")


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options of a live stream. Durations are seconds of audio, except where the name says ms,
    as in OpenAI's Realtime API. As in `Options`, each row also defines a flag and its checks.
    """

    task: str = live("transcribe", "translate into English, or transcribe", choices=TASKS)
    language: str | None = live(None, "language code or name [detected for each utterance]")
    prompt: str | None = live(None, "text that comes before the first utterance")
    hotwords: str | None = live(None, "words to expect")
    condition_on_previous_text: bool = live(True, "prompt each utterance with those before it")
    update: float = live(1.0, "seconds of new audio between two updates", low=0.1, high=30)
    first: float = live(
        0.5, "seconds of speech before the first update of an utterance", low=0, high=30
    )
    words: bool = live(False, "when each word is spoken")
    diarize: bool = live(False, "at the end, name the speaker of each segment, by voice")
    known_speakers: tuple[tuple[str, str], ...] = option(
        (), "names, each with the path of a recording of that voice"
    )
    turns: bool = option(True, "whether pauses end utterances; False: only `commit` does")
    vad_threshold: float = live(0.5, "probability from which a sound is speech", **WITHIN)
    prefix_padding_ms: int = option(
        300, "milliseconds of audio kept before speech begins", low=0, high=MOST_PADDING_MS
    )
    silence_duration_ms: int = live(
        500, "milliseconds of silence that end an utterance", **MILLISECONDS
    )
    window: float | None = live(
        None, "seconds that an update encodes; fewer are faster [30]", low=LEAST_WINDOW, high=30
    )


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Voice activity has opened an utterance."""

    utterance: int  # counts from 0
    start: float  # seconds since the stream began
    calls: int = 0  # of `commit` and `clear` before it


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """An utterance is over; its last text follows."""

    utterance: int
    end: float  # seconds


@dataclass(frozen=True, slots=True)
class TextUpdate:
    """An update of an utterance: its text is all text committed so far, then `tentative`."""

    utterance: int
    committed: str  # added to the committed text by this update; may be ""
    tentative: str  # follows the committed text for now; may change
    words: tuple[Word, ...] = ()  # of `committed`, with `LiveOptions.words`
    heard: float = 0.0  # seconds of audio decoded by the update, since the stream began


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    """The whole utterance; its text is final."""

    utterance: int
    segments: tuple[Segment, ...]  # at least one; times in seconds since the stream began
    text: str  # all committed text; "": there was no speech
    language: str  # code


@dataclass(frozen=True, slots=True)
class SpeakersNamed:
    """The last event of a stream with `LiveOptions.diarize`: who spoke each segment."""

    speakers: tuple[tuple[int, int, str], ...]  # utterance, segment's id in it, speaker


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The stream has ended with an error."""

    error: SlimWhisperError


LiveEvent = (
    SpeechStarted | SpeechStopped | TextUpdate | UtteranceEnded | SpeakersNamed | StreamFailed
)
