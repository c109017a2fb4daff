"""Windows for tests of the engine, and ways to run them through it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch

from slimwhisper.audio.mel import first_window
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.filters import WIDTH
from slimwhisper.engine.requests import (
    Align,
    Alignment,
    Answer,
    Attempt,
    Decoded,
    Request,
    Rules,
    Search,
    Window,
)
from slimwhisper.guard import guarded_plan
from slimwhisper.hot_words.filter import hot_words
from slimwhisper.longform.requests import make_rules
from slimwhisper.model.model import Model
from slimwhisper.options import Options
from slimwhisper.types import Dims
from tests.support.few_tokens import DIMS as DIMS
from tests.support.few_tokens import SEED, random_checkpoint
from tests.support.few_tokens import TOKENIZER as TOKENIZER
from tests.support.few_tokens import VOCABULARY as VOCABULARY
from tests.support.sounds import noise_bursts

CPU = torch.device("cpu")
SHORT = replace(DIMS, n_audio_ctx=250)  # windows of 5 s: half of the time

SEARCHES: list[tuple[Search | None, tuple[float, ...]]] = [  # and the temperatures of windows
    (None, (0.0,)),
    (Search(samples=3), (0.0, 0.7)),
    (Search(samples=1), (0.7, 0.0, 1.0)),
    (Search(beams=3), (0.0,)),
    (Search(beams=3, patience=2.0, samples=2), (0.0, 0.0, 0.8)),
]

# where one group of rows or two make the difference
GRADED_SEARCHES = [SEARCHES[0], SEARCHES[-1]]

Next = Callable[[int, Answer], Request | None]  # what follows a window's answer


def random_model(
    device: torch.device = CPU,
    forms: tuple[str, str] = ("e", "x"),
    int8: bool = False,
    dims: Dims = DIMS,
    seed: int = SEED,
    dtype: torch.dtype = torch.float32,
) -> Model:
    make_plan = partial(guarded_plan, mel=None if dims == DIMS else mel(0, dims))
    return Model(random_checkpoint(dims, seed), device, dtype, forms, make_plan, int8)


short_model = partial(random_model, dims=SHORT)


def mel(seed: int, dims: Dims = SHORT) -> torch.Tensor:
    """[80, frames]: a window of noise."""
    return first_window(noise_bursts(5, seed), 80, 2 * dims.n_audio_ctx)


def rules_of(**options: Any) -> Rules:
    return make_rules(DIMS, Options(**options), VOCABULARY)


def windows(
    count: int,
    sample_len: int | None = None,
    temperatures: Sequence[float] = (0.0,),
    dims: Dims = DIMS,
) -> list[Window]:
    """Windows of different audio, prompts of different length, some without timestamps."""
    made = []
    for i in range(count):
        rules = rules_of(sample_len=sample_len or 3 + 2 * i, without_timestamps=i % 3 == 2)
        before = [TOKENIZER.sot_prev, *range(1000, 1000 + 7 * i)] if i % 2 else []
        attempt = Attempt(temperatures[i % len(temperatures)], (0, i))
        prompt = (*before, *TOKENIZER.sot_sequence)
        made.append(Window(mel(i, dims), prompt, len(before), rules, attempt))
    return made


short_windows = partial(windows, dims=SHORT)


@dataclass(eq=False)
class Asker:
    """An owner that keeps all answers; `then` says what follows one."""

    tag: int = 0
    then: Next = lambda *_: None
    answers: list[Answer] = field(default_factory=list)

    def accept(self, answer: Answer) -> Request | None:
        self.answers.append(answer)
        return self.then(self.tag, answer)


def step(engine: Engine) -> None:
    """One step, whose answers the windows' `Asker`s receive."""
    for ticket, answer in engine.step():
        assert isinstance(ticket.owner, Asker)
        engine.reply(ticket, ticket.owner.accept(answer))


def run(
    engine: Engine, requests: Mapping[int, Window], then: Next = lambda *_: None
) -> dict[int, list[Answer]]:
    """All answers to each window and to the requests that follow."""
    owners = {tag: Asker(tag, then) for tag in requests}
    for tag, window in requests.items():
        engine.submit(owners[tag], window)
    while not engine.idle:
        step(engine)
    assert engine.room == engine.slots
    return {tag: owner.answers for tag, owner in owners.items()}


