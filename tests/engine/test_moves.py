"""Windows end, and the last ones take their rows: moves of rows are a permutation."""

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slimwhisper.engine.requests import Rules, Window
from slimwhisper.engine.rows import RowState
from slimwhisper.engine.runner import GroupRunner
from slimwhisper.engine.sampling import BeamSampler
from slimwhisper.engine.scheduler import Move, RowGroup, Ticket
from tests.support.fuzz import examples
from tests.support.windows import CPU, DIMS, VOCABULARY

NONE = torch.zeros(0, dtype=torch.int64)
WINDOWS = 9
RULES = Rules(NONE, NONE, False, None, sample_len=9, no_repeat_ngram_size=2)


def runner_of(width: int, group: RowGroup) -> GroupRunner:
    """With random numbers in all rows."""
    plan = SimpleNamespace(kernels=None)
    model: Any = SimpleNamespace(dims=DIMS, device=CPU, vocabulary=VOCABULARY, plan=plan)
    state = RowState(model, WINDOWS, width, (WINDOWS * width, 999))
    state.filters.prepare([RULES])
    unused: Any = None
    sampler = BeamSampler(state, VOCABULARY.eot, unused, 1.0, False)
    for number, t in enumerate((*state.by_row(), *state.by_window(), *sampler.by_window())):
        drawn = torch.randn(t.shape, generator=torch.Generator().manual_seed(number))
        t.copy_((100 * drawn).abs().to(t.dtype))
    return GroupRunner(unused, group, unused, sampler, state, None, unused)


@examples(60)
@given(
    width=st.sampled_from([1, 3]),
    leaving=st.lists(st.integers(0, WINDOWS - 1), unique=True, min_size=1),
    preempted=st.sets(st.integers(0, WINDOWS - 1)),
)
def test_windows_move_together(width: int, leaving: list[int], preempted: set[int]) -> None:
    """All at once as one by one; who stays has its own rows, and who is preempted its tokens."""
    group = RowGroup(width, WINDOWS)
    for number in range(WINDOWS):
        group.add(Ticket(number, Window(None, (1, 2), 0, RULES), number))
        group.tickets[-1].count = 3 + number
    tickets, runners = list(group.tickets), [runner_of(width, group) for _ in range(3)]
    before = runners[0].state
    saved = [tickets[n] for n in leaving if n in preempted]
    moves = [
        Move(group, *group.remove(tickets[n]), tickets[n] if n in preempted else None)
        for n in leaving
    ]
    kept = []
    for runner, parts in ((runners[1], [moves]), (runners[2], [[move] for move in moves])):
        for part in parts:
            runner.move(part)
        kept.append([ticket.resume for ticket in saved])
        for ticket in saved:
            ticket.resume = ()
    firsts = before.texts.sampled[::width].tolist()
    assert kept == [[tuple(firsts[t.number][: 3 + t.number]) for t in saved]] * 2
    order = torch.tensor([ticket.number for ticket in group.tickets], dtype=torch.int64)
    rows = (order[:, None] * width + torch.arange(width)).flatten()

    def same(found: list[Tensor], expected: list[Tensor], index: Tensor) -> None:
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours[: len(index)], theirs[index])

    first = runners[0].sampler
    for state, sampler in ((runner.state, runner.sampler) for runner in runners[1:]):
        same([*state.by_row()], [*before.by_row()], rows)
        same([*state.by_window()], [*before.by_window()], order)
        same([*sampler.by_window()], [*first.by_window()], order)
        assert (state.table[len(rows) :] == 999).all()
        assert (state.locations.ids[len(rows) :] == 9 * width).all()
