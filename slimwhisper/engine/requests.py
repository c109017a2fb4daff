"""The requests to an engine and its answers, all of them immutable."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimwhisper.cache.base import pages_of

if TYPE_CHECKING:  # the command line starts without torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """Which tokens may be sampled in a window. All windows of a file share one object.

    Attributes:
        suppress: The tokens that are never sampled, [n] int64.
        suppress_first: The tokens that are never sampled first, [n] int64.
        timestamps: Whether to sample timestamps, in pairs and in order.
        max_initial_timestamp: The largest first timestamp, in steps of 20 ms. None means no limit.
        sample_len: The most tokens that are sampled.
        repetition_penalty: The limit on repeated tokens, as in `filters.Repetition`.
        no_repeat_ngram_size: The limit on repeated n-grams, as in `filters.Repetition`.
        bonuses: What the `BonusFilter` of a feature reads. None means that there are no bonuses.
    """

    suppress: Tensor
    suppress_first: Tensor
    timestamps: bool
    max_initial_timestamp: int | None
    sample_len: int
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bonuses: Any = None


@dataclass(frozen=True, slots=True)
class Search:
    """The decoding strategy, which is the same for all windows of an engine.

    Attributes:
        beams: The number of beams at temperature 0. None means greedy search.
        patience: A search ends after `beams * patience` finished texts.
        samples: The number of samples at temperatures above 0.
        length_penalty: The alpha of the length penalty of Google NMT. None ranks texts by their
            mean log-probability.
    """

    beams: int | None = None
    patience: float = 1.0
    samples: int = 1
    length_penalty: float | None = None

    def least_pages(self, context: int) -> int:
        """Return how many pages the texts of one window may need.

        Args:
            context: The most tokens of a text, n_text_ctx.

        Returns:
            The number of pages.
        """
        return max(self.beams or 1, self.samples) * pages_of(context)

    def most_pages(self, context: int, slots: int) -> int:
        """Return how many pages all texts may take at the same time, at any temperature.

        Args:
            context: The most tokens of a text, n_text_ctx.
            slots: The number of windows.

        Returns:
            The number of pages.
        """
        rows = slots * (self.beams or 1)
        if self.beams is not None or self.samples > 1:  # samples have rows of their own
            rows += -(-slots // self.samples) * self.samples
        return max(rows * pages_of(context), self.least_pages(context))

    def usual_pages(self, context: int, slots: int) -> int:
        """Return the pages of texts as long as the context in every slot, at temperature 0.

        Args:
            context: The most tokens of a text, n_text_ctx.
            slots: The number of windows.

        Returns:
            The number of pages.
        """
        return max(slots * (self.beams or 1) * pages_of(context), self.least_pages(context))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a window's text.

    As a request: decode the last window again. Its encoder output and its prompt are still there.

    Attributes:
        temperature: The temperature to sample at.
        seed: The seed for sampling, which is the entropy of `numpy.random.SeedSequence`.
    """

    temperature: float = 0.0
    seed: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A request: decode 30 s of audio after a prompt.

    Attributes:
        mel: The spectrogram [n_mels, 3000] float32, or fewer frames for a window as long as its
            audio; or the encoder's output [p, d]. None means the audio that is in the slot already.
        prompt: The tokens before the text: <|startofprev|> and the previous text, if there is any;
            <|startoftranscript|> and what follows it; and the prefix.
        sot_index: The index of <|startoftranscript|> in `prompt`.
        rules: The sampling rules. None asks for the probabilities of the languages, and no text.
        attempt: The temperature and the seed.
        logprobs: Whether the answer has the log-probability of each token.
        draft: Tokens that the text may begin with. They are verified in one pass, and accepted as
            far as greedy decoding would write them: the same text in fewer steps. They are ignored
            with beams and when sampling.
    """

    mel: Tensor | None
    prompt: tuple[int, ...]
    sot_index: int
    rules: Rules | None
    attempt: Attempt = Attempt()
    logprobs: bool = False
    draft: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Align:
    """A request: how the text of the last window attends to its audio.

    Attributes:
        before: The tokens from <|startoftranscript|> to <|notimestamps|>.
        text: The tokens of the text alone.
    """

    before: tuple[int, ...]
    text: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decoded:
    """The answer to a `Window` or an `Attempt`.

    Attributes:
        tokens: The tokens that were sampled, without the prompt and without <|endoftext|>.
        avg_logprob: The mean log-probability of the tokens and <|endoftext|>.
        no_speech_prob: The probability that the window has no speech.
        temperature: The temperature that was sampled at.
        drafted: How many of the tokens were the window's draft.
        logprobs: If requested, the log-probability of each token under the rules, at temperature 1,
            and that of <|endoftext|> where the text ended with it. Their sum is `avg_logprob *
            (len(tokens) + 1)`.
    """

    tokens: tuple[int, ...] = ()
    avg_logprob: float = float("nan")
    no_speech_prob: float = float("nan")
    temperature: float = 0.0
    drafted: int = 0
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Languages:
    """The answer to a `Window` without rules.

    Attributes:
        probs: The probability of each language by its code.
    """

    probs: dict[str, float]

    def most_likely(self, among: Sequence[str] = ()) -> str:
        """Return the most probable language.

        Args:
            among: The codes of the languages to choose from. () means all.

        Returns:
            The code of the language.
        """
        return max(among or self.probs, key=self.probs.__getitem__)


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """The answer to an `Align`.

    Attributes:
        text: The tokens of the text, as in the request.
        before: The number of tokens before the text.
        scores: The scores of cross-attention before the softmax, [alignment heads, tokens, p], in
            float32 or a wider dtype. The tokens are those before the text, the text, and
            <|endoftext|>.
        probs: The probability of each token of the text.
    """

    text: tuple[int, ...]
    before: int
    scores: Tensor
    probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AcceptedPrefix:
    """The beginning of a window's draft that decoding would have written itself.

    Attributes:
        tokens: The tokens.
        logprobs: The log-probability of each of them.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


Request = Window | Attempt | Align
Answer = Decoded | Languages | Alignment
Steps = Generator[Request, Answer, None]


class Exchange:
    """Requests of which each may depend on the answer to the one before it.

    Attributes:
        request: The request that is to be answered next. None means that all are answered.
    """

    def __init__(self, steps: Steps) -> None:
        """Go on to the first request.

        Args:
            steps: A generator that yields requests, and receives their answers.
        """
        self._steps = steps
        self.request: Request | None = next(steps, None)

    @property
    def done(self) -> bool:
        """Whether all requests are answered."""
        return self.request is None

    def accept(self, answer: Answer) -> Request | None:
        """Process the answer to the last request.

        Args:
            answer: The answer.

        Returns:
            The next request. None means that there is none.

        Raises:
            SlimWhisperError: When the model's output was not finite.
        """
        try:
            self.request = self._steps.send(answer)
        except StopIteration:
            self.request = None
        return self.request