def decode(
    model: Model,
    requests: Sequence[Window],
    slots: int,
    search: Search | None = None,
    check_every: int | None = None,
) -> list[Decoded]:
    results, engine = [], Engine(model, slots, search, check_every)
    for (answer,) in run(engine, dict(enumerate(requests))).values():
        assert isinstance(answer, Decoded)
        results.append(answer)
    return results


def assert_same(found: Sequence[Decoded], expected: Sequence[Decoded]) -> None:
    for ours, other in zip(found, expected, strict=True):
        assert ours.tokens == other.tokens
        assert ours.temperature == other.temperature
        assert ours.avg_logprob == pytest.approx(other.avg_logprob, abs=1e-4)
        assert ours.no_speech_prob == pytest.approx(other.no_speech_prob, abs=1e-6)


@dataclass(frozen=True, eq=False)
class Asked:
    """A window, and what is asked after each of its answers."""

    window: Window
    then: tuple[Request, ...] = ()


def with_rules(window: Window, **changes: object) -> Window:
    return replace(window, rules=replace(window.rules, **changes))  # type: ignore[type-var, arg-type]


def of_every_kind(plain: Sequence[Window], exact: bool) -> list[Asked]:
    """Eight windows, each asking for other things than its neighbours. exact: so is the cache of
    their audio, which need not be a whole window's.
    """
    mels = [w.mel for w in plain if w.mel is not None]
    heard = mels[0].shape[1] * 3 // 10 * 2  # frames
    before = (*TOKENIZER.sot_sequence, TOKENIZER.no_timestamps)
    hot, again = Attempt(0.6, (1,)), replace(plain[2], mel=None)

    def with_words(window: Window, *lines: str) -> Window:
        return with_rules(window, bonuses=hot_words(VOCABULARY, lines, 9.0))

    return [
        Asked(with_words(plain[0], "of the", "the deal")),
        Asked(replace(plain[1], logprobs=True), (Align(before, (500, 501)), hot)),
        Asked(replace(plain[2], mel=mels[2][:, : heard if exact else None]), (again,)),
        Asked(with_rules(plain[3], repetition_penalty=1.3, no_repeat_ngram_size=2)),
        Asked(with_words(plain[4], "new york", "york city", "city")),
        Asked(replace(plain[5], draft=(300, 301)), (hot, with_words(plain[5], "seven of nine"))),
        Asked(with_rules(plain[6], suppress=torch.arange(WIDTH + 5))),
        Asked(replace(plain[6], mel=mels[6] * torch.nan)),  # numbers overflow
    ]


def answers(engine: Engine, chosen: Sequence[Asked]) -> list[list[Answer]]:
    left = [iter(asked.then) for asked in chosen]
    windows = {i: asked.window for i, asked in enumerate(chosen)}
    done = run(engine, windows, lambda tag, _: next(left[tag], None))
    return [done[i] for i in range(len(chosen))]


def assert_same_answers(
    found: Sequence[Sequence[Answer]], expected: Sequence[Sequence[Answer]], off: float = 1e-4
) -> None:
    """Of windows, and of what was asked after them. off: of probabilities."""
    for ours, others in zip(found, expected, strict=True):
        for one, other in zip(ours, others, strict=True):
            if isinstance(one, Alignment) and isinstance(other, Alignment):
                torch.testing.assert_close(one.scores.cpu(), other.scores, rtol=off, atol=off)
                assert one.probs == pytest.approx(other.probs, rel=10 * off)
                continue
            assert isinstance(one, Decoded) and isinstance(other, Decoded)
            if not math.isnan(other.avg_logprob):  # else any are as good as others
                assert one.tokens == other.tokens
            assert one.temperature == other.temperature
            assert one.avg_logprob == pytest.approx(other.avg_logprob, abs=off, nan_ok=True)
            assert one.no_speech_prob == pytest.approx(other.no_speech_prob, abs=off, nan_ok=True)
            assert one.logprobs == pytest.approx(other.logprobs, abs=off, nan_ok=True)
