"""The last steps on a complete transcript: speakers, loops, dropped segments, sentences."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import TYPE_CHECKING

from slimwhisper.audio.samples import Samples
from slimwhisper.speakers.assign import Spell, assign_speakers
from slimwhisper.speakers.diarize import find_speakers
from slimwhisper.subtitles.sentences import to_sentences
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.trust.flags import with_loops
from slimwhisper.types import SAMPLE_RATE, Options, Segment, Transcript

if TYPE_CHECKING:  # it imports numba, which is slow to start
    from whisper.tokenizer import Tokenizer


class PostProcessing:
    """Assigns speakers, flags loops, drops segments and cuts sentences, by the options."""

    def __init__(self, samples: Samples, options: Options, name: str) -> None:
        """Finds the turns of the speakers, from the samples. name: as in `Recording`."""
        self._options, self._seconds = options, len(samples) / SAMPLE_RATE
        self._turns = find_speakers(samples, options, name)

    def __call__(
        self, transcript: Transcript, vocabulary: Vocabulary, tokenizer: "Tokenizer"
    ) -> Transcript:
        """The finished copy; vocabulary and tokenizer: of its tokens."""
        options, segments = self._options, list(transcript.segments)
        if options.diarize is not None:
            spell = speller(vocabulary, tokenizer)
            segments = assign_speakers(segments, self._turns, spell)
        segments = with_loops(segments)
        if options.token_logprobs:
            segments = with_logprobs(segments, transcript.segments)
        dropped = [s for s in segments if is_dropped(s, options)]
        text = transcript.text
        if dropped:
            segments = [s for s in segments if not is_dropped(s, options)]
            text = "".join(s.text for s in segments)
        if options.sentences:
            language = "en" if options.task == "translate" else transcript.language
            kept = segments
            segments = to_sentences(kept, language, self._seconds)
            if options.token_logprobs:
                segments = with_logprobs(segments, kept)
        return replace(transcript, text=text, segments=segments, dropped=dropped)


def speller(vocabulary: Vocabulary, tokenizer: "Tokenizer") -> Spell:
    """A segment's tokens -> pieces of text with their tokens; timestamps have no text."""

    def spell(tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
        pieces: list[tuple[str, list[int]]] = []
        for is_text, run in groupby(tokens, vocabulary.is_text):
            words, parts = [""], [list(run)]
            if is_text:
                words, parts = tokenizer.split_to_word_tokens(parts[0])
            pieces += zip(words, parts, strict=True)
        return pieces

    return spell


def is_dropped(segment: Segment, options: Options) -> bool:
    """Whether a segment has one of the flags in `Options.drop`."""
    return not set(options.drop).isdisjoint(segment.flags)


def with_logprobs(segments: Sequence[Segment], before: Sequence[Segment]) -> list[Segment]:
    """Segments that were cut again, with the log-probabilities of their tokens, which are all
    tokens of the segments `before`, in order.
    """
    rest = iter([logprob for s in before for logprob in s.token_logprobs or ()])
    return [replace(s, token_logprobs=list(islice(rest, len(s.tokens)))) for s in segments]
