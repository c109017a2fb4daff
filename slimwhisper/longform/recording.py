"""One recording, decoded whole; and its way through its windows: seek, temperature, prompt, words,
segments. No model.

`Session._run` and `_window` follow `whisper.transcribe` from top to bottom: they yield requests for
the engine, and receive its answers.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise
from operator import itemgetter

from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.samples import Samples
from slimwhisper.engine.requests import (
    Align,
    Alignment,
    Answer,
    Attempt,
    Decoded,
    Exchange,
    Languages,
    Request,
    Steps,
    Window,
)
from slimwhisper.longform.options import RecordingOptions
from slimwhisper.longform.passes import (
    DecodedWindow,
    Passes,
    TranscriptContext,
    WindowSegments,
    WindowSpan,
)
from slimwhisper.longform.requests import Candidate, Prompts, attempts_of, choose, make_rules
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary, get_vocabulary, language_code
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    MEL_FRAMES_PER_POSITION,
    SAMPLE_RATE,
    WHOLE,
    Dims,
    Segment,
    Transcript,
)

Clip = tuple[int, int]  # mel frames [start, stop)
LONG_SILENCE = 10 * FRAMES_PER_SECOND  # a model may take what follows it in a window for silence
CERTAIN = 0.9  # probability of a language in a window's own audio: it is whisper's then
UNCERTAIN, TRIES = 0.5, 3  # that below which other windows are heard; in all
UNHEARD = 2.0  # seconds of speech after a window's text for which the next window starts there


def clips_of(options: RecordingOptions, content_frames: int) -> list[Clip]:
    """`clip_timestamps` in mel frames; the last clip ends with the recording at the latest."""
    points = [round(t * FRAMES_PER_SECOND) for t in options.clip_seconds] or [0]
    if len(points) % 2:
        points.append(content_frames)
    stops = (min(stop, content_frames) for stop in points[1::2])
    return list(zip(points[::2], stops, strict=True))


class Session(Exchange):
    """One recording, or some clips of it."""

    tokenizer: Tokenizer  # for the language, once that is known

    def __init__(
        self,
        mel: Spectrogram,
        dims: Dims,
        options: RecordingOptions,
        clips: Sequence[Clip] | None = None,
        language: str | None = None,
        vocabulary: Vocabulary | None = None,
        silences: Sequence[Clip] = (),
        passes: Passes | None = None,
    ) -> None:
        """clips: instead of those in the options. language: a code, if already known. vocabulary:
        None: Whisper's for these dimensions.
        silences: of the file's clock, in which no window starts, and where long ones end it.
        passes: over each window's segments.
        """
        self.mel, self.dims, self.options = mel, dims, options
        self.vocabulary = vocabulary or get_vocabulary(dims)
        self.segments: list[Segment] = []
        self.language = language or (None if self.vocabulary.languages else "en")
        if options.language is not None:
            self.language = language_code(options.language, self.vocabulary)
        languages = [language_code(name, self.vocabulary) for name in options.languages]
        if len(languages) == 1:
            self.language = languages[0]
        self.language_probs: dict[str, float] = {}  # by code; {}: the language was known
        self._passes = passes or Passes()
        self._voice = self._passes.voice
        # what the next window needs to know of the ones before it
        self._seek = 0  # mel frames: where it starts
        self._languages = languages  # codes to choose among; []: all
        self._text_language: str | None = None  # code
        self._spoken_language: str | None = None  # code: the last one detected
        self._language_probability = 1.0  # with `multilingual`: of a language that has changed
        self._last_speech = 0.0  # seconds
        super().__init__(self._run(self._windows(clips, silences), cut=clips is None))

    @property
    def position(self) -> int:
        """Mel frames of the recording done so far."""
        return min(self._seek, self.mel.frames)

    def _run(self, spans: Iterator[WindowSpan], *, cut: bool) -> Steps:
        """Decode window after window; the first tells the language, if that is not known. cut: as
        in `_audio_of_language`.
        """
        first = next(spans, None)
        in_slot: Clip | None = None  # the audio in the engine's slot: start and frames
        if self.language is None:
            in_slot = yield from self._find_language(first, cut)
        else:
            self._set_language(self.language)
        self.prompts = Prompts(self.tokenizer, self.dims, self.options)
        for span in chain([] if first is None else [first], spans):
            encoded = (span.start, span.frames) == in_slot
            in_slot = None
            if self.options.multilingual and not encoded:
                yield from self._detect_language((span.start, span.frames))
                encoded = True
            yield from self._window(span, encoded)

    def _windows(
        self, clips: Sequence[Clip] | None, silences: Sequence[Clip]
    ) -> Iterator[WindowSpan]:
        """The windows of the clips that are decoded, each at what `seek` is when the one before it
        is done; but after a silence that it would start in, as a model finds no text that begins
        long after its window's start.
        """
        window = self.dims.window_frames
        for start, stop in clips_of(self.options, self.mel.frames) if clips is None else clips:
            self._seek = start
            while (seek := self._seek) < stop:
                if after := next((b for a, b in silences if a <= seek < b), 0):
                    self._seek = after
                    continue
                long = (a for a, b in silences if seek < a and b - a >= LONG_SILENCE)
                frames = min(window, stop - seek, next(long, stop) - seek)
                if self._voice is None or self._voice.heard(seek, seek + frames):
                    content = self.mel.frames if clips is None else stop
                    yield WindowSpan(seek, frames, content, window)
                else:
                    self._seek += frames

    # -- the language --------------------------------------------------------------------------

    def _audio_of_language(self, first: WindowSpan | None, cut: bool) -> Clip:
        """The audio in which `whisper` detects the language: 30 s, but from the first window that
        is decoded on. first: None: there is none. cut: leave out, too, what follows a clip that
        ends within them.
        """
        start, window = 0 if first is None else first.start, self.dims.window_frames
        if first is not None and cut and start + first.frames < self.mel.frames:
            return start, first.frames
        if self.options.audio_window not in WHOLE:
            window = max(min(window, self.mel.frames - start), 1)
        return start, window

    def _find_language(
        self, first: WindowSpan | None, cut: bool
    ) -> Generator[Request, Answer, Clip | None]:
        """Detect the recording's language: in the first window as it is decoded, if that is
        certain, which saves the encoder one of two; else as in `whisper`; where that leaves it
        open, and it is known where there is speech, in the most certain of up to three.

        Returns the audio that the engine has then; None: another.
        """
        voice, audio = self._voice, self._audio_of_language(first, cut)
        window = audio if first is None else (first.start, first.frames)
        found = [(yield from self._detect_language(window))]
        if window != audio and found[0][0] < CERTAIN:
            window = audio
            found = [(yield from self._detect_language(window))]
        while found[-1][0] < UNCERTAIN and len(found) < TRIES and not self.options.multilingual:
            audio = sum(audio), min(audio[1], self.mel.frames - sum(audio))
            if voice is None or audio[1] <= 0 or not voice.heard(audio[0], sum(audio)):
                break
            found.append((yield from self._detect_language(audio)))
        _, self.language, self.language_probs = max(found, key=itemgetter(0))
        self._language_probability = 1.0  # it has not changed
        self._set_language(self.language)
        return window if len(found) == 1 else None

    def _detect_language(
        self, audio: Clip
    ) -> Generator[Request, Answer, tuple[float, str, dict[str, float]]]:
        """Detect the language of a window's audio, and use it from then on.

        Returns its probability, its code, and the probability of each.
        """
        answer = yield Window(self.mel.for_encoder(*audio), (self.vocabulary.sot,), 0, rules=None)
        assert isinstance(answer, Languages)
        language = answer.most_likely(self._languages)
        before, self._spoken_language = self._spoken_language, language
        unchanged = before in (None, language)
        self._language_probability = 1.0 if unchanged else answer.probs[language]
        self._set_language(language)
        return answer.probs[language], language, answer.probs

    def _set_language(self, language: str) -> None:
        self.tokenizer = self.vocabulary.tokenizer(language, self.options.task)
        if self.vocabulary.languages:
            self._text_language = "en" if self.options.task == "translate" else language

    # -- a window ------------------------------------------------------------------------------

    def _window(self, span: WindowSpan, encoded: bool) -> Steps:
        """Decode a window, at rising temperatures while attempts fail, and add its segments.
        encoded: the engine has its audio.
        """
        options, tokenizer = self.options, self.tokenizer
        first, *others = attempts_of(options, (options.seed, span.start))
        prompt, sot_index = self.prompts.of_window(tokenizer)
        window = Window(
            None if encoded else self.mel.for_encoder(span.start, span.frames),
            prompt,
            sot_index,
            make_rules(self.dims, options, self.vocabulary),
            first,
            options.token_logprobs,
        )
        faint = self._voice and self._voice.is_faint(span.start, span.start + span.frames)
        failures: list[Candidate] = []
        requests: list[Window | Attempt] = [window, *others]
        for request in requests:
            answer = yield request
            assert isinstance(answer, Decoded)
            chosen = Candidate.of(answer, tokenizer.decode(list(answer.tokens)))
            if faint or not chosen.failed(options):
                break
            failures.append(chosen)
        else:
            chosen = choose(failures, options)
        if chosen.is_silence(options) or (faint and chosen.failed(options)):
            self._seek += span.frames
            return
        cut = cut_at_timestamps(
            span, chosen.result, chosen.ratio, self.vocabulary, tokenizer, options.token_logprobs
        )
        alignment: Answer | None = None
        if self._passes.words is not None:
            text = cut.text_tokens(tokenizer)
            before = tuple(tokenizer.sot_sequence_including_notimestamps)
            alignment = (yield Align(before, text)) if text else None
        assert alignment is None or isinstance(alignment, Alignment)
        self._add_segments(span, chosen.result, cut, alignment)

    def _add_segments(
        self, span: WindowSpan, result: Decoded, cut: WindowSegments, alignment: Alignment | None
    ) -> None:
        """Add a window's segments and move on."""
        window = DecodedWindow(
            span=span,
            mel=lambda: self.mel.window(span.start, span.frames),
            tokenizer=self.tokenizer,
            before=self.segments,
            alignment=alignment,
            last_speech=self._last_speech,
            language=self._text_language,
            language_probability=self._language_probability,
        )
        timed = cut
        if self._passes.words is not None:
            timed = self._passes.words(cut, window)
            self._last_speech = timed.last_speech
        new, seek = timed.segments, timed.seek
        window = replace(window, stop=max(cut.seek, seek))
        if self._voice and cut.nothing_follows:  # so says the model
            heard = max(round((new or cut.segments)[-1].end * FRAMES_PER_SECOND), span.start)
            seek = heard if self._voice.seconds(heard, seek) > UNHEARD else seek
        for change in self._passes.times:
            new = change(new, window)
        # a window whose text is just <|0.00|><|0.00|> would be decoded in an endless loop
        self._seek = seek if seek > span.start else span.start + span.frames
        if not timed.dropped:
            new = [replace(_cleared(s), id=i) for i, s in enumerate(new, len(self.segments))]
            for change in self._passes.windows:
                new = change(new, window)
            self.segments += new
            certain = result.temperature <= self.options.prompt_reset_on_temperature
            keep = self.options.condition_on_previous_text and certain
            self.prompts.add([t for s in new for t in s.tokens], keep)


