"""Windows end, and the last ones take their rows: all at once, as one after the other."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from slimwhisper.engine.group_runner import GroupRunner
from slimwhisper.engine.requests import Rules, Window
from slimwhisper.engine.rows import RowState
from slimwhisper.engine.sampling import GreedySampler
from slimwhisper.engine.scheduler import Move, RowGroup, Ticket
from slimwhisper.kernels.dispatch import Kernels
from tests.support.windows import CPU, DIMS, VOCABULARY

NONE = torch.zeros(0, dtype=torch.int64)
WINDOWS = 9
RULES = Rules(NONE, NONE, False, None, sample_len=9, no_repeat_ngram_size=2)


def runner_of(width: int, group: RowGroup) -> GroupRunner:
    """With random numbers in all rows."""
    state = RowState(DIMS, CPU, WINDOWS, width, (WINDOWS * width, 999), VOCABULARY)
    state.filters.prepare([RULES])
    for number, t in enumerate((*state.by_row(), *state.by_window())):
        drawn = torch.randn(t.shape, generator=torch.Generator().manual_seed(number))
        t.copy_((100 * drawn).abs().to(t.dtype))
    unused: Any = None
    sampler = GreedySampler(state, VOCABULARY.eot, Kernels(CPU, torch.float32))
    return GroupRunner(unused, VOCABULARY, group, unused, sampler, state, None, unused)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 5, WINDOWS])
@pytest.mark.parametrize("seed", range(4))
def test_windows_move_together_as_one_by_one(width: int, count: int, seed: int) -> None:
    rng, group = random.Random(seed), RowGroup(width, WINDOWS)
    for number in range(WINDOWS):
        group.add(Ticket(number, Window(None, (1, 2), 0, RULES), number))
        group.tickets[-1].count = 3 + number
    together, alone = runner_of(width, group), runner_of(width, group)
    firsts = together.state.texts.sampled[::width].tolist()
    moves, saved = list[Move](), dict[int, Ticket]()
    for ticket in rng.sample(group.tickets, count):
        if rng.random() < 0.5:  # preempted: it keeps its tokens
            saved[ticket.number] = ticket
        moves.append(Move(group, *group.remove(ticket), saved.get(ticket.number)))
    for move in moves:
        alone.move([move])
    kept = {number: ticket.resume for number, ticket in saved.items()}
    assert kept == {n: tuple(firsts[n][: 3 + n]) for n in saved}
    for ticket in saved.values():
        ticket.resume = ()
    together.move(moves)
    assert {number: ticket.resume for number, ticket in saved.items()} == kept

    def live(runner: GroupRunner) -> list[Tensor]:
        rows, windows = len(group.tickets) * width, len(group.tickets)
        by_row = [t[:rows] for t in runner.state.by_row()]
        return [*by_row, *(t[:windows] for t in runner.state.by_window())]

    for a, b in zip(live(together), live(alone), strict=True):
        assert torch.equal(a, b)
    for state in (together.state, alone.state):
        rows = len(group.tickets) * width
        assert (state.table[rows:] == 999).all() and (state.locations.ids[rows:] == 9 * width).all()
    order = [ticket.number for ticket in group.tickets]
    expected = runner_of(width, group).state.texts.last.view(WINDOWS, width)[order]
    assert torch.equal(together.state.texts.last.view(WINDOWS, width)[: len(order)], expected)
