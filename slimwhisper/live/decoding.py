"""One update of a passage: from the newest audio to its text, and where its words are.

`Decoding._run` reads from top to bottom: it yields what the engine should do next, and is sent its
answer, as `longform.session.Session` is.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

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
from slimwhisper.live.policy import NEED_ATTENTION, Piece
from slimwhisper.live.setup import SPARE
from slimwhisper.live.utterance import PassageText, Utterance
from slimwhisper.longform.attempts import Tried, climb, ladder
from slimwhisper.longform.words import attach_words
from slimwhisper.types import FRAMES_PER_SECOND, Options, Segment, Word

if TYPE_CHECKING:  # it imports numba, which is slow to start
    from whisper.tokenizer import Tokenizer


class Decoding:
    """The text of an update, step by step; `request` is the next one, until there is none."""

    def __init__(
        self,
        utterance: Utterance,
        text: PassageText,
        mel: Tensor,
        frames: int,
        fresh: int,
        final: bool,
        full: bool,
        seed: tuple[int, ...],
    ) -> None:
        """text: what is known so far. mel: [n_mels, width], of which the first `frames` frames are
        audio, and `fresh` of these new. final: no more audio comes. full: the buffer will be cut.
        """
        self.utterance, self.text = utterance, text
        self.frames, self.final, self.full = frames, final, full
        # a text that is longer than its audio tells is a loop, which would take seconds to end
        setup = utterance.setup
        usual = setup.usual(frames) - len(text.committed)
        self._most = max(min(usual, len(text.tentative) + setup.usual(fresh)), SPARE)
        # once there is no request any more
        self.result = Decoded()
        self.doubtful = False  # it failed, or was cut off: not as good as final
        self.words: list[Piece] = []
        self.alignment: Alignment | None = None
        self._steps = self._run(mel, seed)
        self.request: Request | None = next(self._steps)

    def accept(self, answer: Answer) -> Request | None:
        """The next request in the slot; None: the text is there. Raises SlimWhisperError if the
        model's output was not finite.
        """
        try:
            self.request = self._steps.send(answer)
        except StopIteration:
            self.request = None
        return self.request

    def _run(self, mel: Tensor, seed: tuple[int, ...]) -> Generator[Request, Answer, None]:
        setup, utterance = self.utterance.setup, self.utterance
        here: Tensor | None = mel
        if setup.language is None and not utterance.text:  # until some is committed
            languages = yield Window(here, (setup.vocabulary.sot,), 0, rules=None)
            assert isinstance(languages, Languages)
            utterance.set_language(languages.likeliest())
            here = None
        attempts = ladder(setup.options, seed)
        attempt = next(attempts)
        request: Request = self._window(here, attempt, self.text.tentative)
        while True:
            answer = yield request
            assert isinstance(answer, Decoded)
            tried, short = self._tried(answer), self._cut_off(answer)
            failed = tried.failed(setup.options)
            if not (self.final or self.full):  # the next update will tell
                break
            following = climb(attempts, tried) if failed else tried
            if isinstance(following, Attempt):
                attempt, request = following, Retry(following)
            elif short and not failed:
                self._most = setup.later.sample_len
                request = self._window(None, attempt, answer.tokens)
            else:
                tried = following
                break
        self._keep(tried, failed or short)
        policy = setup.live.policy in NEED_ATTENTION and not self.final
        if self.full or setup.live.words or policy:
            text = (*self.text.committed, *(t for word in self.words for t in word.tokens))
            if text:
                before = utterance.tokenizer.sot_sequence_including_notimestamps
                alignment = yield Align(tuple(before), text)
                assert isinstance(alignment, Alignment)
                self.alignment = alignment

    def _window(self, mel: Tensor | None, attempt: Attempt, draft: tuple[int, ...]) -> Window:
        setup = self.utterance.setup
        prompt, index = self.utterance.prompt(self.text.committed)
        rules = setup.later if self.text.committed else setup.first
        rules = replace(rules, sample_len=min(rules.sample_len, self._most))
        return Window(mel, prompt, index, rules, attempt, logprobs=True, draft=draft)

    def _tried(self, answer: Decoded) -> Tried:
        """An answer, judged as if the window's text had been decoded at once."""
        logprobs = [*self.text.logprobs, *answer.logprobs]
        mean = sum(logprobs) / (len(logprobs) or 1)
        text = self.utterance.tokenizer.decode(list(answer.tokens))
        return Tried.of(replace(answer, avg_logprob=mean), text)

    def _cut_off(self, answer: Decoded) -> bool:
        """Whether a text has not ended where more could be sampled."""
        unended = len(answer.logprobs) <= len(answer.tokens)
        return unended and self._most < self.utterance.setup.later.sample_len

    def _keep(self, tried: Tried, doubtful: bool) -> None:
        setup, tokenizer = self.utterance.setup, self.utterance.tokenizer
        self.result, self.doubtful = tried.result, doubtful
        tokens = () if tried.is_silence(setup.options) else tried.result.tokens
        pairs = zip(tokens, tried.result.logprobs, strict=False)
        fresh = [(t, p) for t, p in pairs if setup.vocabulary.is_text(t)]
        texts, parts = tokenizer.split_to_word_tokens([t for t, _ in fresh])
        logprobs = iter([p for _, p in fresh])
        self.words = [
            Piece(text, tuple(part), tuple(islice(logprobs, len(part))))
            for text, part in zip(texts, parts, strict=True)
        ]


def words_of(
    texts: Sequence[Sequence[int]],
    alignment: Alignment,
    tokenizer: "Tokenizer",
    frames: int,
    offset: float,
) -> list[list[Word]]:
    """The words of successive texts, token ids that are together the alignment's.

    A mark that follows a word belongs to it, in whichever text it is. frames: mel frames of the
    recording in the window. offset: seconds before the window.
    """
    end = frames / FRAMES_PER_SECOND
    blank = Segment(0, 0, 0.0, end, "", [], 0.0, 0.0, 0.0, 0.0)
    segments = [replace(blank, tokens=list(tokens)) for tokens in texts]
    timed = attach_words(segments, alignment, tokenizer, Options(), frames, last_speech=0.0)
    return [[_moved(word, offset) for word in segment.words or ()] for segment in timed]


def _moved(word: Word, seconds: float) -> Word:
    start, end = (round(t + seconds, 2) for t in (word.start, word.end))
    return replace(word, start=start, end=end)
