"""How one file moves through its windows: seek, temperature, prompt, words, segments. No model.

`Session._run` and `_window` read from top to bottom as `whisper.transcribe`, whose rules they are:
they yield what the engine should do next, and are sent its answer.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
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


@dataclass(slots=True)
class WindowState:
    """What a window leaves to the next one."""

    among: Sequence[str]  # codes: the languages to choose among; (): all
    written: str | None = None  # code: the language of the text
    spoken: str | None = None  # the language last detected
    changed: bool = False  # with `multilingual`: an uncertain change of language
    last_speech: float = 0.0  # seconds


Steps = Generator[Request, Answer, None]  # requests to the engine, each sent its answer


class Session:
    """One recording, or some clips of it."""

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
        self.segments: list[Segment] = []
        self.seek = 0  # mel frames
        self.language = language or (None if self.vocabulary.languages else "en")
        if options.language is not None:
            self.language = language_code(options.language, self.vocabulary)
        among = [language_code(name, self.vocabulary) for name in options.languages]
        if len(among) == 1:
            self.language = among[0]
        self._expected = expected_tokens(self.vocabulary, expected, options.hotwords)
        self._steps = self._run(clips, WindowState(among))
        self._request: Request | None = next(self._steps, None)

    @property
    def done(self) -> bool:
        """Whether the recording has come to its end."""
        return self._request is None

    def next_request(self) -> Request | None:
        """What the engine should do next; None at the end of the recording. A window's audio is
        given once: it is the engine's then.
        """
        request = self._request
        if isinstance(request, Window):
            self._request = request.without_mel()
        return request

    def accept(self, answer: Answer) -> list[Segment]:
        """Process the answer to the last request, and return the new segments, if any.

        Raises `SlimWhisperError` if the model's output was not finite.
        """
        known = len(self.segments)
        try:
            self._request = self._steps.send(answer)
        except StopIteration:
            self._request = None
        return self.segments[known:]

    @property
    def position(self) -> int:
        """Mel frames of the recording done so far."""
        return min(self.seek, self.mel.frames)

    def _run(self, clips: Sequence[Clip] | None, state: WindowState) -> Steps:
        """The language, then window after window."""
        wanted = clips_of(self.options, self.mel.frames) if clips is None else clips
        places = self._places(wanted)
        in_slot: Clip | None = None  # the audio that the engine's slot has: start and frames
        if self.language is None:
            # from the recording's first 30 s, as in `whisper`; with `clips`, from the first clip's
            in_slot = (clips[0][0] if clips else 0, self.dims.window_frames)
            self.language = yield from self._ask_language(in_slot, state)
        else:
            self._set_language(self.language, state)
        self.prompts = Prompts(self.tokenizer, self.dims, self.options)
        for place in places:
            there = (place.start, place.frames) == in_slot
            in_slot = None
            if self.options.multilingual and not there:
                yield from self._ask_language((place.start, place.frames), state)
                there = True
            yield from self._window(place, there, state)

    def _places(self, clips: Sequence[Clip]) -> Iterator[Place]:
        """The window at `seek`, wherever that is by then; each clip begins where it says."""
        for start, stop in clips:
            self.seek = start
            while self.seek < stop:
                window = self.dims.window_frames
                size = min(window, stop - self.seek)
                yield Place(self.seek, size, self.mel.frames, window)

    # -- the language --------------------------------------------------------------------------

    def _ask_language(self, place: Clip, state: WindowState) -> Generator[Request, Answer, str]:
        """Detect the language of a window's audio, and use it from now on."""
        answer = yield Window(self.mel.window(*place), (self.vocabulary.sot,), 0, rules=None)
        assert isinstance(answer, Languages)
        language = answer.likeliest(state.among)
        before, state.spoken = state.spoken, language
        state.changed = before not in (None, language) and answer.probs[language] < SURE
        self._set_language(language, state)
        return language

    def _set_language(self, language: str, state: WindowState) -> None:
        self.tokenizer = self.vocabulary.tokenizer(language, self.options.task)
        if self.vocabulary.languages:
            state.written = "en" if self.options.task == "translate" else language

    # -- a window ------------------------------------------------------------------------------

    def _window(self, place: Place, in_slot: bool, state: WindowState) -> Steps:
        """Decode a window, at rising temperatures while its text fails, and keep its segments."""
        options = self.options
        attempts = ladder(options, (options.seed, place.start))
        prompt, sot_index = self.prompts.of_window(self.tokenizer)
        request: Window | Retry = Window(
            None if in_slot else self.mel.window(place.start, place.frames),
            prompt,
            sot_index,
            make_rules(self.dims, options, self.vocabulary),
            next(attempts),
            options.token_logprobs,
            expected=self._expected,
        )
        kept: Tried | None = None
        while kept is None:
            answer = yield request
            assert isinstance(answer, Decoded)
            text = self.tokenizer.decode(list(answer.tokens))
            following = climb(attempts, Tried.of(answer, text))
            if isinstance(following, Tried):
                kept = following
            else:
                request = Retry(following)
        if kept.is_silence(options):
            self.seek += place.frames
            return
        cut = self._cut(place, kept.result, kept.ratio)
        alignment: Answer | None = None
        if options.word_timestamps and (text_only := text_tokens(cut.segments, self.tokenizer)):
            before = self.tokenizer.sot_sequence_including_notimestamps
            alignment = yield Align(tuple(before), text_only)
        assert alignment is None or isinstance(alignment, Alignment)
        self._keep(place, kept.result, cut, alignment, state)

    def _keep(
        self,
        place: Place,
        result: Decoded,
        cut: Cut,
        alignment: Alignment | None,
        state: WindowState,
    ) -> None:
        """Add a window's segments and move on."""
        fresh, seek, dropped = cut.segments, cut.seek, False
        if self.options.word_timestamps:
            settled = settle(cut, alignment, self.tokenizer, self.options, place, state.last_speech)
            fresh, seek, dropped = settled.segments, settled.seek, settled.dropped
            state.last_speech = settled.last_speech
        # a window whose text is just <|0.00|><|0.00|> would be decoded in an endless loop
        self.seek = seek if seek > place.start else place.start + place.frames
        if not dropped:
            number = len(self.segments)
            fresh = [replace(_cleared(s), id=i) for i, s in enumerate(fresh, start=number)]
            sound = WindowSound(lambda: self._mel_of(place), place.offset)
            heard = Heard(sound, state.written, state.changed)
            self.segments += flagged(fresh, heard, self.segments)
            keep = self.options.condition_on_previous_text and result.temperature <= 0.5
            self.prompts.add([t for s in fresh for t in s.tokens], keep)

    def _mel_of(self, place: Place) -> Tensor:
        """[n_mels, frames]: a window without its padding."""
        return self.mel.window(place.start, place.frames)[:, : place.frames]

    def _cut(self, place: Place, result: Decoded, ratio: float) -> Cut:
        """A window's text, cut at its timestamps.

        One segment ends and the next begins between two adjacent timestamps. What follows the last
        such pair is unfinished, so the next window starts there, unless a single timestamp at the
        end says that nothing follows.
        """
        tokens, timestamps = result.tokens, self.vocabulary.timestamps
        begin = timestamps.start
        offset, seconds = place.offset, MEL_FRAMES_PER_POSITION / FRAMES_PER_SECOND
        following = place.start + place.frames

        def segment(start: float, end: float, first: int = 0, last: int | None = None) -> Segment:
            piece = tokens[first:last]
            logprobs = result.logprobs[first : first + len(piece)]
            return Segment(
                id=0,
                seek=place.start,
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
            duration = place.frames / FRAMES_PER_SECOND
            if stamps and stamps[-1] != begin:
                duration = (stamps[-1] - begin) * seconds
            return Cut([segment(0.0, duration)], following, nothing_follows)
        done = (tokens[ends[-1] - 1] - begin) * MEL_FRAMES_PER_POSITION
        seek = place.start + min(done, place.window)
        if nothing_follows:
            ends.append(len(tokens))
            seek = following
        segments = [
            segment((tokens[i] - begin) * seconds, (tokens[j - 1] - begin) * seconds, i, j)
            for i, j in pairwise([0, *ends])
        ]
        return Cut(segments, seek, nothing_follows)

    def transcript(self) -> Transcript:
        """The result so far; complete once it is `done`."""
        assert self.language is not None
        return Transcript(self.prompts.text(), self.segments, self.language)


def _cleared(segment: Segment) -> Segment:
    """A segment without text or length stays in the list, but without tokens, as in `whisper`."""
    if segment.start != segment.end and segment.text.strip():
        return segment
    logprobs = segment.token_logprobs and []
    return replace(segment, text="", tokens=[], words=[], token_logprobs=logprobs)
