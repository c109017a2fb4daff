"""The engine's requests and answers, all immutable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slimwhisper.cache.rows import pages_of

if TYPE_CHECKING:  # the command line starts without torch
    from torch import Tensor

    from slimwhisper.engine.hot_words import HotWords


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """Which tokens may be sampled in a window; one object for all windows of a file."""

    suppress: Tensor  # [n] int64: tokens never sampled
    suppress_first: Tensor  # [n] int64: tokens never sampled first
    timestamps: bool  # sample timestamps, in pairs and in order
    max_initial_timestamp: int | None  # tokens of 20 ms; None: no limit
    sample_len: int  # most tokens sampled
    # limits on what the text repeats, as in `filters.repetition`
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    hot_words: HotWords | None = None  # phrases whose tokens get a bonus


@dataclass(frozen=True, slots=True)
class Search:
    """The decoding strategy; the same for all windows of an engine."""

    beams: int | None = None  # where temperature is 0; None: greedy
    patience: float = 1.0  # beams * patience finished texts end a search
    samples: int = 1  # where temperature > 0
    length_penalty: float | None = None  # Google NMT's alpha; None: mean log-probability

    def least_pages(self, context: int) -> int:
        """The pages that one window's texts may need. context: n_text_ctx."""
        return max(self.beams or 1, self.samples) * pages_of(context)

    def most_pages(self, context: int, slots: int) -> int:
        """The pages that all texts may take at the same time, at any temperature."""
        samples = 0
        if self.beams is not None or self.samples > 1:  # they have rows of their own
            samples = -(-slots // self.samples) * self.samples
        rows = slots * (self.beams or 1) + samples
        return max(rows * pages_of(context), self.least_pages(context))

    def usual_pages(self, context: int, slots: int) -> int:
        """Pages for texts as long as the context in every slot, at temperature 0."""
        return max(slots * (self.beams or 1) * pages_of(context), self.least_pages(context))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a window's text."""

    temperature: float = 0.0
    seed: tuple[int, ...] = (0,)  # for sampling: entropy of `numpy.random.SeedSequence`


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A request to the engine: decode 30 s of audio after a prompt."""

    # [n_mels, 3000] float32, or fewer frames, of a window as long as its audio; or the encoder's
    # output [p, d]; None: the audio already in the slot
    mel: Tensor | None
    prompt: tuple[int, ...]  # [<|startofprev|> previous text] <|startoftranscript|> ... [prefix]
    sot_index: int  # the index of <|startoftranscript|> in `prompt`
    rules: Rules | None  # None: answer with the languages' probabilities, decode nothing
    attempt: Attempt = Attempt()
    logprobs: bool = False  # answer with each token's
    # tokens that the text may begin with: verified in one pass, and accepted as far as greedy
    # decoding would write them. The same text in fewer steps; ignored with beams and when sampling
    draft: tuple[int, ...] = ()

    def without_mel(self) -> Window:
        """The same, once its audio is in the slot."""
        return replace(self, mel=None)


@dataclass(frozen=True, slots=True)
class Retry:
    """A request: decode the last window again; its encoder output and prompt are still there."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Align:
    """A request: how the text of the last window attends to its audio."""

    before: tuple[int, ...]  # <|startoftranscript|> ... <|notimestamps|>
    text: tuple[int, ...]  # text tokens alone

    @property
    def length(self) -> int:
        """How many tokens are read: <|endoftext|> too."""
        return len(self.before) + len(self.text) + 1


@dataclass(frozen=True, slots=True)
class Decoded:
    """The engine's answer to `Window` or `Retry`."""

    tokens: tuple[int, ...] = ()  # sampled, without the prompt and without <|endoftext|>
    avg_logprob: float = float("nan")
    no_speech_prob: float = float("nan")
    temperature: float = 0.0
    drafted: int = 0  # how many of the tokens were the window's draft
    # if requested: each token's under the rules, at temperature 1, and <|endoftext|>'s where the
    # text ended with it; their sum is `avg_logprob * (len(tokens) + 1)`
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Languages:
    """The engine's answer to a `Window` without rules."""

    probs: dict[str, float]  # language code: probability

    def most_likely(self, among: Sequence[str] = ()) -> str:
        """The code of the most probable language among these; (): among all."""
        return max(among or self.probs, key=self.probs.__getitem__)


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """The engine's answer to `Align`."""

    text: tuple[int, ...]  # text tokens, as in the request
    before: int  # tokens before the text: <|startoftranscript|> ... <|notimestamps|>
    # [alignment heads, before + len(text) + 1, p], at least float32: cross-attention scores before
    # the softmax, of all tokens in order: `before`, the text, <|endoftext|>
    scores: Tensor
    probs: tuple[float, ...]  # [len(text)] probability of each text token


@dataclass(frozen=True, slots=True)
class AcceptedPrefix:
    """The beginning of a window's draft that decoding would have written itself."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()  # of each


Request = Window | Retry | Align
Answer = Decoded | Languages | Alignment
