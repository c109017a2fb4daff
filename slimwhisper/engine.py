"""Windows in, decoded tokens out: a batch of slots, each refilled the moment its window is done.

The engine knows nothing about files, text or tokenization. Active slots are always the first ones,
so that the caches are read in place: when one is done, the last active slot moves into its place.
"""

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from slimwhisper.cache.base import Rows, Step
from slimwhisper.model import Model
from slimwhisper.rules import TimestampState, apply_timestamp_rules, choose_greedily, suppress
from slimwhisper.types import Decoded, Rules, Window
from slimwhisper.vocabulary import Vocabulary

Tag = TypeVar("Tag")

ENCODE_BATCH = 4  # windows encoded together; bounds the encoder's activations


class _Slot(Generic[Tag]):
    """Host-side bookkeeping of one window in flight."""

    def __init__(self, tag: Tag, window: Window, rules: Rules, no_speech_prob: float) -> None:
        self.tag, self.rules, self.no_speech_prob = tag, rules, no_speech_prob
        self.length = len(window.prompt)  # tokens so far, the prompt included
        self.sampled = 0


class Engine(Generic[Tag]):
    """Decodes windows side by side. `submit` some, then `step` until `idle`.

    Each row's arithmetic is its own: a result does not depend on its neighbours but for rounding.
    """

    def __init__(self, model: Model, vocabulary: Vocabulary, slots: int) -> None:
        self.model, self.vocabulary, self.slots = model, vocabulary, slots
        self.cache = model.allocate(slots)
        self._waiting: deque[tuple[Tag, Window]] = deque()
        self._active: list[_Slot[Tag]] = []
        device, context = model.device, model.dims.n_text_ctx
        self._last = torch.zeros(slots, dtype=torch.int64, device=device)
        self._positions = torch.zeros(slots, dtype=torch.int64, device=device)
        self._sampled = torch.zeros((slots, context + 1), dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(slots, dtype=torch.float32, device=device)
        self._suppress = torch.zeros((slots, vocabulary.size), dtype=torch.bool, device=device)
        self._stamps = TimestampState.allocate(slots, device)
        self._row_tensors = (
            *(self._last, self._positions, self._sampled, self._logprobs, self._suppress),
            *self._stamps.tensors(),
        )

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._active)

    @property
    def room(self) -> int:
        """How many more windows would find a free slot at once."""
        return self.slots - len(self._active) - len(self._waiting)

    def submit(self, tag: Tag, window: Window) -> None:
        """Queue a window; `tag` comes back with its result."""
        self._waiting.append((tag, window))

    @torch.inference_mode()
    def step(self) -> list[tuple[Tag, Decoded]]:
        """Fill free slots, decode one token in every active one; return what is done."""
        done: list[tuple[Tag, Decoded]] = []
        while self._waiting and len(self._active) < self.slots:
            count = min(ENCODE_BATCH, len(self._waiting), self.slots - len(self._active))
            done += self._fill([self._waiting.popleft() for _ in range(count)])
            done += self._harvest()
        if self._active:
            self._decode()
            done += self._harvest()
        return done

    def _fill(self, group: Sequence[tuple[Tag, Window]]) -> list[tuple[Tag, Decoded]]:
        """Encode windows, keep them in the next slots, read their prompts, sample one token.

        Returns the answers to those that only ask for the language.
        """
        group = sorted(group, key=lambda item: item[1].rules is None)  # those give back their slots
        windows = [window for _, window in group]
        start, device = len(self._active), self.model.device
        rows = Rows.of(torch.arange(start, start + len(group), device=device))
        features = self.model.encoder(torch.stack([w.mel for w in windows]))
        self.cache.put(rows.slots, features)

        longest = max(len(w.prompt) for w in windows)
        padded = [[*w.prompt, *[0] * (longest - len(w.prompt))] for w in windows]
        hidden = self.model.decoder.prefill(torch.tensor(padded, device=device), rows, self.cache)
        every = torch.arange(len(windows), device=device)
        asked = torch.tensor([[w.sot_index, len(w.prompt) - 1] for w in windows], device=device)
        logits = self.model.decoder.logits(hidden[every[:, None], asked])  # [G, 2, V]
        at_start, following = logits.unbind(1)
        no_speech = at_start.softmax(dim=-1)[:, self.vocabulary.no_speech].tolist()

        answers: list[tuple[Tag, Decoded]] = []
        for row, (tag, window) in enumerate(group):
            if window.rules is None:
                probs = self._language_probs(at_start[row])
                answers.append((tag, Decoded(language_probs=probs)))
            else:
                self._active.append(_Slot(tag, window, window.rules, no_speech[row]))
                self._start_row(start + row, window, window.rules)
        fresh = slice(start, len(self._active))
        if fresh.start < fresh.stop:
            self._sample(fresh, following[: fresh.stop - fresh.start])
            for row in range(fresh.start, fresh.stop):
                self._suppress[row] = self._active[row].rules.suppress.to(device)
        return answers

    def _language_probs(self, logits: Tensor) -> dict[str, float]:
        """logits [V] after <|startoftranscript|> -> probability of every language code."""
        languages = self.vocabulary.languages
        probs = logits[list(languages)].softmax(dim=-1).tolist()
        return dict(zip(languages.values(), probs, strict=True))

    def _start_row(self, row: int, window: Window, rules: Rules) -> None:
        limit = rules.max_initial_timestamp
        self._stamps.start(row, rules.timestamps, self.vocabulary.size if limit is None else limit)
        self._suppress[row] = (rules.suppress | rules.suppress_first).to(self.model.device)
        self._positions[row] = len(window.prompt) - 1
        self._logprobs[row] = 0

    def _decode(self) -> None:
        """One token for every active row."""
        lengths = [slot.length for slot in self._active]
        step = Step.at(
            Rows.first(len(lengths), device=self.model.device),
            self._positions[: len(lengths)],
            extent=max(lengths),
            full=min(lengths) == max(lengths),
            dtype=self.model.dtype,
        )
        logits = self.model.decoder.step(self._last[: len(lengths)], step, self.cache)
        self._sample(slice(0, len(lengths)), logits)

    def _sample(self, rows: slice, logits: Tensor) -> None:
        """Choose the next token of some rows, logits [R, V], and take note of it."""
        state = self._stamps.view(rows)
        suppress(logits, self._suppress[rows])
        apply_timestamp_rules(logits, state, self.vocabulary)
        tokens, logprobs = choose_greedily(logits)
        every = torch.arange(rows.start, rows.stop, device=tokens.device)
        self._sampled[every, state.count] = tokens
        self._last[rows] = tokens
        self._logprobs[rows] += logprobs
        self._positions[rows] += 1
        state.advance(tokens, self.vocabulary.timestamp_begin)
        for slot in self._active[rows]:
            slot.length += 1
            slot.sampled += 1

    def _harvest(self) -> list[tuple[Tag, Decoded]]:
        """Take out the windows that have ended; the last active ones move into their places."""
        done: list[tuple[Tag, Decoded]] = []
        last = self._last[: len(self._active)].tolist()
        for row in reversed(range(len(last))):
            slot = self._active[row]
            context = self.model.dims.n_text_ctx
            full = slot.sampled >= slot.rules.sample_len or slot.length > context
            if last[row] != self.vocabulary.eot and not full:
                continue
            tokens = self._sampled[row, : slot.sampled].tolist()
            if last[row] == self.vocabulary.eot:
                tokens.pop()
            avg_logprob = float(self._logprobs[row]) / (len(tokens) + 1)
            done.append((slot.tag, Decoded(tuple(tokens), avg_logprob, slot.no_speech_prob)))
            self._vacate(row)
        return done[::-1]

    def _vacate(self, row: int) -> None:
        end = len(self._active) - 1
        if row != end:
            self.cache.move(end, row)
            for tensor in self._row_tensors:
                tensor[row] = tensor[end]
            self._active[row] = self._active[end]
        self._active.pop()