def _cleared(segment: Segment) -> Segment:
    """The segment, without tokens if it has no text or no length, as in `whisper`."""
    if segment.start != segment.end and segment.text.strip():
        return segment
    logprobs = segment.token_logprobs and []
    return replace(segment, text="", tokens=[], words=[], token_logprobs=logprobs)


def cut_at_timestamps(
    span: WindowSpan,
    result: Decoded,
    ratio: float,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    token_logprobs: bool,
) -> WindowSegments:
    """The segments of a window's text. ratio: its compression ratio. token_logprobs: keep them.

    Between two adjacent timestamps, one segment ends and the next begins. The text after the last
    such pair is unfinished, so the next window starts there, unless the text ends with a single
    timestamp: then nothing follows. Unlike in `whisper`, no segment ends after the recording.
    """
    tokens, timestamps = result.tokens, vocabulary.timestamps
    begin = timestamps.start
    offset, seconds = span.offset, MEL_FRAMES_PER_POSITION / FRAMES_PER_SECOND
    following, limit = span.start + span.frames, span.content / FRAMES_PER_SECOND

    def segment(start: float, end: float, first: int = 0, last: int | None = None) -> Segment:
        nonlocal limit
        start, end = offset + start, offset + end
        if end > limit:  # a text after the recording's end keeps a moment of it
            latest = max(limit - seconds, offset) if start < end else limit
            start, end = min(start, latest), limit
            limit = start if offset < start == latest else limit  # where the one before it ends
        piece = tokens[first:last]
        logprobs = result.logprobs[first : first + len(piece)]
        return Segment(
            id=0,
            seek=span.start,
            start=start,
            end=end,
            text=tokenizer.decode([t for t in piece if vocabulary.is_text(t)]),
            tokens=list(piece),
            temperature=result.temperature,
            avg_logprob=result.avg_logprob,
            compression_ratio=ratio,
            no_speech_prob=result.no_speech_prob,
            token_logprobs=list(logprobs) if token_logprobs else None,
        )

    is_stamp = [t in timestamps for t in tokens]
    nothing_follows = is_stamp[-2:] == [False, True]
    ends = [i for i in range(1, len(tokens)) if is_stamp[i - 1] and is_stamp[i]]
    if not ends:
        last = next((t for t in reversed(tokens) if t in timestamps), begin)
        duration = (last - begin) * seconds or span.frames / FRAMES_PER_SECOND
        return WindowSegments([segment(0.0, duration)], following, nothing_follows)
    done = (tokens[ends[-1] - 1] - begin) * MEL_FRAMES_PER_POSITION
    seek = span.start + min(done, span.window)
    if nothing_follows:
        ends.append(len(tokens))
        seek = following
    segments = [  # the last first
        segment((tokens[i] - begin) * seconds, (tokens[j - 1] - begin) * seconds, i, j)
        for j, i in pairwise([*reversed(ends), 0])
    ]
    return WindowSegments(segments[::-1], seek, nothing_follows)


