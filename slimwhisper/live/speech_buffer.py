"""A stretch of speech without a pause: its audio, its updates, and the text they commit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.audio.mel import without_silence
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
from slimwhisper.live.mel import LiveMel
from slimwhisper.live.policy import BufferCut, TextPiece, choose_cut, committable, letters_of
from slimwhisper.live.setup import EXTRA_TOKENS
from slimwhisper.live.types import TextUpdate
from slimwhisper.live.utterance import BufferText, Heard, Utterance
from slimwhisper.longform.requests import Candidate, attempts_of, choose
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    MEL_FRAMES_PER_POSITION,
    POSITIONS_PER_SECOND,
    SAMPLE_RATE,
    Segment,
    Word,
)
from slimwhisper.word_times.options import WordOptions
from slimwhisper.word_times.words import attach_words, attention

SHORT_SILENCE = SAMPLE_RATE // 4  # samples of silence after which speech may be over
END_MARGIN = SAMPLE_RATE // 10  # samples after the speech that its last update must include
TAIL = SAMPLE_RATE // 2  # samples after the speech that its last update decodes
UNWRITTEN = SAMPLE_RATE  # samples of speech after committed text, of which there must be more text


@dataclass(slots=True)
class BufferAudio:
    """A buffer's audio since its last cut. Positions are samples since the stream began."""

    mel: LiveMel
    start: int
    speech_start: int
    speech_end: int  # of the latest speech so far
    raw: NDArray[np.float32] | None = None  # the samples, for who speaks; None: not kept
    closed: bool = False  # no more audio follows
    decoded_frames: int = 0  # mel frames in the last update

    @property
    def decoded_end(self) -> int:
        """The position up to which audio was decoded."""
        return self.start + self.decoded_frames * HOP_SAMPLES

    @property
    def undecoded_seconds(self) -> float:
        """Seconds of audio that no update has decoded."""
        return (self.mel.frames - self.decoded_frames) * HOP_SAMPLES / SAMPLE_RATE

    @property
    def end(self) -> int:
        """The position after the last sample."""
        return self.start + self.mel.samples

    @property
    def trailing_silence(self) -> int:
        """Samples of silence since the last speech."""
        return self.end - self.speech_end

    @property
    def frames_to_decode(self) -> int:
        """Mel frames for the next update, without most of the silence that closed the buffer."""
        if not self.closed:
            return self.mel.frames
        return min(self.mel.frames, -(-(self.speech_end + TAIL - self.start) // HOP_SAMPLES))

    @property
    def tells_language(self) -> bool:
        """Whether there is as much speech as its language needs, or no more may follow."""
        long = self.speech_end - self.speech_start >= SAMPLE_RATE
        return long or self.closed or self.trailing_silence >= SHORT_SILENCE

    @property
    def all_speech_decoded(self) -> bool:
        """Whether an update has decoded all of the speech and some silence after it."""
        return self.decoded_end >= min(self.speech_end + END_MARGIN, self.end - HOP_SAMPLES)

    def append(self, samples: NDArray[np.float32]) -> None:
        """Append samples, float32 [n] at 16 kHz."""
        self.mel.append(samples)
        if self.raw is not None:
            self.raw = np.concatenate([self.raw, samples])

    def speech(self, end: int) -> NDArray[np.float32] | None:
        """The samples up to a position, without the padding before speech: float32 [n]. None: they
        are not kept.
        """
        if self.raw is None:
            return None
        first = max(min(self.speech_start, end) - self.start, 0)
        return self.raw[first : end - self.start]

    def logs(self, end: int) -> Tensor:
        """[n_mels, frames] float32: `LiveMel.logs` up to a position, and of silence after it."""
        end += TAIL if self.closed else 0
        return self.mel.logs((end - self.start) // HOP_SAMPLES)

    def cut(self, frames: int) -> None:
        """Remove the first mel frames."""
        self.mel.cut(frames)
        if self.raw is not None:
            self.raw = self.raw[frames * HOP_SAMPLES :]
        self.start += frames * HOP_SAMPLES
        self.decoded_frames -= frames


class UpdateDecoding(Exchange):
    """One update, from the newest audio to its text and its words' times; `request` is the next
    one, None once it is done.

    `_run` reads from top to bottom: like `longform.recording.Session`, it yields requests for the
    engine and receives the answers.
    """

    def __init__(
        self, utterance: Utterance, text: BufferText, audio: BufferAudio, text_end: int
    ) -> None:
        """Start with the newest audio of a buffer. text: of the buffer so far. text_end: where its
        committed text ends, in samples since the stream began.
        """
        setup = utterance.setup
        self.utterance, self.text, self._audio = utterance, text, audio
        available, before = audio.frames_to_decode, audio.decoded_frames
        self.frames = audio.decoded_frames = min(available, setup.max_frames)
        self.final = audio.closed and self.frames == available  # no more audio follows
        self._most = setup.dims.n_text_ctx * (2 if setup.live.turns else 3) // 8  # committed tokens
        full = self.frames >= setup.full_frames or len(text.committed) > self._most
        self.full = full and not self.final  # the buffer will be cut
        unwritten = min(audio.speech_end, audio.decoded_end) - text_end
        # no words may follow the committed ones
        self._may_be_empty = bool(text.committed) and unwritten < UNWRITTEN
        # a text that is too long for its audio is a loop, which would take seconds to end
        new_frames = max(self.frames - before, 0)
        expected = len(text.tentative) + setup.usual_tokens(new_frames)
        usual = min(setup.usual_tokens(self.frames) - len(text.committed), expected)
        self._max_tokens = max(usual, EXTRA_TOKENS)
        self._context = utterance.history.nothing
        # the results, once `request` is None
        self.result = Decoded()
        self.doubtful = False  # it failed or was cut off, so it cannot become final
        self.words: list[TextPiece] = []
        self.alignment: Alignment | None = None
        super().__init__(self._run())

    def _run(self) -> Steps:
        setup, utterance = self.utterance.setup, self.utterance
        seed = (setup.options.seed, utterance.number, self._audio.start, self.frames)
        if setup.language is None and not (utterance.text or utterance.continues):
            languages = yield Window(self._mel(), (setup.vocabulary.sot,), 0, rules=None)
            assert isinstance(languages, Languages)
            utterance.set_language(languages.most_likely())
            tells = self._audio.tells_language
            self._decode_after(self._heard_before() if tells else utterance.history.nothing)
            utterance.continues = bool(self._context.tokens)
            audio = self._mel() if utterance.continues else None
        else:
            self._decode_after(self._heard_before())
            audio = self._mel()
        attempts, failures = iter(attempts_of(setup.options, seed)), list[Candidate]()
        attempt = next(attempts)
        request: Request = self._window(audio, attempt, self.text.tentative)
        while True:
            answer = yield request
            assert isinstance(answer, Decoded)
            text = utterance.tokenizer.decode(list(answer.tokens))
            since = self.text.committed
            if not self._may_be_empty and utterance.copies(since, text):
                self._may_be_empty, audio = bool(since), None
                if not since:  # without what it copies
                    utterance.history.clear()
                    self._decode_after(utterance.history.nothing)
                    audio = self._mel()
                request = self._window(audio, attempt, ())
                continue
            candidate, cut_off = self._as_candidate(answer, text), self._cut_off(answer)
            failed = candidate.failed(setup.options)
            if not (self.final or self.full):  # the next update decodes this audio again
                break
            if not failed:
                if not cut_off:
                    break
                self._max_tokens = setup.later_rules.sample_len
                request = self._window(None, attempt, answer.tokens)
                continue
            failures.append(candidate)
            following = next(attempts, None)
            if following is None:
                candidate = choose(failures, setup.options)
                break
            attempt = request = following
        self._store_result(candidate, failed or cut_off)
        if setup.live.words or not self.final:
            tokens = (*self.text.committed, *(t for word in self.words for t in word.tokens))
            if tokens:
                before = tuple(utterance.tokenizer.sot_sequence_including_notimestamps)
                alignment = yield Align((*before, *self._context.tokens), tokens)
                assert isinstance(alignment, Alignment)
                self.alignment = self._without_context(alignment)

    def _heard_before(self) -> Heard:
        """What was said before, as far as it fits: alone, short speech is often misheard."""
        utterance, tokens = self.utterance, self._most - len(self.text.committed)
        frames = utterance.setup.heard_frames - self.frames
        return utterance.history.context(utterance.language, frames, tokens)

    def _decode_after(self, context: Heard) -> None:
        self._context, said = context, self.utterance.history.tokens
        # a copy: other buffers of the stream may commit text while this update is decoded
        self._said = said[: len(said) - len(context.tokens)]

    def _mel(self) -> Tensor:
        before, window = self._context.logs, self.utterance.setup.options.audio_window
        mel = self._audio.mel.window(self.frames, before)
        return without_silence(mel, before.shape[1] + self.frames, window)

    def _without_context(self, alignment: Alignment) -> Alignment:
        """The same of the buffer alone. The context's last token predicts the first one."""
        scores = alignment.scores[:, :, self._context.logs.shape[1] // MEL_FRAMES_PER_POSITION :]
        before = alignment.before - len(self._context.tokens)
        parts = [scores[:, : before - 1], scores[:, alignment.before - 1 :]]
        return replace(alignment, before=before, scores=torch.cat(parts, dim=1))

    def _window(self, mel: Tensor | None, attempt: Attempt, draft: tuple[int, ...]) -> Window:
        setup, heard = self.utterance.setup, (*self._context.tokens, *self.text.committed)
        rules = setup.later_rules if self._may_be_empty else setup.first_rules
        # `Align` reads the text after these, and <|endoftext|>; the oldest history is left out
        least = len(self.utterance.tokenizer.sot_sequence_including_notimestamps) + len(heard) + 1
        most = setup.dims.n_text_ctx
        rules = replace(rules, sample_len=min(rules.sample_len, self._max_tokens, most - least))
        usual = min(rules.sample_len, setup.usual_tokens(self.frames))
        room = min(most // 2, most - least - usual)
        prompt, index = self.utterance.prompt(self._said, room)
        return Window(mel, (*prompt, *heard), index, rules, attempt, logprobs=True, draft=draft)

    def _as_candidate(self, answer: Decoded, text: str) -> Candidate:
        """An answer with the mean log-probability of the whole text since the cut."""
        logprobs = [*self.text.logprobs, *answer.logprobs]
        mean = sum(logprobs) / (len(logprobs) or 1)
        return Candidate.of(replace(answer, avg_logprob=mean), text)

    def _cut_off(self, answer: Decoded) -> bool:
        """Whether a text stopped at `_max_tokens` and could have been longer."""
        unended = len(answer.logprobs) <= len(answer.tokens)
        return unended and self._max_tokens < self.utterance.setup.later_rules.sample_len

    def _store_result(self, candidate: Candidate, doubtful: bool) -> None:
        setup, tokenizer = self.utterance.setup, self.utterance.tokenizer
        self.result, self.doubtful = candidate.result, doubtful
        tokens = () if candidate.is_silence(setup.options) else candidate.result.tokens
        pairs = zip(tokens, candidate.result.logprobs, strict=False)
        text_tokens = [(t, p) for t, p in pairs if setup.vocabulary.is_text(t)]
        texts, parts = tokenizer.split_to_word_tokens([t for t, _ in text_tokens])
        logprobs = iter([p for _, p in text_tokens])
        self.words = [
            TextPiece(text, tuple(part), tuple(islice(logprobs, len(part))))
            for text, part in zip(texts, parts, strict=True)
        ]
        if not (self.utterance.text or any(letters_of(word.text) for word in self.words)):
            self.words = []  # marks alone are no text: "...", from a sound or a single syllable


class SpeechBuffer:
    """A buffer of audio and the text since its last cut. Each update is one `Window`."""

    def __init__(self, utterance: Utterance, start: int, speech_start: int) -> None:
        """Samples since the stream began: start of the audio, and of the speech in it."""
        dims = utterance.setup.dims
        mel = LiveMel(dims.n_mels, dims.window_frames)
        self.utterance, self.setup = utterance, utterance.setup
        raw = None if utterance.speakers is None else np.empty(0, np.float32)
        self.audio = BufferAudio(mel, start, speech_start, speech_end=speech_start, raw=raw)
        self.text = BufferText()
        self._text_end = start  # the last sample that committed text attends to
        self.ends_utterance = False
        self.done = False  # all text is committed
        self.answered = False  # an update is decoded but not committed yet
        self.deadline: float | None = None  # of an update, by `time.monotonic`; None: none is due
        self.updates = 0  # started so far
        self._update: UpdateDecoding | None = None  # the latest; None: the buffer was cut since
        self._last_result: Decoded | None = None  # of the latest update; None: it was doubtful

    # -- when to update --------------------------------------------------------------------------

    def update_due(self) -> bool:
        """Whether an update is due. One is made as soon as speech may be over, so that the end of
        the utterance needs none; silence alone needs none either.
        """
        audio, live = self.audio, self.setup.live
        if audio.closed:
            return not self.done and audio.mel.frames > 0
        if audio.trailing_silence >= SHORT_SILENCE:
            return audio.decoded_end < audio.speech_end + END_MARGIN
        if audio.speech_end <= audio.decoded_end:
            return False
        if not self.updates:
            return audio.end - audio.speech_start >= live.first * SAMPLE_RATE
        return audio.undecoded_seconds >= live.update

    @property
    def slack(self) -> float:
        """Seconds by which more urgent updates may delay this one: none if speech may be over, as
        somebody waits for an answer, else until the next update would be due.
        """
        audio, live = self.audio, self.setup.live
        if audio.closed or audio.trailing_silence >= SHORT_SILENCE:
            return 0.0
        until_second = 0.0 if self.updates else max(live.update - live.first, 0.0)
        return until_second + live.update

    # -- updates ---------------------------------------------------------------------------------

    def request(self) -> Window:
        """Start an update with the newest audio."""
        self.updates += 1
        self._update = UpdateDecoding(self.utterance, self.text, self.audio, self._text_end)
        assert isinstance(self._update.request, Window)
        return self._update.request

    def accept(self, answer: Answer) -> Request | None:
        """The next request for the slot; None: the update is decoded, ready to be committed. Raises
        SlimWhisperError if the model's output was not finite.
        """
        assert self._update is not None
        request = self._update.accept(answer)
        self.answered = request is None
        return request

    # -- commitment ------------------------------------------------------------------------------

    def commit(self) -> TextUpdate:
        """Commit text of the decoded update. Buffers commit in their order."""
        update = self._update
        assert update is not None
        self.answered = False
        previous, self.text.words = self.text.words, update.words
        self._last_result = None if update.doubtful else update.result
        if update.final:
            return self._commit(update.result, len(update.words), final=True)
        count = 0
        if update.alignment is not None and not update.doubtful:
            weights = attention(update.alignment, update.frames)
            attended = weights[:-1].argmax(dim=-1).tolist()
            new = attended[len(self.text.committed) :]
            count = committable(update.words, previous, new, positions=weights.shape[-1])
            incomplete = (i for i, piece in enumerate(update.words) if "\ufffd" in piece.text)
            # not a character of which bytes are missing
            count = min(count, next(incomplete, count))
            latest = max(attended[: self.text.tokens_with(count)], default=0)
            self._text_end = self.audio.start + latest * SAMPLE_RATE // POSITIONS_PER_SECOND
        return self._commit(update.result, count)

    def finalize(self) -> TextUpdate | None:
        """Commit all text without another update, if the last one decoded all of the speech."""
        self.done |= self.audio.closed and self.audio.mel.frames == 0
        may_end = self.audio.closed and not self.done and self.audio.all_speech_decoded
        if self._last_result is None or not may_end:
            return None
        return self._commit(self._last_result, len(self.text.words), final=True)

    def discard(self) -> None:
        """Commit no more text; committed text becomes a segment."""
        if self.text.committed:
            self._close_segment(len(self.text.committed), self.audio.decoded_end)
            self.utterance.history.clear()  # there is speech in the audio that is not in the text

    def _commit(self, result: Decoded, count: int, final: bool = False) -> TextUpdate:
        """Commit the first `count` tentative words. A full buffer is cut, and may commit more."""
        update, cut = self._update, None
        if update is not None and update.full and not final:
            tokenizer, tokens = self.utterance.tokenizer, self.text.tokens_with(count)
            cut = choose_cut(update.alignment, tokens, self.audio.mel, update.frames, tokenizer)
            if tokens - cut.tokens > self.setup.dims.n_text_ctx // 2:  # no room for what follows
                heard = (self._text_end - self.audio.start) // HOP_SAMPLES
                frames = min(max(cut.frames, heard), self.audio.mel.complete)
                cut = BufferCut(tokens, frames)
            count = max(count, self.text.words_within(cut.tokens))
        event = self._commit_words(result, count)
        if final:
            self._close_segment(len(self.text.committed), self.audio.speech_end)
            self.done = True
        elif cut is not None:
            self._close_segment(cut.tokens, self.audio.start + cut.frames * HOP_SAMPLES)
            self.audio.cut(cut.frames)
            self._update = self._last_result = None
        return event

    def _commit_words(self, result: Decoded, count: int) -> TextUpdate:
        text = self.text
        earlier = list(text.committed)
        committed, new_tokens = text.commit(count, result)
        words = self._words([earlier, new_tokens, text.tentative])[1]
        emitted = self.utterance.commit(committed)
        tentative = "".join(piece.text for piece in text.words).rstrip("\ufffd")
        if not self.utterance.text:
            tentative = tentative.lstrip()
        seconds = round(self.audio.decoded_end / SAMPLE_RATE, 2)
        return TextUpdate(self.utterance.number, emitted, tentative, tuple(words), seconds)

    def _words(self, texts: Sequence[Sequence[int]]) -> list[list[Word]]:
        """The timed words of successive texts since the cut, whose tokens joined are the update's;
        none if `live.words` is off. Punctuation belongs to the word before it, even across texts.
        """
        update, audio = self._update, self.audio
        if not self.setup.live.words or update is None or update.alignment is None:
            return [[] for _ in texts]
        tokenizer, frames = self.utterance.tokenizer, audio.decoded_frames
        blank = Segment(0, 0, 0.0, frames / FRAMES_PER_SECOND, "", [], 0.0, 0.0, 0.0, 0.0)
        segments = [replace(blank, tokens=list(tokens)) for tokens in texts]
        timed = attach_words(segments, update.alignment, tokenizer, WordOptions(), frames, 0.0)
        earliest = round(audio.speech_start / SAMPLE_RATE, 2)  # not in the padding

        def in_stream(word: Word) -> Word:
            start, end = (round(t + audio.start / SAMPLE_RATE, 2) for t in (word.start, word.end))
            return replace(word, start=min(max(start, earliest), end), end=end)

        return [[in_stream(word) for word in segment.words or ()] for segment in timed]

    def _close_segment(self, count: int, end: int) -> None:
        """Make a segment of the first `count` tokens since the cut. end: of it, in samples."""
        times, text = (self.audio.start / SAMPLE_RATE, end / SAMPLE_RATE), self.text
        tokens, rest = text.committed[:count], text.committed[count:]
        words = self._words([tokens, rest])[0] if self.setup.live.words else None
        speech, logs = self.audio.speech(end), self.audio.logs(end)
        self.utterance.close_segment(tokens, times, words, text.result, speech, logs)
        text.cut(count)
