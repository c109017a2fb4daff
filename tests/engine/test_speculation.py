"""A drafter: the same texts in fewer steps, whatever it guesses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import slimwhisper
from slimwhisper.cache.base import Rows
from slimwhisper.cli import build_parser
from slimwhisper.drafts.draft_model import DraftModel, load_draft
from slimwhisper.drafts.speculation import (
    TIMED_FIRST,
    Choose,
    DraftContext,
    Drafter,
    DraftLengthController,
    SpeculativeRunner,
    expected_tokens,
)
from slimwhisper.engine.engine import Engine, make_engine
from slimwhisper.engine.requests import Answer, Decoded, Request, Search, Window
from slimwhisper.engine.scheduler import MAX_DRAFT
from slimwhisper.errors import CheckpointError, OptionError
from slimwhisper.jobs.flags import options_of
from slimwhisper.model.model import Model
from tests.support.checkpoints import tiny_dims
from tests.support.few_tokens import random_checkpoint
from tests.support.parity import differences
from tests.support.paths import SAMPLES
from tests.support.spoken import with_draft
from tests.support.windows import (
    SHORT,
    VOCABULARY,
    assert_same,
    decode,
    run,
    short_model,
    short_windows,
)

LENGTH = 30
DOOR = SAMPLES / "door-code.mp3"


class Guesses:
    """Knows the texts by the first token of their prompts; wrong at the indices `wrong`."""

    cost = 0.01

    def __init__(
        self, windows: Sequence[Window], texts: Sequence[Decoded], wrong: Callable[[int, int], bool]
    ) -> None:
        self.prompts, self.wrong = [w.prompt for w in windows], wrong
        self.texts = [[*t.tokens, VOCABULARY.eot, VOCABULARY.eot] for t in texts]

    def begin(self, prompts: Tensor, rows: Rows) -> None:
        for row in prompts.tolist():
            assert any(tuple(row[: len(p)]) == p for p in self.prompts)

    def guess(self, context: DraftContext, choose: Choose) -> Tensor:
        guesses = []
        firsts = [prompt[0] for prompt in self.prompts]
        for i, first in enumerate(context.texts[:, 0].tolist()):
            text = firsts.index(first)
            index = int(context.positions[i, -1]) + 1 - len(self.prompts[text])
            expected = self.texts[text][min(index, len(self.texts[text]) - 1)]
            guesses.append(expected + self.wrong(text, index))
        return torch.tensor(guesses)

    def nbytes(self) -> int:
        return 0


@pytest.fixture(scope="module")
def windows() -> list[Window]:
    """Each with a prompt of its own; one ends so early that another takes its rows."""
    some = [*short_windows(6, LENGTH)]
    some[3] = short_windows(4, LENGTH // 2)[3]
    return [
        replace(w, prompt=(900 + i, *w.prompt), sot_index=w.sot_index + 1)
        for i, w in enumerate(some)
    ]


@pytest.fixture(scope="module")
def plain(model: Model, windows: list[Window]) -> list[Decoded]:
    return decode(model, windows, 3)


def speculate(
    model: Model,
    windows: Sequence[Window],
    slots: int,
    drafter: Drafter | None = None,
    draft: Model | None = None,
    then: Callable[[int, Answer], Request | None] = lambda *_: None,
    timed: bool = True,
) -> tuple[list[Decoded], SpeculativeRunner]:
    """Windows decoded with a drafter: all texts, and the runner. draft: the model of the drafter.
    timed: whether times decide on draft lengths.
    """

    def make(*arguments: Any) -> Drafter:
        return drafter or DraftModel(draft or model, model, *arguments)

    engine = Engine(model, slots, draft=partial(SpeculativeRunner, make_drafter=make))
    (runner,) = engine.group_runners
    assert isinstance(runner, SpeculativeRunner)
    runner.draft_lengths.timed &= timed
    runner.draft_lengths.cost = 0.01
    done = run(engine, dict(enumerate(windows)), then)
    answers = [done[i][0] for i in range(len(done))]
    return [answer for answer in answers if isinstance(answer, Decoded)], runner


@pytest.mark.parametrize(
    "wrong",
    [
        lambda text, index: False,
        lambda text, index: True,
        lambda text, index: (text + index) % 3 == 0,
        lambda text, index: text % 2 == 0,
    ],
    ids=["never", "always", "at times", "some"],
)
def test_the_same_texts_wherever_it_is_wrong(
    model: Model, windows: list[Window], plain: list[Decoded], wrong: Callable[[int, int], bool]
) -> None:
    """Beside a text whose guesses are never right, the others end as early as without it."""
    done: list[int] = []
    guesses = Guesses(windows, plain, wrong)
    texts, runner = speculate(
        model, windows, 3, guesses, timed=False, then=lambda tag, _: done.append(tag)
    )
    assert_same(texts, plain)
    every = [wrong(t, i) for t in range(6) for i in range(LENGTH)]
    assert runner.drafted and runner.accepted <= runner.drafted
    if not any(every):
        assert runner.accepted == runner.drafted
        tokens = sum(len(p.tokens) for p in plain)
        assert runner.drafted_steps < tokens / 3 / (MAX_DRAFT / 2)
    elif wrong(0, 1) and not wrong(1, 1):
        assert done[0] == 1


@pytest.mark.parametrize("forms", [("e", "x"), ("kv", "x"), ("k", "k"), ("hybrid", "x")])
def test_a_model_drafts_on_the_same_encoder_output(
    forms: tuple[str, str], model: Model, windows: list[Window]
) -> None:
    """Of the same weights, it is right: its cache follows the text, lengths and moves. Where the
    model does not keep the output, it does.
    """
    other = model if forms == ("e", "x") else short_model(forms=forms)
    expected = decode(other, windows, 2)
    texts, runner = speculate(other, windows, 2, draft=model)
    assert_same(texts, expected)
    drafter = runner.drafter
    assert runner.accepted > 0.9 * runner.drafted > 0 and isinstance(drafter, DraftModel)
    cross = drafter.cache.cross
    if other is model:
        assert runner.accepted == runner.drafted and not cross.stores
    else:
        assert cross.layers[0].store is runner.cache.cross.stores[-1], "put with the model's"


def test_texts_of_seeds_and_up_to_the_last_token_of_the_context(model: Model) -> None:
    """The draft draws with the same numbers."""
    long = tuple(range(1000, 1000 + SHORT.n_text_ctx - 9))
    full = [replace(w, prompt=(*long, *w.prompt[-2:])) for w in short_windows(2, 20)]
    for asked in (short_windows(6, 20, (0.7, 0.0, 1.0)), full):
        expected = decode(model, asked, 3)
        texts, runner = speculate(model, asked, 3)
        assert_same(texts, expected)
        assert runner.accepted == runner.drafted > 0
    lengths = [len(w.prompt) + len(d.tokens) for w, d in zip(full, expected, strict=True)]
    assert max(lengths) == SHORT.n_text_ctx + 1


def test_log_probabilities_and_an_expected_text(
    model: Model, windows: list[Window], plain: list[Decoded]
) -> None:
    requests = [
        replace(w, logprobs=True, draft=p.tokens[: 3 * i])
        for i, (w, p) in enumerate(zip(windows, plain, strict=True))
    ]
    expected = decode(model, [replace(w, logprobs=True) for w in windows], 3)
    found, _ = speculate(model, requests, 3)
    for i, (decoded, other) in enumerate(zip(found, expected, strict=True)):
        assert decoded.tokens == other.tokens and decoded.drafted == min(3 * i, len(other.tokens))
        assert decoded.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_what_may_draft(model: Model) -> None:
    target = replace(random_checkpoint(SHORT), name="large.pt")
    state, fewer = target.state, replace(SHORT, n_text_layer=1)
    kept = {k: v for k, v in state.items() if "blocks.1." not in k or k.startswith("encoder")}
    draft = replace(target, name="small.pt", dims=fewer, state=kept)
    drafter_model = load_draft(draft, target, model)
    assert drafter_model.encoder is model.encoder and drafter_model.dims.n_text_layer == 1
    assert drafter_model.int8 and not model.int8, "guesses need not be exact"
    other = load_draft(draft, target, short_model(forms=("kv", "x")))
    assert [*map(str, other.forms)] == ["e", "x"]
    name = "encoder.ln_post.weight"
    wide = replace(tiny_dims(text_layers=1), n_audio_ctx=SHORT.n_audio_ctx)
    for wrong, forms, message in (
        (replace(draft, state=kept | {name: state[name] + 1}), ("e", "x"), r"small.*ln_post"),
        (replace(draft, dims=wide), ("e", "x"), "vocabulary"),
        (replace(draft, dims=replace(fewer, n_audio_layer=3)), ("e", "x"), "n_audio_layer"),
        (draft, ("sparse", "x"), "cross_cache e"),
    ):
        with pytest.raises(OptionError, match=message):
            load_draft(wrong, target, model if forms[0] == "e" else short_model(forms=forms))


# -- how many tokens are drafted ------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("cost", [0.3, 1.0])
def test_it_finds_the_best_length(rate: float, cost: float) -> None:
    """From the measured times of steps alone; none, where drafts do not pay."""
    seconds = {k: 1 + cost * k for k in (0, 1, 2, 3, 5, 7)}
    speed = {k: float(expected_tokens(np.array([rate]), k) / seconds[k]) for k in seconds}
    lengths, chosen = DraftLengthController(0.1, timed=True), []
    for _ in range(200):
        length = lengths.choose(np.array([rate]), 7)
        lengths.record(1, length, seconds[length])
        chosen.append(length)
    assert chosen[: len(TIMED_FIRST)] == list(TIMED_FIRST)
    assert np.mean([speed[k] for k in chosen[50:]]) > 0.95 * max(speed.values())


def test_one_slow_step_is_not_held_against_a_length_for_ever() -> None:
    lengths, rates, chosen = DraftLengthController(0.1, timed=True), np.array([0.9]), []
    for step in range(800):
        length = lengths.choose(rates, 3)
        slow = 5 if length == 3 and step < 10 else 1  # other work on the machine
        lengths.record(1, length, slow * (1 + 0.05 * length))
        chosen.append(length)
    assert 3 not in chosen[20:40]
    assert chosen[-50:].count(3) > 40


def test_without_times_the_cost_decides() -> None:
    cheap, dear = DraftLengthController(0.01, timed=False), DraftLengthController(2.0, timed=False)
    assert cheap.choose(np.array([0.9]), 7) == cheap.choose(np.array([0.9] * 7), 7) == 7
    assert cheap.choose(np.array([0.9]), 3) == 2, "as many as there is room for"
    assert dear.choose(np.array([0.9]), 7) == 0


# -- the option -----------------------------------------------------------------------------------


def test_beams_and_drafts() -> None:
    """No beams by default; those that are asked for are refused later, with a reason."""
    for more, beams in (([], 5), (["--draft", "x"], None), (["--draft=x", "--beam_size=3"], 3)):
        arguments = build_parser().parse_args(["transcribe", "a.wav", "--model", "digits", *more])
        assert options_of(arguments).get("beam_size") == beams


def test_a_draft_of_fewer_layers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its guesses are often wrong; the text is the model's own, and so are its words' times."""
    model, plain = with_draft(tmp_path), slimwhisper.load_model("digits")
    options: dict[str, Any] = {"temperature": 0.0, "word_timestamps": True}
    assert not differences(model.transcribe(DOOR, **options), plain.transcribe(DOOR, **options))
    runner = model.transcriber.engines[-1].group_runners[0]
    assert isinstance(runner, SpeculativeRunner) and runner.drafted
    with caplog.at_level("WARNING", logger="slimwhisper"):
        engines = [make_engine(model.network, Search(), slots) for slots in (7, 8, 8)]
    drafted = [isinstance(engine.group_runners[0], SpeculativeRunner) for engine in engines]
    assert drafted == [True, False, False]
    assert caplog.text.count("batch_size 8: ") == 1 and "draft.pt" in caplog.text
    with pytest.raises(OptionError, match=r"beams: .*draft\.pt"):
        model.transcribe(DOOR, beam_size=2)
    with pytest.raises(CheckpointError, match="downloads are off"):
        slimwhisper.load_model("digits", draft="no-one/no-model", local_files_only=True)
    other = torch.load(tmp_path / "draft.pt", weights_only=True)
    other["model_state_dict"]["encoder.conv1.bias"] += 1
    torch.save(other, tmp_path / "other.pt")
    with pytest.raises(OptionError, match=r"conv1\.bias"):
        slimwhisper.load_model("digits", draft=tmp_path / "other.pt")
