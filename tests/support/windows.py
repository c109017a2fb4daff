"""Windows for tests of the engine, and ways to run them through it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch

from slimwhisper.audio.mel import first_window
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Answer, Attempt, Decoded, Request, Search, Window
from slimwhisper.longform.requests import make_rules
from slimwhisper.model.model import Guard, Model
from slimwhisper.options import Options
from slimwhisper.tokens.vocabulary import get_tokenizer, get_vocabulary
from slimwhisper.types import Dims
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.sounds import noise_bursts

CPU = torch.device("cpu")
DIMS = tiny_dims(multilingual=False, text_layers=2)
SHORT = replace(DIMS, n_audio_ctx=250)  # windows of 5 s: half of the time
TOKENIZER = get_tokenizer(DIMS)
VOCABULARY = get_vocabulary(DIMS)

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
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Model:
    checkpoint = Checkpoint("random", dims, random_state(dims, seed))
    guard = None if dims == DIMS else Guard(mel=mel(0, dims))
    return Model(checkpoint, device, dtype, forms, guard, "int8" if int8 else "")


SEED = 3  # whose texts are long, and differ
short_model = partial(random_model, dims=SHORT, seed=SEED)


def mel(seed: int, dims: Dims = SHORT) -> torch.Tensor:
    """[80, frames]: a window of noise."""
    return first_window(noise_bursts(5, seed), 80, 2 * dims.n_audio_ctx)


def windows(
    count: int,
    sample_len: int | None = None,
    temperatures: Sequence[float] = (0.0,),
    dims: Dims = DIMS,
) -> list[Window]:
    """Windows of different audio, prompts of different length, some without timestamps."""
    made = []
    for i in range(count):
        rules = make_rules(
            DIMS, Options(sample_len=sample_len or 5 + 3 * i, without_timestamps=i % 3 == 2)
        )
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
    assert engine.free == engine.slots
    return {tag: owner.answers for tag, owner in owners.items()}


def decode(
    model: Model,
    requests: Sequence[Window],
    slots: int,
    search: Search | None = None,
    check_every: int | None = None,
    backwards: bool = False,
) -> list[Decoded]:
    engine = Engine(model, slots, search, check_every)
    numbered = list(enumerate(requests))
    done = run(engine, dict(numbered[::-1] if backwards else numbered))
    results = []
    for i in range(len(requests)):
        (answer,) = done[i]
        assert isinstance(answer, Decoded)
        results.append(answer)
    return results


def assert_same(found: Sequence[Decoded], expected: Sequence[Decoded]) -> None:
    for ours, other in zip(found, expected, strict=True):
        assert ours.tokens == other.tokens
        assert ours.temperature == other.temperature
        assert ours.avg_logprob == pytest.approx(other.avg_logprob, abs=1e-4)
        assert ours.no_speech_prob == pytest.approx(other.no_speech_prob, abs=1e-6)
