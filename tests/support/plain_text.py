"""A text from its definition: all rules looked up in the whole text at every step, in float64."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from slimwhisper.engine.filters import NEVER, Timestamps, apply_timestamp_rules
from slimwhisper.engine.requests import Window
from slimwhisper.engine.sampling import waiting_times
from slimwhisper.hot_words.filter import word_ends
from slimwhisper.hot_words.options import spellings
from slimwhisper.model.model import Model
from tests.support.windows import CPU, DIMS, VOCABULARY

SIZE = VOCABULARY.size
Beam = tuple[list[int], float, float]  # a text, its log-probability, and its bonus


class Phrases:
    """What hot words add to a text, by comparing it with every phrase."""

    def __init__(self, lines: tuple[str, ...], bonus: float) -> None:
        self.spelled = spellings(VOCABULARY, lines, bonus)
        self.ends = word_ends(VOCABULARY)
        self.prefixes: dict[tuple[int, ...], float] = {}
        for spelling in self.spelled:
            for n in range(1, len(spelling.tokens) + 1):
                start = spelling.tokens[:n]
                self.prefixes[start] = max(self.prefixes.get(start, 0.0), spelling.bonus)
        self.complete = {s.tokens for s in self.spelled}
        self.anywhere = {s.tokens[0] for s in self.spelled if s.anywhere}
        self.tokens = sorted({t for s in self.spelled for t in s.tokens})

    def may_begin(self, text: Sequence[int], at: int) -> bool:
        return at == 0 or text[at] in self.anywhere or bool(self.ends[text[at - 1]])

    def begun(self, text: Sequence[int]) -> list[int]:
        """The longest end of the text that begins a phrase."""
        for i in range(len(text)):
            if self.may_begin(text, i) and tuple(text[i:]) in self.prefixes:
                return list(text[i:])
        return []

    def open_points(self, text: Sequence[int]) -> float:
        """The bonuses of the tokens of a begun phrase that no phrase within it covers."""
        begun = self.begun(text)
        points = [self.prefixes[tuple(begun[: n + 1])] for n in range(len(begun))]
        for first in range(len(begun)):
            for last in range(first + 1, len(begun) + 1):
                if tuple(begun[first:last]) in self.complete and self.may_begin(begun, first):
                    points[first:last] = [0.0] * (last - first)
        return sum(points)

    def gain(self, text: Sequence[int], token: int) -> float:
        """Of one more token: what it gains, less what breaks off."""
        begun = self.begun([*text, token])
        gained = self.prefixes[tuple(begun)] + self.open_points(begun[:-1]) if begun else 0.0
        return gained - self.open_points(text)

    def gains(self, text: Sequence[int]) -> Tensor:
        """[V]: what each token gains."""
        gains = torch.full((SIZE,), self.gain(text, VOCABULARY.sot), dtype=torch.float64)
        for token in self.tokens:
            gains[token] = self.gain(text, token)
        return gains


def limited(logits: Tensor, text: Sequence[int], penalty: float, ngram: int) -> Tensor:
    """One row's logits [V], without repetitions."""
    result = logits.clone()
    for token in set(text):
        score = logits[token]
        result[token] = score * penalty if score < 0 else score / penalty
    if ngram and len(text) >= ngram - 1:
        last = tuple(text[len(text) - ngram + 1 :])
        grams = {tuple(text[i : i + ngram]) for i in range(len(text) - ngram + 1)}
        for token in range(len(logits)):
            if (*last, token) in grams:
                result[token] = float("-inf")
    return result


class PlainText:
    """One window's text, by a whole forward pass for each token."""

    def __init__(self, model: Model, window: Window, phrases: Phrases | None) -> None:
        """phrases: of the window's hot words."""
        assert window.rules is not None and window.mel is not None
        self.model, self.window, self.rules, self.phrases = model, window, window.rules, phrases
        self.features = model.encoder(window.mel[None])

    def logprobs(self, text: Sequence[int]) -> Tensor:
        """[V] of the next token, by all rules but hot words."""
        rules, tokens = self.rules, torch.tensor([[*self.window.prompt, *text]])
        logits = self.model.logits(tokens, self.features)[0, -1]
        limits = rules.repetition_penalty, rules.no_repeat_ngram_size
        logits = limited(logits, text, *limits)[None]
        logits.index_fill_(-1, rules.suppress, NEVER)
        if not text:
            logits.index_fill_(-1, rules.suppress_first, NEVER)
        if rules.timestamps:
            state = (t[-1:] for t in Timestamps(1, VOCABULARY, CPU).along(rules, text))
            count = torch.tensor([len(text)])
            flags = [torch.tensor(np.asarray(t)) for t in state]
            apply_timestamp_rules(logits, (*flags, count), VOCABULARY)
        return logits[0].log_softmax(dim=0)

    def gains(self, text: Sequence[int]) -> Tensor:
        zeros = torch.zeros(SIZE, dtype=torch.float64)
        return zeros if self.phrases is None else self.phrases.gains(text)

    def greedy(self) -> tuple[list[int], float]:
        """Or random, at the window's temperature; and the mean log-probability."""
        attempt, text, total = self.window.attempt, list[int](), 0.0
        numbers = np.random.Generator(np.random.PCG64(attempt.seed))
        keys = torch.from_numpy(numbers.integers(-(2**63), 2**63, (1, DIMS.n_text_ctx // 2 + 1)))
        is_text = torch.arange(SIZE) < VOCABULARY.eot
        for number in range(self.rules.sample_len):
            logprobs = self.logprobs(text)
            scores, gained = logprobs, logprobs + self.gains(text)
            if heat := attempt.temperature:
                waits = waiting_times(keys[:, number], SIZE)[0].log()
                scores, gained = scores / heat - waits, gained / heat - waits
            token = int(scores.argmax())
            if is_text[token]:  # hot words choose among the text's tokens alone
                token = int(gained.masked_fill(~is_text, float("-inf")).argmax())
            total += float(logprobs[token])
            if token == VOCABULARY.eot:
                break
            text.append(token)
        return text, total / (len(text) + 1)

    def best_beam(self, width: int) -> tuple[list[int], float]:
        """By the definition of beam search with whisper's stopping rule."""
        beams: list[Beam] = [([], 0.0, 0.0)]
        finished: list[Beam] = []
        for _ in range(self.rules.sample_len):
            proposals: list[Beam] = []
            for text, total, bonus in beams:
                logprobs, gains = self.logprobs(text), self.gains(text)
                best = (logprobs + gains).topk(width + 1).indices.tolist()
                proposals += [
                    ([*text, t], total + float(logprobs[t]), bonus + float(gains[t])) for t in best
                ]
            proposals.sort(key=lambda p: -p[1] - p[2])
            beams = []
            for text, total, bonus in proposals:
                ended = text[-1] == VOCABULARY.eot
                (finished if ended else beams).append((text[: -1 if ended else None], total, bonus))
                if len(beams) == width:
                    break
            if len(finished) >= width:
                break
        finished = finished[:width]
        if len(finished) < width:
            lost = [0.0 if self.phrases is None else self.phrases.open_points(b[0]) for b in beams]
            safe = [(b[0], b[1], b[2] - less) for b, less in zip(beams, lost, strict=True)]
            safe.sort(key=lambda b: -b[1] - b[2])
            finished += safe[: width - len(finished)]
        text, total, _ = max(finished, key=lambda f: (f[1] + f[2]) / max(len(f[0]), 1))
        return text, total / (len(text) + 1)
