"""The table of passes over a recording's segments: words' times, flags, speakers, sentences.

What a pass needs is imported where an option asks for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeVar

from slimwhisper.audio.samples import Samples
from slimwhisper.longform.passes import DecodedWindow, Passes, TranscriptContext, Voice, WindowSpan
from slimwhisper.options import Options
from slimwhisper.trust.flags import (
    CERTAIN_LANGUAGE,
    WindowEvidence,
    flagged,
    window_sound,
    with_gaps,
    with_loops,
)
from slimwhisper.types import FRAMES_PER_SECOND, Segment, Transcript, Word
from slimwhisper.word_times.options import add_words

T = TypeVar("T")
ELSEWHERE = 0.2  # seconds of speech outside all segments


def passes_of(samples: Samples, options: Options, name: str) -> Passes:
    """The passes that the options ask for, in the order of `TABLE`.

    Arguments:
        samples: of the recording; some passes read them.
        name: of the recording, without suffix, for an RTTM file.
    Raises:
        AudioError, DependencyError, OptionError.
    """
    passes = Passes()
    for add in TABLE:
        add(passes, samples, options, name)
    return passes


def prepare_passes(options: Options) -> None:
    """Load what the passes need, so that errors are reported once, before any recording is read.
    Raises as `passes_of`.
    """
    if options.diarize is not None:
        from slimwhisper.speakers.diarize import prepare

        prepare(options)


def flag(
    segments: Sequence[Segment], window: DecodedWindow, voice: Voice | None = None
) -> list[Segment]:
    """Flag what is doubtful, by the text and the sound of its window."""
    sound = window_sound(lambda: window.mel()[:, : window.span.frames], window.span.offset)
    changed = window.language_probability < CERTAIN_LANGUAGE
    voiced = _voiced(segments, window.span, voice)
    evidence = WindowEvidence(sound, window.language, changed, voiced)
    return flagged(segments, evidence, window.before)


def _voiced(
    segments: Sequence[Segment], span: WindowSpan, voice: Voice | None
) -> Callable[[float, float], bool] | None:
    """Whether somebody may speak between two times. Where speech elsewhere in the window has no
    text, a text may be that: the times of a lone word are often wrong.
    """
    if voice is None:
        return None
    heard, seconds = in_seconds(voice.heard), in_seconds(voice.seconds)
    spoken = voice.seconds(span.start, span.start + span.frames)
    with_text = sum(seconds(s.start, s.end) for s in segments if s.text.strip())
    elsewhere = spoken - with_text > ELSEWHERE
    return lambda start, end: elsewhere or heard(start, end)


def in_seconds(of_frames: Callable[[int, int], T]) -> Callable[[float, float], T]:
    """A function of two mel frames, as one of two times."""
    rate = FRAMES_PER_SECOND
    return lambda start, end: of_frames(round(start * rate), round(end * rate))


def add_flags(passes: Passes, samples: Samples, options: Options, name: str) -> None:
    """What is doubtful in a window; and where there is speech, as the rest, or a window without it,
    is not decoded.
    """
    if options.vad_filter or options.parallel:
        from slimwhisper.voice_activity import find_speech

        passes.speech = find_speech(samples, options)
    elif options.speech_only:
        from slimwhisper.voice_activity import SpeechFrames

        passes.voice = SpeechFrames(samples)
    passes.windows.append(partial(flag, voice=passes.voice))


def add_speakers(passes: Passes, samples: Samples, options: Options, name: str) -> None:
    """Find the turns of the speakers, to assign one to each word, and to cut segments there."""
    if options.diarize is None:
        return
    from slimwhisper.speakers.assign import assign_speakers
    from slimwhisper.speakers.diarize import find_speakers

    turns = find_speakers(samples, options, name)

    def assign(transcript: Transcript, context: TranscriptContext) -> Transcript:
        segments = assign_speakers(transcript.segments, turns, context.spell)
        return replace(transcript, segments=with_logprobs(segments, transcript.segments))

    passes.transcript.append(assign)


def add_the_rest(passes: Passes, samples: Samples, options: Options, name: str) -> None:
    """Loops across windows, what is dropped, and sentences."""
    passes.transcript.append(partial(flag_all, passes.voice))
    if options.drop:
        passes.dropped = frozenset(options.drop)
        passes.transcript.append(partial(drop, passes))
    if options.sentences:
        passes.transcript.append(cut_sentences)


def spoken_by(speaker: str, segments: Sequence[Segment], window: DecodedWindow) -> list[Segment]:
    """The segments and their words, with the speaker."""

    def named(words: list[Word] | None) -> list[Word] | None:
        return words and [replace(word, speaker=speaker) for word in words]

    return [replace(s, speaker=speaker, words=named(s.words)) for s in segments]


def flag_all(voice: Voice | None, transcript: Transcript, context: TranscriptContext) -> Transcript:
    """Flag loops that continue in later segments, and speech without text, if that is known."""
    segments = with_loops(transcript.segments)
    if voice is not None:
        segments = with_gaps(segments, in_seconds(voice.seconds), context.seconds)
    return replace(transcript, segments=segments)


def drop(passes: Passes, transcript: Transcript, context: TranscriptContext) -> Transcript:
    """Leave out the segments with one of the flags in `Options.drop`."""
    dropped = [s for s in transcript.segments if passes.drops(s)]
    if not dropped:
        return transcript
    kept = [s for s in transcript.segments if not passes.drops(s)]
    text = "".join(s.text for s in kept)
    return replace(transcript, text=text, segments=kept, dropped=dropped)


def cut_sentences(transcript: Transcript, context: TranscriptContext) -> Transcript:
    """A segment for each sentence."""
    from slimwhisper.subtitles.sentences import to_sentences

    segments = to_sentences(transcript.segments, transcript.text_language, context.seconds)
    return replace(transcript, segments=with_logprobs(segments, transcript.segments))


def with_logprobs(segments: Sequence[Segment], before: Sequence[Segment]) -> list[Segment]:
    """Segments that were cut again, with the log-probabilities of their tokens, if there are any:
    they are all tokens of the segments `before`, in order.
    """
    if all(segment.token_logprobs is None for segment in before):
        return list(segments)
    rest = iter([logprob for s in before for logprob in s.token_logprobs or ()])
    return [replace(s, token_logprobs=list(islice(rest, len(s.tokens)))) for s in segments]


# each adds its passes, if the options ask for them
TABLE: list[Callable[[Passes, Samples, Options, str], None]] = [
    add_words,
    add_flags,
    add_speakers,
    add_the_rest,
]
