"""A drafter: the same texts in fewer steps, whatever it guesses."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from slimwhisper.cache.rows import Rows
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine.drafting import (
    MAX_DRAFT,
    Acceptance,
    Choose,
    DraftContext,
    Drafter,
    DraftModel,
    load_draft,
)
from slimwhisper.engine.engine import Engine
from slimwhisper.engine.group_runner import GroupRunner
from slimwhisper.engine.requests import Answer, Decoded, Request, Search, Window
from slimwhisper.errors import OptionError
from slimwhisper.model.model import Model
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.pretend.cuda import pretend_cuda
from tests.support.windows import (
    CPU,
    SEED,
    SHORT,
    VOCABULARY,
    assert_same,
    decode,
    run,
    short_model,
    short_windows,
)

LENGTH = 30


class Guesses:
    """Knows the texts by the first token of their prompts; wrong at the indices `wrong`."""

    cost = 0.01

    def __init__(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> None:
        self.prompts, self.texts = [tuple(p) for p in prompts], texts
        self.wrong: Callable[[int, int], bool] = lambda text, index: False
        self.read: list[int] = []  # tokens of a row, by call

    def begin(self, prompts: Tensor, rows: Rows) -> None:
        for row in prompts.tolist():
            assert any(tuple(row[: len(p)]) == p for p in self.prompts)

    def guess(self, context: DraftContext, choose: Choose) -> Tensor:
        self.read.append(context.tokens.shape[1])
        guesses = []
        firsts = [prompt[0] for prompt in self.prompts]
        for i, first in enumerate(context.texts[:, 0].tolist()):
            text = firsts.index(first)
            index = int(context.positions[i, -1]) + 1 - len(self.prompts[text])
            text_and_end = [*self.texts[text], VOCABULARY.eot, VOCABULARY.eot]
            expected = text_and_end[min(index, len(text_and_end) - 1)]
            guesses.append(expected + 1 if self.wrong(text, index) else expected)
        return torch.tensor(guesses)

    def nbytes(self) -> int:
        return 0


@pytest.fixture(scope="module")
def windows() -> list[Window]:
    """Each with a prompt of its own."""
    requests = short_windows(6, LENGTH)
    return [
        replace(w, prompt=(900 + i, *w.prompt), sot_index=w.sot_index + 1)
        for i, w in enumerate(requests)
    ]


@pytest.fixture(scope="module")
def plain(model: Model, windows: list[Window]) -> list[Decoded]:
    return decode(model, windows, 3)


def speculate(
    model: Model,
    windows: Sequence[Window],
    slots: int,
    drafter: Callable[[None], Drafter] | None = None,
    draft: Model | None = None,
    cost: float = 0.01,
    search: Search | None = None,
    then: Callable[[int, Answer], Request | None] = lambda *_: None,
    timed: bool = True,
    runners: list[GroupRunner] | None = None,
) -> tuple[dict[int, list[Answer]], Acceptance]:
    """All answers, and the acceptance counts. timed: whether times decide on draft lengths."""

    def make(cross: object, rows: int, pages: int) -> Drafter:
        if drafter is not None:
            return drafter(None)
        result = DraftModel(draft or model, model, cross, rows, pages)  # type: ignore[arg-type]
        result.cost = cost
        return result

    engine = Engine(model, VOCABULARY, slots, search, draft=make)
    speculation = engine.group_runners[0].speculation
    if runners is not None:
        runners += engine.group_runners
    assert speculation is not None
    speculation.draft_lengths.timed &= timed
    return run(engine, dict(enumerate(windows)), then), speculation.acceptance


def only(answers: dict[int, list[Answer]]) -> list[Decoded]:
    return [a for i in range(len(answers)) if isinstance(a := answers[i][0], Decoded)]


def test_the_same_texts_wherever_it_is_wrong(
    model: Model, windows: list[Window], plain: list[Decoded]
) -> None:
    texts = [p.tokens for p in plain]
    for wrong in (
        lambda text, index: False,
        lambda text, index: True,
        lambda text, index: index % 4 == 3,
        lambda text, index: (text + index) % 3 == 0,
        lambda text, index: text % 2 == 0,
    ):
        guesses = Guesses([w.prompt for w in windows], texts)
        guesses.wrong = wrong
        answers, stats = speculate(model, windows, 3, lambda _, g=guesses: g, timed=False)
        assert_same(only(answers), plain)
        assert stats.drafted and stats.accepted <= stats.drafted
        if not any(wrong(t, i) for t in range(6) for i in range(LENGTH)):
            assert stats.accepted == stats.drafted
            assert stats.drafted_steps < sum(map(len, texts)) / 3 / (MAX_DRAFT / 2)


def test_each_text_accepts_its_own_number_of_tokens(
    model: Model, windows: list[Window], plain: list[Decoded]
) -> None:
    """Beside a text whose guesses are never right, the others end as early as without it."""
    guesses = Guesses([w.prompt for w in windows[:3]], [p.tokens for p in plain[:3]])
    guesses.wrong = lambda text, index: text == 1
    done: list[int] = []
    speculate(model, windows[:3], 3, lambda _: guesses, then=lambda tag, _: done.append(tag))
    assert done[-1] == 1 and len(plain[1].tokens) == len(plain[2].tokens)


def test_a_model_drafts_on_the_same_encoder_output(
    model: Model, windows: list[Window], plain: list[Decoded]
) -> None:
    """Drafting for itself, it is always right: its cache follows the text, lengths and moves."""
    runners: list[GroupRunner] = []
    answers, stats = speculate(model, windows, 2, runners=runners)
    assert_same(only(answers), plain)
    assert stats.accepted == stats.drafted > 0
    assert runners[0].speculation is not None
    drafter = runners[0].speculation.drafter
    assert isinstance(drafter, DraftModel) and not drafter.cache.cross.stores
    other = Model(
        Checkpoint("other", SHORT, random_state(SHORT, seed=2)), CPU, torch.float32, ("e", "x")
    )
    answers, stats = speculate(model, windows, 3, draft=other)
    assert_same(only(answers), plain)
    assert stats.accepted < stats.drafted


@pytest.mark.parametrize("forms", [("kv", "x"), ("k", "k"), ("hybrid", "x")])
def test_it_keeps_the_encoder_output_where_the_model_does_not(
    forms: tuple[str, str], model: Model, windows: list[Window]
) -> None:
    other = short_model(forms=forms)
    runners: list[GroupRunner] = []
    answers, stats = speculate(other, windows, 2, draft=model, runners=runners)
    assert_same(only(answers), decode(other, windows, 2))
    assert stats.accepted > 0.9 * stats.drafted > 0, "of the same weights"
    assert runners[0].speculation is not None
    drafter = runners[0].speculation.drafter
    assert isinstance(drafter, DraftModel)
    cross = drafter.cache.cross
    assert cross.layers[0].store is runners[0].cache.cross.stores[-1], "put with the model's"


def test_random_texts_are_those_of_their_seeds(model: Model) -> None:
    requests = short_windows(6, 20, (0.7, 0.0, 1.0))
    expected = decode(model, requests, 3)
    answers, stats = speculate(model, requests, 3)
    assert_same(only(answers), expected)
    assert stats.accepted == stats.drafted, "the draft draws with the same numbers"


def test_log_probabilities_and_an_expected_text(
    model: Model, windows: list[Window], plain: list[Decoded]
) -> None:
    requests = [
        replace(w, logprobs=True, draft=p.tokens[: 3 * i])
        for i, (w, p) in enumerate(zip(windows, plain, strict=True))
    ]
    expected = decode(model, [replace(w, logprobs=True) for w in windows], 3)
    answers, _ = speculate(model, requests, 3)
    for i, (decoded, other) in enumerate(zip(only(answers), expected, strict=True)):
        assert decoded.tokens == other.tokens and decoded.drafted == min(3 * i, len(other.tokens))
        assert decoded.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_up_to_the_last_token_of_the_context(model: Model) -> None:
    long = tuple(range(1000, 1000 + SHORT.n_text_ctx - 9))
    requests = [replace(w, prompt=(*long, *w.prompt[-2:])) for w in short_windows(2, 20)]
    expected = decode(model, requests, 2)
    answers, stats = speculate(model, requests, 2)
    assert_same(only(answers), expected)
    assert stats.drafted
    assert max(len(w.prompt) + len(d.tokens) for w, d in zip(requests, expected, strict=True)) == (
        SHORT.n_text_ctx + 1
    )


@pytest.mark.slow
def test_on_a_gpu_with_graphs(windows: list[Window]) -> None:
    cuda = torch.device("cuda", 1)
    requests = [replace(w, rules=short_windows(1, 24)[0].rules) for w in windows[:2]]
    expected = decode(short_model(), requests, 2)
    with pretend_cuda(count=2):
        model = short_model(cuda)
        runners: list[GroupRunner] = []
        answers, stats = speculate(model, requests, 2, runners=runners)
    assert_same(only(answers), expected)
    assert stats.accepted == stats.drafted
    (runner,) = runners
    assert runner.graphs is not None and runner.graphs.replays and runner.graphs.failure is None
    assert model.plan.kernels.failures == {} and model.plan.kernels.used["latent", "triton"]


def test_what_may_draft(model: Model) -> None:
    state = random_state(SHORT, SEED)
    target = Checkpoint("large.pt", SHORT, state)
    fewer = replace(SHORT, n_text_layer=1)
    draft = Checkpoint(
        "small.pt",
        fewer,
        {k: v for k, v in state.items() if "blocks.1." not in k or k.startswith("encoder")},
    )
    drafter_model = load_draft(draft, target, model)
    assert drafter_model.encoder is model.encoder and drafter_model.dims.n_text_layer == 1
    assert drafter_model.int8 and not model.int8, "guesses need not be exact"
    name = "encoder.ln_post.weight"
    changed = replace(draft, state={**draft.state, name: state[name] + 1})
    wide = replace(tiny_dims(text_layers=1), n_audio_ctx=SHORT.n_audio_ctx)
    for wrong, message in (
        (changed, r"small\.pt .*large\.pt.*ln_post\.weight"),
        (replace(draft, dims=wide), "vocabulary"),
        (replace(draft, dims=replace(fewer, n_audio_layer=3)), "n_audio_layer"),
    ):
        with pytest.raises(OptionError, match=message):
            load_draft(wrong, target, model)
    assert [*map(str, load_draft(draft, target, short_model(forms=("kv", "x"))).forms)] == [
        "e",
        "x",
    ]
    with pytest.raises(OptionError, match="choose cross_cache e"):
        load_draft(draft, target, short_model(forms=("sparse", "x")))
