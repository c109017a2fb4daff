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
    """The options of a live stream.

    Durations are seconds of audio, except where the name says ms, as in OpenAI's Realtime API. As
    in `Options`, each field also defines a flag of the command and its checks.

    Attributes:
        task: "transcribe" writes in the language that is spoken, "translate" in English. The
            default is "transcribe".
        language: The language that is spoken, by its code or name. None means that it is detected
            for each utterance.
        prompt: The text that comes before the first utterance. None means no text.
        hotwords: Words to expect. None means no words.
        condition_on_previous_text: Whether each utterance continues the text before it. The default
            is True.
        update: The seconds of new audio between two updates, from 0.1 to 30. The default is 1.0.
        first: The seconds of speech before the first update of an utterance, from 0 to 30. The
            default is 0.5.
        words: Whether to find when each word is spoken. The default is False.
        diarize: Whether to name the speaker of each segment by voice, at the end. The default is
            False.
        known_speakers: Names, each with the path of a recording of that voice, as pairs or as a
            mapping.
        turns: Whether pauses end utterances. With False only `commit` does. The default is True.
        vad_threshold: The probability from which a sound is speech, between 0 and 1. The default is
            0.5.
        prefix_padding_ms: The milliseconds of audio that are kept before speech begins, from 0 to
            5000. The default is 300.
        silence_duration_ms: The milliseconds of silence that end an utterance, from 0 to 60,000.
            The default is 500.
        window: The seconds that an update encodes, from 4 to 30. Fewer are faster. None means 30.
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
    """An event: voice activity has opened an utterance.

    Attributes:
        utterance: The number of the utterance, from 0.
        start: When it begins, in seconds since the stream began.
        calls: How many times `commit` and `clear` were called before it.
    """

    utterance: int
    start: float
    calls: int = 0


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """An event: an utterance is over. Its last text follows.

    Attributes:
        utterance: The number of the utterance.
        end: When it ends, in seconds since the stream began.
    """

    utterance: int
    end: float


@dataclass(frozen=True, slots=True)
class TextUpdate:
    """An event: an update of the text of an utterance.

    The text of the utterance is all its committed text so far, followed by the tentative text.

    Attributes:
        utterance: The number of the utterance.
        committed: The text that this update adds to the committed text, which is final. It may be
            "".
        tentative: The text that follows the committed text for now. The next update may change it.
        words: The words of `committed` with their times, if `LiveOptions.words` is set.
        heard: The end of the audio that the update decoded, in seconds since the stream began.
    """

    utterance: int
    committed: str
    tentative: str
    words: tuple[Word, ...] = ()
    heard: float = 0.0


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    """An event: the whole utterance, whose text is final.

    Attributes:
        utterance: The number of the utterance.
        segments: Its segments, at least one. Their times are seconds since the stream began.
        text: All its committed text. "" means that there was no speech.
        language: The code of its language.
        translated: Whether the text is a translation into English.
    """

    utterance: int
    segments: tuple[Segment, ...]
    text: str
    language: str
    translated: bool = False


@dataclass(frozen=True, slots=True)
class SpeakersNamed:
    """An event: who spoke each segment. It is the last one of a stream with `LiveOptions.diarize`.

    Attributes:
        speakers: The number of the utterance, the id of the segment in it, and the speaker, for
            each segment.
    """

    speakers: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """An event: the stream has ended with an error.

    Attributes:
        error: The error.
    """

    error: SlimWhisperError


LiveEvent = (
    SpeechStarted | SpeechStopped | TextUpdate | UtteranceEnded | SpeakersNamed | StreamFailed
)
