"""How one file moves through its windows: seek, temperature, prompt, words, segments. No model.

`next_request` says what the engine should do next, `accept` takes its answer and moves on. The
rules are those of `whisper.transcribe`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from torch import Tensor

from slimwhisper.audio.mel import Spectrogram
from slimwhisper.engine.requests import (
    Align,
    Alignment,
    Answer,
    Decoded,
    Languages,
    Request,
    Retry,
    Window,
)
from slimwhisper.engine.rules import make_rules
from slimwhisper.longform.attempts import Tried, climb, ladder
from slimwhisper.longform.expected import expected_tokens
from slimwhisper.longform.hallucination import Place
from slimwhisper.longform.prompts import Prompts
from slimwhisper.longform.words import Cut, settle, text_tokens
from slimwhisper.tokens.vocabulary import Vocabulary, get_vocabulary, language_code
from slimwhisper.trust.flags import SURE, Heard, flagged
from slimwhisper.trust.sound import WindowSound
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    MEL_FRAMES_PER_POSITION,
    Dims,
    Options,
    Segment,
    Transcript,
)

Clip = tuple[int, int]  # mel frames [start, stop)


def clips_of(options: Options, content_frames: int) -> list[Clip]:
    """`clip_timestamps` in mel frames; the last clip ends with the recording at the latest."""
    points = [round(t * FRAMES_PER_SECOND) for t in options.clip_seconds] or [0]
    if len(points) % 2:
        points.append(content_frames)
    stops = (min(stop, content_frames) for stop in points[1::2])
    return list(zip(points[::2], stops, strict=True))


class Session:
    """The state machine of one recording, or of some clips of it."""

    def __init__(
        self,
        mel: Spectrogram,
        dims: Dims,
        options: Options,
        clips: Sequence[Clip] | None = None,
        language: str | None = None,
        vocabulary: Vocabulary | None = None,
        expected: str = "",
    ) -> None:
        """clips: instead of those in the options. language: a code, if already known. vocabulary:
        None: Whisper's for these dimensions. expected: a text that the recording follows.
        """
        self.mel, self.dims, self.options = mel, dims, options
        self.vocabulary = vocabulary or get_vocabulary(dims)
        self._expected = expected_tokens(self.vocabulary, expected, options.hotwords)
        self.frames_per_token = MEL_FRAMES_PER_POSITION
        self.seek = 0  # mel frames
        self.segments: list[Segment] = []
        self._clips = list(clips_of(options, mel.frames) if clips is None else clips)
        self._clip = -1
        self._next_clip()
        self._last_speech = 0.0  # seconds
        self._written: str | None = None  # code: the language of the text
        self._spoken: str | None = None  # the language last detected
        self._changed = False  # with `multilingual`: an uncertain change of language
        self._unaligned: tuple[Decoded, Cut] | None = None  # waiting for its words' times
        self.rules = make_rules(dims, options, self.vocabulary)
        self.language = language or (None if self.vocabulary.languages else "en")
        if options.language is not None:
            self.language = language_code(options.language, self.vocabulary)
        self._among = [language_code(name, self.vocabulary) for name in options.languages]
        if len(self._among) == 1:
            self.language = self._among[0]
        self._request: Request | None
        if self.language is None:
            # from the recording's first 30 s, as in `whisper`; with `clips`, from the first clip's
            self._listened = self._clips[0][0] if clips else 0
            self._request = self._ask_language(mel.window(self._listened, dims.window_frames))
        else:
            self._set_language(self.language)
            self.prompts = Prompts(self.tokenizer, dims, options)
            self._request = self._open()

    def next_request(self) -> Request | None:
        """What the engine should do next; None at the end of the recording."""
        return self._request

    @property
    def position(self) -> int:
        """Mel frames of the recording done so far."""
        return min(self.seek, self.mel.frames)

    # -- windows -------------------------------------------------------------------------------

    def _next_clip(self) -> None:
        self._clip += 1
        if self._clip < len(self._clips):
            self.seek = self._clips[self._clip][0]

    def _place(self) -> Place | None:
        """The window at `seek`, or the next clip's first; None at the end."""
        while self._clip < len(self._clips):
            start, stop = self._clips[self._clip]
            self.seek = max(self.seek, start)
            if self.seek < stop:
                window = self.dims.window_frames
                size = min(window, stop - self.seek)
                return Place(self.seek, size, self.mel.frames, window)
            self._next_clip()
        return None

    def _open(self, in_slot: bool = False) -> Request | None:
        """Request the window at `seek`; `in_slot`: the engine's slot already has its audio."""
        place = self._place()
        if place is None:
            return None
        self.place = place
        self._attempts = ladder(self.options, (self.options.seed, place.start))
        sound = WindowSound(lambda: self._mel_of(place), place.offset)
        self._heard = Heard(sound, self._written, self._changed)
        if self.options.multilingual and not in_slot:
            return self._ask_language(self.mel.window(place.start, place.frames))
        prompt, sot_index = self.prompts.of_window(self.tokenizer)
        mel = None if in_slot else self.mel.window(place.start, place.frames)
        return Window(
            mel,
            prompt,
            sot_index,
            self.rules,
            next(self._attempts),
            self.options.token_logprobs,
            expected=self._expected,
        )

    def _ask_language(self, mel: Tensor) -> Window:
        """mel [n_mels, 3000] -> the request to detect its language."""
        return Window(mel, (self.vocabulary.sot,), 0, rules=None)

    def _set_language(self, language: str) -> None:
        self.tokenizer = self.vocabulary.tokenizer(language, self.options.task)
        if self.vocabulary.languages:
            self._written = "en" if self.options.task == "translate" else language

    def _mel_of(self, place: Place) -> Tensor:
        """[n_mels, frames]: a window without its padding."""
        return self.mel.window(place.start, place.frames)[:, : place.frames]

    # -- answers -------------------------------------------------------------------------------

    def accept(self, answer: Answer) -> list[Segment]:
        """Process the answer to the last request, and return the new segments, if any.

        Raises `SlimWhisperError` if the model's output was not finite.
        """
        match answer:
            case Languages():
                language = answer.likeliest(self._among)
                self._accept_language(language, answer.probs[language])
                return []
            case Alignment():
                assert self._unaligned is not None
                return self._finish(*self._unaligned, answer)
            case Decoded():
                return self._accept_text(answer)

    def _accept_language(self, language: str, probability: float) -> None:
        before, self._spoken = self._spoken, language
        self._changed = before not in (None, language) and probability < SURE
        self._set_language(language)
        if self.language is None:
            self.language = language
            self.prompts = Prompts(self.tokenizer, self.dims, self.options)
            place = self._place()
            heard = (self._listened, self.dims.window_frames)  # still in the slot
            same = place is not None and (place.start, place.frames) == heard
            self._request = self._open(in_slot=same)
        else:
            self._request = self._open(in_slot=True)

    def _accept_text(self, result: Decoded) -> list[Segment]:
        tried = Tried.of(result, self.tokenizer.decode(list(result.tokens)))
        following = climb(self._attempts, tried)
        if isinstance(following, Tried):
            return self._keep(following)
        self._request = Retry(following)
        return []

    def _keep(self, tried: Tried) -> list[Segment]:
        """Go on with this text of the window."""
        if tried.is_silence(self.options):
            self.seek += self.place.frames
            self._request = self._open()
            return []
        result, cut = tried.result, self._cut(tried.result, tried.ratio)
        if self.options.word_timestamps:
            text = text_tokens(cut.segments, self.tokenizer)
            if text:
                before = self.tokenizer.sot_sequence_including_notimestamps
                self._unaligned = (result, cut)
                self._request = Align(tuple(before), text)
                return []
        return self._finish(result, cut, None)

    def _cut(self, result: Decoded, ratio: float) -> Cut:
        """A window's text, cut at its timestamps.

        One segment ends and the next begins between two adjacent timestamps. What follows the last
        such pair is unfinished, so the next window starts there, unless a single timestamp at the
        end says that nothing follows.
        """
        tokens, timestamps = result.tokens, self.vocabulary.timestamps
        begin = timestamps.start
        offset, seconds = self.place.offset, self.frames_per_token / FRAMES_PER_SECOND
        following = self.place.start + self.place.frames

        def segment(start: float, end: float, first: int = 0, last: int | None = None) -> Segment:
            piece = tokens[first:last]
            logprobs = result.logprobs[first : first + len(piece)]
            return Segment(
                id=0,
                seek=self.place.start,
                start=offset + start,
                end=offset + end,
                text=self.tokenizer.decode([t for t in piece if self.vocabulary.is_text(t)]),
                tokens=list(piece),
                temperature=result.temperature,
                avg_logprob=result.avg_logprob,
                compression_ratio=ratio,
                no_speech_prob=result.no_speech_prob,
                token_logprobs=list(logprobs) if self.options.token_logprobs else None,
            )

        stamped = [t in timestamps for t in tokens]
        nothing_follows = stamped[-2:] == [False, True]
        ends = [i for i in range(1, len(tokens)) if stamped[i - 1] and stamped[i]]
        if not ends:
            stamps = [t for t in tokens if t in timestamps]
            duration = self.place.frames / FRAMES_PER_SECOND
            if stamps and stamps[-1] != begin:
                duration = (stamps[-1] - begin) * seconds
            return Cut([segment(0.0, duration)], following, nothing_follows)
        done = (tokens[ends[-1] - 1] - begin) * self.frames_per_token
        seek = self.place.start + min(done, self.place.window)
        if nothing_follows:
            ends.append(len(tokens))
            seek = following
        segments = [
            segment((tokens[i] - begin) * seconds, (tokens[j - 1] - begin) * seconds, i, j)
            for i, j in pairwise([0, *ends])
        ]
        return Cut(segments, seek, nothing_follows)

    def _finish(
        self,
        result: Decoded,
        cut: Cut,
        alignment: Alignment | None,
    ) -> list[Segment]:
        """Add a window's segments and move on."""
        fresh, seek, dropped = cut.segments, cut.seek, False
        if self.options.word_timestamps:
            settled = settle(
                cut, alignment, self.tokenizer, self.options, self.place, self._last_speech
            )
            fresh, seek, dropped = settled.segments, settled.seek, settled.dropped
            self._last_speech = settled.last_speech
        # a window whose text is just <|0.00|><|0.00|> would be decoded in an endless loop
        self.seek = seek if seek > self.place.start else self.place.start + self.place.frames
        if not dropped:
            number = len(self.segments)
            fresh = [replace(_cleared(s), id=i) for i, s in enumerate(fresh, start=number)]
            fresh = flagged(fresh, self._heard, self.segments)
            self.segments += fresh
            keep = self.options.condition_on_previous_text and result.temperature <= 0.5
            self.prompts.add([t for s in fresh for t in s.tokens], keep)
        self._unaligned = None
        self._request = self._open()
        return fresh

    def transcript(self) -> Transcript:
        """The result so far; complete once `next_request` returns None."""
        assert self.language is not None
        return Transcript(self.prompts.text(), self.segments, self.language)


def _cleared(segment: Segment) -> Segment:
    """A segment without text or length stays in the list, but without tokens, as in `whisper`."""
    if segment.start != segment.end and segment.text.strip():
        return segment
    logprobs = segment.token_logprobs and []
    return replace(segment, text="", tokens=[], words=[], token_logprobs=logprobs)
