"""One update of a speech buffer: from the newest audio to its text and its words' times.

`UpdateDecoding._run` reads from top to bottom: like `longform.session.Session`, it yields requests
for the engine and receives the answers.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import islice

from torch import Tensor

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
from slimwhisper.live.policy import TextPiece
from slimwhisper.live.setup import EXTRA_TOKENS
from slimwhisper.live.utterance import BufferText, Utterance
from slimwhisper.longform.options import RecordingOptions
from slimwhisper.longform.requests import Candidate, attempts_of, choose
from slimwhisper.longform.words import attach_words
from slimwhisper.tokens.vocabulary import Tokenizer
from slimwhisper.types import FRAMES_PER_SECOND, Segment, Word


class UpdateDecoding:
    """The decoding of an update; `request` is the next one, None once it is done."""

    def __init__(
        self,
        utterance: Utterance,
        text: BufferText,
        mel: Tensor,
        frames: int,
        new_frames: int,
        final: bool,
        full: bool,
        may_be_empty: bool,
        seed: tuple[int, ...],
    ) -> None:
        """text: of the buffer so far. mel: [n_mels, width]; its first `frames` frames are audio, of
        which `new_frames` are new. final: no more audio follows. full: the buffer will be cut.
        may_be_empty: no words may follow the committed ones.
        """
        self.utterance, self.text, self._may_be_empty = utterance, text, may_be_empty
        self.frames, self.final, self.full = frames, final, full
        # a text that is too long for its audio is a loop, which would take seconds to end
        setup = utterance.setup
        expected = len(text.tentative) + setup.usual_tokens(new_frames)
        usual = min(setup.usual_tokens(frames) - len(text.committed), expected)
        self._max_tokens = max(usual, EXTRA_TOKENS)
        # the results, once `request` is None
        self.result = Decoded()
        self.doubtful = False  # it failed or was cut off, so it cannot become final
        self.words: list[TextPiece] = []
        self.alignment: Alignment | None = None
        self._steps = self._run(mel, seed)
        self.request: Request | None = next(self._steps)

    def accept(self, answer: Answer) -> Request | None:
        """The next request for the slot; None: the update is done. Raises SlimWhisperError if the
        model's output was not finite.
        """
        try:
            self.request = self._steps.send(answer)
        except StopIteration:
            self.request = None
        return self.request

    def _run(self, mel: Tensor, seed: tuple[int, ...]) -> Generator[Request, Answer, None]:
        setup, utterance = self.utterance.setup, self.utterance
        audio: Tensor | None = mel
        if setup.language is None and not utterance.text:  # until some is committed
            languages = yield Window(audio, (setup.vocabulary.sot,), 0, rules=None)
            assert isinstance(languages, Languages)
            utterance.set_language(languages.most_likely())
            audio = None
        attempts, failures = iter(attempts_of(setup.options, seed)), list[Candidate]()
        attempt = next(attempts)
        request: Request = self._window(audio, attempt, self.text.tentative)
        while True:
            answer = yield request
            assert isinstance(answer, Decoded)
            text = utterance.tokenizer.decode(list(answer.tokens))
            if not self._may_be_empty and utterance.copies_prompt(self.text.committed, text):
                self._may_be_empty = bool(self.text.committed)
                request = self._window(None, attempt, ())
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
            attempt, request = following, Retry(following)
        self._store_result(candidate, failed or cut_off)
        if setup.live.words or not self.final:
            tokens = (*self.text.committed, *(t for word in self.words for t in word.tokens))
            if tokens:
                context = utterance.tokenizer.sot_sequence_including_notimestamps
                alignment = yield Align(tuple(context), tokens)
                assert isinstance(alignment, Alignment)
                self.alignment = alignment

    def _window(self, mel: Tensor | None, attempt: Attempt, draft: tuple[int, ...]) -> Window:
        setup = self.utterance.setup
        prompt, index = self.utterance.prompt(self.text.committed)
        rules = setup.later_rules if self._may_be_empty else setup.first_rules
        rules = replace(rules, sample_len=min(rules.sample_len, self._max_tokens))
        return Window(mel, prompt, index, rules, attempt, logprobs=True, draft=draft)

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


def words_of(
    texts: Sequence[Sequence[int]],
    alignment: Alignment,
    tokenizer: Tokenizer,
    frames: int,
    offset: float,
) -> list[list[Word]]:
    """The words of successive texts, whose token ids joined are the alignment's.

    Punctuation belongs to the word before it, even across texts. frames: mel frames of audio in the
    window. offset: seconds before the window.
    """
    blank = Segment(0, 0, 0.0, frames / FRAMES_PER_SECOND, "", [], 0.0, 0.0, 0.0, 0.0)
    segments = [replace(blank, tokens=list(tokens)) for tokens in texts]
    options = RecordingOptions()
    timed = attach_words(segments, alignment, tokenizer, options, frames, last_speech=0.0)
    return [[_shifted(word, offset) for word in segment.words or ()] for segment in timed]


def _shifted(word: Word, seconds: float) -> Word:
    start, end = (round(t + seconds, 2) for t in (word.start, word.end))
    return replace(word, start=start, end=end)
