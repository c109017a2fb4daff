"""Speech without a pause: its audio, the updates that decode it, and what of them is committed."""

from collections.abc import Sequence
from dataclasses import replace

from slimwhisper.engine.requests import (
    Align,
    Alignment,
    Answer,
    Attempt,
    Decoded,
    Languages,
    Request,
    Retry,
    Window,
)
from slimwhisper.live.cutting import choose_cut
from slimwhisper.live.mel import LiveMel
from slimwhisper.live.policy import COMMITS, NEED_ATTENTION, Piece, Update, most_attended
from slimwhisper.live.setup import SPARE
from slimwhisper.live.types import Text
from slimwhisper.live.utterance import Utterance
from slimwhisper.live.words import words_of
from slimwhisper.longform.attempts import Tried, climb, ladder
from slimwhisper.longform.words import attention
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    MEL_FRAMES_PER_POSITION,
    SAMPLE_RATE,
    Word,
)

CERTAIN = SAMPLE_RATE // 10  # samples after the speech that an update must know to be the last
HUSH = SAMPLE_RATE // 4  # samples of silence after which speech may be over
TAIL = SAMPLE_RATE // 2  # samples after the speech that its last update hears


class Passage:
    """A buffer of audio and the text since its last cut. Each update is one `Window`."""

    def __init__(self, utterance: Utterance, start: int, speech: int) -> None:
        """Samples since the stream began: start of the audio, and of the speech in it."""
        self.utterance, self.start, self.speech = utterance, start, speech
        self.setup = utterance.setup
        self.mel = LiveMel(self.setup.dims.n_mels, self.setup.dims.window_frames)
        self.spoken = speech  # where the last speech so far ends
        self.closed = False  # no more audio comes
        self.ends_utterance = False
        self.done = False  # all is committed
        self.answered = False  # an update is decoded, and not committed yet
        self.deadline: float | None = None  # of an update, by `time.monotonic`; None: none is due
        self.heard = 0  # mel frames of the buffer that the last update knows
        self.updates = 0  # that were begun
        self._since: list[int] = []  # tokens committed since the cut
        self._logprobs: list[float] = []  # theirs
        self._tentative: list[Piece] = []
        self._rest: list[float] = []  # log-probabilities of the tentative tokens
        self._last: Decoded | None = None  # the last update whose text is as good as final
        self._alignment: Alignment | None = None  # of the last update's text

    # -- audio -----------------------------------------------------------------------------------

    @property
    def samples_heard(self) -> int:
        """Where the audio ends that an update knows, since the stream began."""
        return self.start + self.heard * HOP_SAMPLES

    @property
    def unheard(self) -> float:
        """Seconds that no update knows."""
        return (self.mel.frames - self.heard) / FRAMES_PER_SECOND

    @property
    def end(self) -> int:
        """Where its audio ends, in samples since the stream began."""
        return self.start + self.mel.samples

    @property
    def hush(self) -> int:
        """Samples of silence so far."""
        return self.end - self.spoken

    def ready(self) -> bool:
        """Whether an update is due: at once where speech may be over, so that its end needs none;
        never for silence alone.
        """
        if self.closed:
            return not self.done and self.mel.frames > 0
        if self.hush >= HUSH:
            return self.samples_heard < self.spoken + CERTAIN
        if self.spoken <= self.samples_heard:
            return False
        if not self.updates:
            return self.end - self.speech >= self.setup.live.first * SAMPLE_RATE
        return self.unheard >= self.setup.live.update

    @property
    def patience(self) -> float:
        """Seconds that the update which is due may wait while others cannot: until the end of the
        silence if speech may be over, else until a whole period has been heard.
        """
        live = self.setup.live
        if self.closed:
            return 0.0
        if self.hush >= HUSH:
            return max(live.silence_duration_ms / 1000 - self.hush / SAMPLE_RATE, 0.0)
        return 0.0 if self.updates else max(live.update - live.first, 0.0)

    def settle(self) -> Text | None:
        """Commit all, without another update, if the last one knew all of the speech."""
        if not self.closed or self.done:
            return None
        if self.mel.frames == 0:
            self.done = True
            return None
        known = self.samples_heard >= min(self.spoken + CERTAIN, self.end - HOP_SAMPLES)
        if self._last is None or not known:
            return None
        return self._commit(self._last, len(self._tentative), final=True)

    def forget(self) -> None:
        """Commit nothing more; what is committed stays."""
        if self._since:
            self._close_segment(len(self._since), self.samples_heard, self._result)

    # -- updates ---------------------------------------------------------------------------------

    def request(self) -> Window:
        """Begin an update with the newest audio."""
        self.updates += 1
        useful = self.mel.frames
        if self.closed:  # the silence that ended it is not waited for
            useful = min(useful, -(-(self.spoken + TAIL - self.start) // HOP_SAMPLES))
        before, self.heard = self.heard, min(useful, self.setup.most)
        # a text that is longer than its audio tells is a loop, which would take seconds to end
        tentative = sum(len(piece.tokens) for piece in self._tentative)
        usual = self.setup.usual(self.heard) - len(self._since)
        more = tentative + self.setup.usual(max(self.heard - before, 0))
        self._most = max(min(usual, more), SPARE)
        self._final = self.closed and self.heard == useful
        self._full = self.heard >= self.setup.full
        self._full |= len(self._since) > self.setup.dims.n_text_ctx // 4
        self._full &= not self._final
        options, self._alignment = self.setup.options, None
        seed = (options.seed, self.utterance.number, self.start, self.heard)
        self._attempts = ladder(options, seed)
        self._attempt = next(self._attempts)
        mel = self.mel.window(self.heard)
        if self.setup.language is None and not self.utterance.text:  # until some is committed
            return Window(mel, (self.setup.vocabulary.sot,), 0, rules=None)
        return replace(self._window(), mel=mel)

    def _window(self) -> Window:
        prompt, index = self.utterance.prompt(self._since)
        rules = self.setup.later if self._since else self.setup.first
        rules = replace(rules, sample_len=min(rules.sample_len, self._most))
        draft = tuple(t for piece in self._tentative for t in piece.tokens)
        return Window(None, prompt, index, rules, self._attempt, logprobs=True, draft=draft)

    def accept(self, answer: Answer) -> Request | None:
        """The next request in the slot; None: the update is decoded, and to be committed. Raises
        SlimWhisperError if the model's output was not finite.
        """
        match answer:
            case Languages():
                self.utterance.set_language(answer.likeliest())
                return self._window()
            case Alignment():
                self._alignment = answer
                self.answered = True
                return None
            case Decoded():
                return self._accept_text(answer)

    def _accept_text(self, answer: Decoded) -> Request | None:
        options, tokenizer = self.setup.options, self.utterance.tokenizer
        # the mean over the window's text, as if it had been decoded at once
        logprobs = [*self._logprobs, *answer.logprobs]
        mean = sum(logprobs) / (len(logprobs) or 1)
        text = tokenizer.decode(list(answer.tokens))
        tried = Tried.of(replace(answer, avg_logprob=mean), text)
        failed = tried.failed(options)
        short = len(answer.logprobs) <= len(answer.tokens)  # not ended, but cut off
        short &= self._most < self.setup.later.sample_len
        if self._final or self._full:
            following = climb(self._attempts, tried) if failed else tried
            if isinstance(following, Attempt):
                self._attempt = following
                return Retry(following)
            if short and not failed:
                self._most = self.setup.later.sample_len
                return replace(self._window(), draft=answer.tokens)
        tokens = () if tried.is_silence(options) else answer.tokens
        words = [
            (t, p)
            for t, p in zip(tokens, answer.logprobs, strict=False)
            if self.setup.vocabulary.is_text(t)
        ]
        self._result, self._doubtful = tried.result, failed or short
        self._fresh, self._rest = [t for t, _ in words], [p for _, p in words]
        wanted = self._full or self.setup.live.words
        wanted |= self.setup.live.policy in NEED_ATTENTION and not self._final
        self._alignment = None
        if wanted and (self._since or self._fresh):
            before = tokenizer.sot_sequence_including_notimestamps
            return Align(tuple(before), (*self._since, *self._fresh))
        self.answered = True
        return None

    # -- commitment ------------------------------------------------------------------------------

    def commit(self) -> Text:
        """The text of the update that is decoded. Passages commit in their order."""
        self.answered = False
        texts, tokens = self.utterance.tokenizer.split_to_word_tokens(self._fresh)
        words = [Piece(w, tuple(t)) for w, t in zip(texts, tokens, strict=True)]
        before, self._tentative = self._tentative, words
        self._last = None if self._doubtful else self._result
        if self._final:
            return self._commit(self._result, len(words), final=True)
        count = 0
        if not self._doubtful:
            live = self.setup.live
            attended: list[int] = []
            if self._alignment is not None and live.policy in NEED_ATTENTION:
                matrix = attention(self._alignment, self.heard)
                attended = most_attended(matrix[len(self._since) : -1])
            positions = self.heard // MEL_FRAMES_PER_POSITION
            count = COMMITS[live.policy](Update(words, before, attended, positions))
            broken = (i for i, piece in enumerate(words) if "\ufffd" in piece.text)
            count = min(count, next(broken, count))  # a character whose bytes are not all there
        return self._commit(self._result, count)

    def _commit(self, result: Decoded, count: int, final: bool = False) -> Text:
        """Commit the first `count` tentative words; at the end, or in a full buffer, cut it."""
        cut = None
        if self._full and not final:  # not where an end follows an update of a full buffer
            held = len(self._since) + sum(len(p.tokens) for p in self._tentative[:count])
            cut = choose_cut(self._alignment, held, self.mel, self.heard, self.utterance.tokenizer)
            count = max(count, self._words_within(cut.tokens))
        committed, self._tentative = self._tentative[:count], self._tentative[count:]
        fresh = [t for piece in committed for t in piece.tokens]
        rest = [t for piece in self._tentative for t in piece.tokens]
        words = self._words([self._since, fresh, rest])
        self._since += fresh
        self._logprobs += self._rest[: len(fresh)]
        self._rest = self._rest[len(fresh) :]
        told = self.utterance.commit("".join(piece.text for piece in committed))
        tentative = "".join(piece.text for piece in self._tentative).rstrip("\ufffd")
        if not self.utterance.text:
            tentative = tentative.lstrip()
        heard = self.samples_heard / SAMPLE_RATE
        if final:
            self._close_segment(len(self._since), self.spoken, result)
            self.done = True
        elif cut is not None:
            self._close_segment(cut.tokens, self.start + cut.frames * HOP_SAMPLES, result)
            self.mel.cut(cut.frames)
            self.start += cut.frames * HOP_SAMPLES
            self.heard -= cut.frames
            self._last = self._alignment = None
        return Text(self.utterance.number, told, tentative, tuple(words[1]), round(heard, 2))

    def _words_within(self, tokens: int) -> int:
        """How many tentative words must be committed for so many tokens since the cut."""
        held, count = len(self._since), 0
        while held < tokens and count < len(self._tentative):
            held += len(self._tentative[count].tokens)
            count += 1
        return count

    def _words(self, texts: Sequence[Sequence[int]]) -> list[list[Word]]:
        """The words of successive texts since the cut, if they are asked for."""
        if not self.setup.live.words or self._alignment is None:
            return [[] for _ in texts]
        offset = self.start / SAMPLE_RATE
        found = words_of(texts, self._alignment, self.utterance.tokenizer, self.heard, offset)
        begin = round(self.speech / SAMPLE_RATE, 2)  # the first word has the audio before it too
        return [
            [replace(w, start=min(max(w.start, begin), w.end)) for w in words] for words in found
        ]

    def _close_segment(self, count: int, end: int, result: Decoded) -> None:
        """The first `count` tokens since the cut are a segment. end: of it, in samples."""
        times = self.start / SAMPLE_RATE, end / SAMPLE_RATE
        tokens = self._since[:count]
        words = self._words([tokens, self._since[count:]])[0] if self.setup.live.words else None
        self.utterance.close_segment(tokens, times, words, result)
        del self._since[:count], self._logprobs[:count]