class Recording:
    """The session of one recording, and its segments.

    A subclass may have several sessions, and decode a part of the audio.
    """

    def __init__(
        self,
        samples: Samples,
        dims: Dims,
        options: RecordingOptions,
        vocabulary: Vocabulary | None = None,
        passes: Passes | None = None,
        clips: Sequence[Clip] | None = None,
    ) -> None:
        """Reads all samples. vocabulary, clips: as in `Session`."""
        self.options, self._samples, self._passes = options, samples, passes or Passes()
        self._reported: list[Segment] = []
        self.mel = Spectrogram(samples, dims.n_mels, dims.window_frames, options.audio_window)
        self._session = partial(
            Session,
            self.mel,
            dims,
            options,
            vocabulary=vocabulary,
            passes=self._passes,
            silences=[(a // HOP_SAMPLES, b // HOP_SAMPLES) for a, b in samples.silences],
        )
        self.sessions = [self._session(clips)]
        self.vocabulary = self.sessions[0].vocabulary  # of the model that transcribes
        self._started = 0  # sessions
        self.seconds_of_speech = self.seconds

    def next_session(self) -> Session | None:
        """The next session to start; None if there is none."""
        if self._started == len(self.sessions):
            return None
        self._started += 1
        return self.sessions[-1]

    @property
    def context(self) -> TranscriptContext:
        """What passes may know; known once the language is."""
        first = self.sessions[0]
        return TranscriptContext(self.options, self.seconds, first.vocabulary, first.tokenizer)

    @property
    def seconds(self) -> float:
        """The recording's length."""
        return len(self._samples) / SAMPLE_RATE

    @property
    def done(self) -> bool:
        """Whether all is transcribed."""
        return all(s.done for s in self.sessions)

    @property
    def seconds_done(self) -> float:
        """Seconds of the recording done so far."""
        return self.seconds if self.done else self.next_start

    @property
    def next_start(self) -> float:
        """Seconds: no segment that `report` has not yet returned starts earlier."""
        session = next((s for s in self.sessions if not s.done), self.sessions[-1])
        return session.position / FRAMES_PER_SECOND

    def report(self) -> list[Segment]:
        """The new segments, in order of time, without those that `Options.drop` leaves out."""
        return [s for s in self._report() if not self._passes.drops(s)]

    def _report(self) -> list[Segment]:
        undone = next((i for i, s in enumerate(self.sessions) if not s.done), len(self.sessions))
        found = chain.from_iterable(s.segments for s in self.sessions[: undone + 1])
        rest = islice(enumerate(found), len(self._reported), None)
        new = [replace(self._with_original_times(s), id=i) for i, s in rest]
        self._reported += new
        return new

    def transcript(self) -> Transcript:
        """The result; complete once `done`."""
        self._report()
        text, language = "".join(s.prompts.text() for s in self.sessions), self.sessions[0].language
        assert language is not None
        translated = self.options.task == "translate"
        transcript = Transcript(text, self._reported.copy(), language, translated=translated)
        for change in self._passes.transcript:
            transcript = change(transcript, self.context)
        return transcript

    def close(self) -> None:
        """Free memory and files."""
        self.mel.close()
        self._samples.close()

    def _with_original_times(self, segment: Segment) -> Segment:
        """The segment with its times in the whole recording."""
        return segment
