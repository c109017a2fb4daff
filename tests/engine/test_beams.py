"""Beam search: `whisper.decoding.BeamSearchDecoder` as the reference, on logits made up here."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from whisper.decoding import BeamSearchDecoder, MaximumLikelihoodRanker

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import AcceptedPrefix, Decoded, Rules, Search, Window
from slimwhisper.engine.rows import RowState, rules_of
from slimwhisper.engine.runner import GroupRunner
from slimwhisper.engine.sampling import BeamSampler
from slimwhisper.engine.scheduler import Move, RowGroup, Ticket
from slimwhisper.model.model import Model
from tests.support.fuzz import examples
from tests.support.windows import CPU, DIMS, VOCABULARY, Asker, run

EOT = VOCABULARY.eot
WORDS = [*range(100, 109), EOT]  # what is likely; all else is not
NONE = torch.zeros(0, dtype=torch.int64)


def logits_after(search: int, text: Sequence[int], ending: float) -> Tensor:
    """[V]: as a model's, a function of the text so far. `ending`: how likely the end is."""
    seed = hash((search, *text)) % 2**31
    generator = torch.Generator().manual_seed(seed)
    logits = torch.full((VOCABULARY.size,), -30.0)
    logits[WORDS] = torch.randn(len(WORDS), generator=generator)
    # as `suppress_blank` does: by the length of an empty text whisper would divide
    logits[EOT] = logits[EOT] + ending if text else float("-inf")
    return logits


class Beams(NamedTuple):
    """How texts are searched; `ending`: how likely each text's end is."""

    width: int
    patience: float
    ending: float
    penalty: float | None


def reference(search: int, beams: Beams, prompt: Sequence[int], sample_len: int) -> Decoded:
    """whisper's loop for one window."""
    inference: Any = SimpleNamespace(rearrange_kv_cache=lambda _: None)
    decoder = BeamSearchDecoder(beams.width, EOT, inference, beams.patience)
    begin = len(prompt)
    tokens = torch.tensor([list(prompt)] * beams.width)
    scores = torch.zeros(beams.width)
    for _ in range(sample_len):
        logits = [logits_after(search, t[begin:].tolist(), beams.ending) for t in tokens]
        tokens, completed = decoder.update(tokens, torch.stack(logits), scores)
        if completed or tokens.shape[-1] > DIMS.n_text_ctx:
            break
    found, sums = decoder.finalize(tokens[None], scores[None])
    texts = [t[begin : (t == EOT).nonzero()[0, 0]] for t in found[0]]
    (best,) = MaximumLikelihoodRanker(beams.penalty).rank([texts], sums)
    text = texts[best].tolist()
    return Decoded(tuple(text), sums[0][best] / (len(text) + 1))


def search_all(
    model: Model, beams: Beams, prompt: tuple[int, ...], lengths: Sequence[int]
) -> list[Decoded]:
    """One search for each length, with its index as its number, side by side in one engine."""
    search = Search(beams=beams.width, patience=beams.patience, length_penalty=beams.penalty)
    engine = Engine(model, len(lengths), search)

    def prefill(runner: GroupRunner, first: int, tickets: Sequence[Ticket]) -> None:
        """As the runner does it, without reading the prompt."""
        accepted = [AcceptedPrefix()] * len(tickets)
        runner.state.filters.prepare(rules_of(tickets))
        for view, numbers in runner.state.start_values(first, tickets, accepted):
            view.copy_(torch.from_numpy(numbers))
        logits = torch.stack([logits_after(tag_of(t), [], beams.ending) for t in tickets])
        runner.start(first, tickets, logits, torch.zeros(len(tickets)), accepted)

    def step(tokens: Tensor, *_: object) -> Tensor:
        (runner,), rows = engine.group_runners, []
        for row in range(len(tokens)):
            text = runner.state.texts.sampled[row, : int(runner.state.counts[row])].tolist()
            assert not text or text[-1] == int(tokens[row])
            tag = tag_of(runner.group.tickets[row // beams.width])
            rows.append(logits_after(tag, text, beams.ending))
        return torch.stack(rows)

    audio = torch.zeros(model.dims.n_audio_ctx, model.dims.n_audio_state)
    every = [Rules(NONE, NONE, False, None, sample_len=length) for length in lengths]
    asked = {tag: Window(audio, prompt, 0, rules) for tag, rules in enumerate(every)}
    with patch.object(model.decoder, "step", step), patch.object(GroupRunner, "prefill", prefill):
        done = run(engine, asked)
    return [answer for tag in asked for answer in done[tag] if isinstance(answer, Decoded)]


def tag_of(ticket: Ticket) -> int:
    assert isinstance(ticket.owner, Asker)
    return ticket.owner.tag


# one beam of patience 0.5 leaves no text to find; refused as an option
@pytest.mark.parametrize(
    ("width", "patience", "penalty"),
    [
        *((w, p, None) for w in (1, 3, 5) for p in (0.5, 1.0, 2.0) if round(w * p)),
        *((w, 1.0, 0.6) for w in (1, 5)),
    ],
)
def test_searches_are_whisper_s(
    model: Model, width: int, patience: float, penalty: float | None
) -> None:
    prompt, lengths = (VOCABULARY.sot,), [12, 3, 12, 1, 12, 7]
    # texts that all end, some, or none; 1 to 12 tokens at most
    for ending in (1.0, -1.0, -3.0):
        beams = Beams(width, patience, ending, penalty)
        found = search_all(model, beams, prompt, lengths)
        for search, (ours, length) in enumerate(zip(found, lengths, strict=True)):
            expected = reference(search, beams, prompt, length)
            assert ours.tokens == expected.tokens
            assert ours.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-6)


def test_the_context_ends_a_search(model: Model) -> None:
    prompt, beams = (VOCABULARY.sot,) * (DIMS.n_text_ctx - 4), Beams(2, 1.0, -9.0, None)
    expected = reference(0, beams, prompt, 20)
    assert [d.tokens for d in search_all(model, beams, prompt, [20])] == [expected.tokens]
    assert len(expected.tokens) == 5


# Windows end, and the last ones take their rows: moves of rows are a permutation


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
