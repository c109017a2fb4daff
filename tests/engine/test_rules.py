"""The vectorised logit rules against openai-whisper's own filters, one row at a time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from whisper.decoding import ApplyTimestampRules, SuppressBlank, SuppressTokens

from slimwhisper.engine.filters import (
    NEVER,
    WIDTH,
    Suppression,
    Texts,
    Timestamps,
    apply_timestamp_rules,
)
from slimwhisper.engine.sampling import fastest, make_draws, uniform, waiting_times
from slimwhisper.kernels.cpu.library import NATIVE, Library, library
from slimwhisper.kernels.dispatch import Kernels
from slimwhisper.longform.requests import make_rules
from slimwhisper.options import Options
from slimwhisper.tokens.encoding import OTHER_NAMES
from slimwhisper.tokens.options import numerals, suppressed_tokens
from slimwhisper.tokens.vocabulary import Vocabulary, get_tokenizer, get_vocabulary, language_code
from tests.support.checkpoints import tiny_dims
from tests.support.fuzz import examples

DIMS = tiny_dims()
TOKENIZER = get_tokenizer(DIMS)
VOCABULARY = get_vocabulary(DIMS)
BEGIN = VOCABULARY.timestamps.start
STAMPS = Timestamps(1, VOCABULARY, torch.device("cpu"))
BEHIND = replace(  # 35 words that a fine-tune added
    VOCABULARY,
    size=DIMS.n_vocab + 35,
    texts=(*VOCABULARY.texts, range(DIMS.n_vocab, DIMS.n_vocab + 35)),
)


@st.composite
def sequences(draw: st.DrawFn) -> list[int]:
    """What a row may have sampled: text and stamps in any order, most of them no model's own.

    Stamps do not decrease; of others whisper only looks at the last.
    """
    at, sequence = 0, list[int]()
    for more in draw(st.lists(st.none() | st.sampled_from([0, 0, 1, 3, 40, 700]), max_size=9)):
        at = min(1500, at + (more or 0))
        sequence.append(100 if more is None else BEGIN + at)
    return sequence


State = tuple[torch.Tensor, ...]


def state_of(rows: Sequence[list[int]], limit: int, enabled: Sequence[bool]) -> State:
    """Of `apply_timestamp_rules`; rows advanced one token at a time, as the engine does it."""
    states: list[State] = []
    for sequence, on in zip(rows, enabled, strict=True):
        rules = replace(make_rules(DIMS, Options()), timestamps=on, max_initial_timestamp=limit)
        state: State = tuple(torch.tensor([*t]) for t in STAMPS.along(rules, ()))
        for token in sequence:
            state = STAMPS.after(state, torch.tensor([token]))
        states.append((*state, torch.tensor([len(sequence)])))
    return tuple(torch.cat(t) for t in zip(*states, strict=True))


@examples(80)
@given(
    rows=st.lists(st.tuples(sequences(), st.booleans()), min_size=1, max_size=12),
    limit=st.sampled_from([50, None]),
    bonus=st.sampled_from([0.0, 4.0, -4.0]),
    behind=st.booleans(),
    seed=st.integers(0, 99),
)
def test_timestamp_rules_are_whispers(
    rows: list[tuple[list[int], bool]], limit: int | None, bonus: float, behind: bool, seed: int
) -> None:
    """Rows without them are left alone. Words behind the timestamps are text, as if they stood
    before <|endoftext|>: whisper's filter, with the columns in that order.
    """
    vocabulary = BEHIND if behind else VOCABULARY
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), vocabulary.size, generator=generator) * 3
    logits[:, BEGIN : DIMS.n_vocab] += bonus
    more = vocabulary.size - DIMS.n_vocab
    logits[::2, DIMS.n_vocab :] += 6
    logits[:, :more] = NEVER  # in the reference's place of the words behind
    before = logits.clone()
    moved = torch.cat([logits[:, DIMS.n_vocab :], logits[:, more : DIMS.n_vocab]], dim=1)
    reference = ApplyTimestampRules(TOKENIZER, 1, max_initial_timestamp_index=limit)
    for row, (sequence, _) in enumerate(rows):
        reference.apply(moved[row : row + 1], torch.tensor([[TOKENIZER.sot, *sequence]]))
    latest = VOCABULARY.size if limit is None else limit
    texts, enabled = zip(*rows, strict=True)
    apply_timestamp_rules(logits, state_of(texts, latest, enabled), vocabulary)
    for row, on in enumerate(enabled):
        expected = torch.cat([moved[row, more:], moved[row, :more]]) if on else before[row, more:]
        assert torch.equal(logits[row, more:], expected)


def test_a_word_behind_the_timestamps_is_no_timestamp() -> None:
    stamps, word = Timestamps(1, BEHIND, torch.device("cpu")), torch.tensor([BEHIND.texts[1].start])
    *_, last, before_last, latest, _ = state_of([[BEGIN + 3]], 50, [True])
    _, _, *state = stamps.after((last, last, last, before_last, latest), word)
    assert [t.item() for t in state] == [False, True, 3]


@pytest.mark.parametrize("wanted", ["-1", "", None, "5,6", (7, 8), "-1,9"])
def test_suppressed_tokens_are_whispers(wanted: str | tuple[int, ...] | None) -> None:
    rules = make_rules(DIMS, Options(suppress_tokens=wanted))
    logits = torch.zeros(1, VOCABULARY.size)
    logits.index_fill_(-1, rules.suppress, NEVER)
    expected = torch.zeros(1, VOCABULARY.size)
    if wanted:
        from whisper.decoding import DecodingOptions, DecodingTask
        from whisper.model import ModelDimensions, Whisper

        dims = ModelDimensions(80, 1500, 8, 1, 0, DIMS.n_vocab, 8, 8, 1, 0)
        given = wanted if isinstance(wanted, str) else list(wanted)
        task = DecodingTask(Whisper(dims), DecodingOptions(suppress_tokens=given, language="en"))
        SuppressTokens(task._get_suppress_tokens()).apply(expected, torch.zeros(1, 1))
    assert torch.equal(logits, expected)


def test_numerals_are_suppressed_by_name() -> None:
    found, known = suppressed_tokens(VOCABULARY, "-1, numerals"), set(numerals(VOCABULARY))
    assert found == suppressed_tokens(VOCABULARY, (-1, "numerals"))
    assert set(found) == {*known, *suppressed_tokens(VOCABULARY, "-1")}
    for text in (" 7", "5", " 1984", "%", " £", " 日3"):
        assert set(TOKENIZER.encode(text)) & known, text
    for text in (" seven", "a", " per cent"):
        assert not set(TOKENIZER.encode(text)) & known, text


def test_every_row_has_its_own_banned_tokens() -> None:
    banned = Suppression(2, VOCABULARY, torch.device("cpu"))
    few, many = (
        replace(make_rules(DIMS, Options()), suppress=torch.tensor(tokens))
        for tokens in ([4, 1], [5] * (WIDTH + 1))
    )
    assert [banned.prepare([r]) for r in (few, many, many)] == [False, True, False]
    assert [t.shape for t in banned.state] == [(2, 2 * WIDTH)] * 2, "a power of two"
    states = zip(*([t[-1] for t in banned.along(r, (7,))] for r in (few, many)), strict=True)
    logits, none = torch.zeros(2, 8), torch.zeros(0)
    texts = Texts(none, none, {banned: tuple(torch.tensor(np.stack(t)) for t in states)})
    banned.apply(logits, texts, True)
    assert [row.isinf().nonzero().flatten().tolist() for row in logits] == [[1, 4], [5]]


@pytest.mark.parametrize(("seconds", "tokens"), [(1.0, 50), (0.5, 25), (0.0, None), (None, None)])
def test_the_largest_first_timestamp(seconds: float | None, tokens: int | None) -> None:
    """Counted from <|0.00|>; 0 is no limit, as in whisper."""
    rules = make_rules(DIMS, Options(max_initial_timestamp=seconds))
    assert rules.max_initial_timestamp == tokens


def sample(logits: torch.Tensor, heat: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return fastest(logits, heat, waiting_times(keys, logits.shape[1]))


def test_blank_is_whispers() -> None:
    rules = make_rules(DIMS, Options())
    logits, expected = torch.zeros(1, VOCABULARY.size), torch.zeros(1, VOCABULARY.size)
    logits.index_fill_(-1, rules.suppress_first, NEVER)
    SuppressBlank(TOKENIZER, 0).apply(expected, torch.zeros(1, 0))
    assert torch.equal(logits, expected)
    assert not make_rules(DIMS, Options(suppress_blank=False)).suppress_first.any()


def test_numbers_are_splitmix64s() -> None:
    """The first numbers that its reference implementation gives for the seed 1234567."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    seed, counts = torch.tensor(1234567), torch.arange(1, 4)
    found = (uniform(seed, counts, 53, torch.float64) * 2**53).tolist()
    assert found == pytest.approx([n >> 11 for n in expected], abs=1, rel=0)
    few = (uniform(seed, counts, 23, torch.float32) * 2**23 - 0.5).tolist()
    assert few == [n >> 41 for n in expected]
    many = uniform(torch.arange(4)[:, None], torch.arange(1, 100_001), 53, torch.float64)
    assert float(many.min()) > 0 and float(many.max()) < 1
    assert many.mean(dim=1).tolist() == pytest.approx([0.5] * 4, abs=4e-3)


def test_samples_follow_the_distribution() -> None:
    """Chi-square of 40,000 draws, with the seed given: 13 degrees of freedom, 1 in 1000 above."""
    logits = torch.randn(16, generator=torch.Generator().manual_seed(3), dtype=torch.float32)
    logits[[4, 9]] = float("-inf")
    draws = 40_000
    keys = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, draws))
    for temperature in (0.2, 1.0):
        heat = torch.full((draws,), temperature)
        tokens = sample(logits.expand(draws, -1), heat, keys)
        counts = tokens.bincount(minlength=16).double()
        expected = (logits.double() / temperature).softmax(dim=-1) * draws
        assert not counts[[4, 9]].any()
        usual = expected > 5
        assert counts[~usual].sum() < 30
        chi_square = ((counts - expected)[usual] ** 2 / expected[usual]).sum()
        assert chi_square < 34.5


def test_rounding_does_not_change_a_sample() -> None:
    """Logits of a vocabulary's size, changed as another batch size would change them."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 51_865, generator=generator)
    noise = torch.randn(64, 51_865, generator=generator) * 1e-6
    keys = torch.randint(2**62, (64,), generator=generator)
    heat = torch.ones(64)
    assert torch.equal(sample(logits, heat, keys), sample(logits + noise, heat, keys))


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("en", "en EN en-US en_GB en_US.UTF-8 en.UTF-8 eng English english(US) <|en|>"),
        ("de", "de-CH DE_de deu ger German Deutsch gsw-CH"),
        ("zh", "zh-CN zh-Hant-TW zho chi cmn-Hans-CN Mandarin"),
        ("es", "spa es-419 Castilian"),
        ("he", "iw iw-IL heb <|iw|>"),
        ("jw", "jw jv jav <|jv|> Javanese"),
        ("no", "nb nb-NO nob nor"),
        ("fa", "fas per farsi prs"),
        ("haw", "haw haw-US Hawaiian"),
    ],
)
def test_languages_by_code_name_and_tag(code: str, names: str) -> None:
    for name in names.split():
        assert language_code(name, VOCABULARY) == code, name
        assert language_code(f" {name} ", VOCABULARY) == code, name


def test_every_language_has_its_own_codes_of_three_letters() -> None:
    """Of ISO 639, as `transformers` and files of films name them; none of two languages."""
    from whisper.tokenizer import LANGUAGES

    rows = [row.split() for row in OTHER_NAMES.strip().replace("|", "\n").splitlines()]
    names = [name for _, *others in rows for name in others]
    assert len(names) == len({*names}) and not {*names} & {*LANGUAGES}
    assert {code for code, *_ in rows} | {"haw", "yue"} == {*LANGUAGES}
    assert all(any(len(name) == 3 for name in others) for _, *others in rows)


def test_a_models_own_code_comes_first() -> None:
    known = replace(VOCABULARY, languages={1: "nb", 2: "zh-TW", 3: "zh"})
    assert language_code("nb", known) == "nb" and language_code("zh_tw", known) == "zh"
    assert language_code("ZH-tw", known) == "zh-TW" and language_code("zh-CN", known) == "zh"


SAMPLED = [
    *([], [BEGIN], [BEGIN + 3] * 2, [100], [100] * 2, [BEGIN + 3, 100]),
    *([BEGIN + 3, 100, BEGIN + 40], [BEGIN + 3, 100, *[BEGIN + 40] * 2], [100, BEGIN + 1500]),
    *([BEGIN + 3, 100, BEGIN + 40, BEGIN + 41, 100], [BEGIN, 100, *[BEGIN + 1499] * 2]),
]


CASES = [
    (VOCABULARY, True, 4.0),
    (VOCABULARY, True, -4.0),
    (BEHIND, True, 4.0),
    (BEHIND, False, 0.0),
]
Case = tuple[Vocabulary, bool, float]


def texts_and_logits(
    vocabulary: Vocabulary, rules: bool, stamp_bonus: float, device: torch.device
) -> tuple[Timestamps, Texts, torch.Tensor]:
    """Every state, rows without timestamps, strides, logits that are all banned on one side."""
    generator, rows = torch.Generator().manual_seed(0), len(SAMPLED)
    enabled = [rules and i % 5 != 4 for i in range(rows)]
    *state, counts = (t.to(device) for t in state_of(SAMPLED, 50, enabled))
    stamps = Timestamps(1, vocabulary, device)
    texts = Texts(counts, counts, {stamps: tuple(state)} if rules else {})
    wide = torch.randn(rows, vocabulary.size + 7, generator=generator).to(device) * 3
    logits = wide[:, : vocabulary.size]
    logits[:, BEGIN:] += stamp_bonus
    logits[:, 50:90] = float("-inf")
    logits[3, :BEGIN] = float("-inf")
    logits[6:9, DIMS.n_vocab :] += 9  # words behind the timestamps, if there are any
    logits[5, 7] = logits[5, 8] = 40.0  # the first of equals
    return stamps, texts, logits


@pytest.mark.filterwarnings("ignore:divide by zero")  # the interpreter's log(0)
@pytest.mark.parametrize("path", ["triton", "c"])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_chooses_as_the_rules_do(case: Case, path: str) -> None:
    if path == "c" and library() is None:
        pytest.skip("kernels/cpu is not compiled here")
    gpu = path == "triton" and torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    stamps, texts, logits = texts_and_logits(*case, device)
    plain = Kernels(device, torch.float32, "torch")
    expected = stamps.choose(logits.clone(), texts, plain)
    kernels = Kernels(device, torch.float32, "triton" if path == "triton" else "auto")
    tokens, logprobs = stamps.choose(logits, texts, kernels)
    assert torch.equal(tokens, expected[0])
    torch.testing.assert_close(logprobs, expected[1])
    assert dict(kernels.used) == {("choose_token", path): 1}
    assert dict(plain.used) == {("choose_token", "torch"): 1}


@pytest.mark.skipif(library() is None, reason="kernels/cpu is not compiled here")
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_draws_and_ranks_as_the_rules_do(
    case: Case, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many keys, beside rows without; and several tokens, by bonuses, too. Where fewer are
    allowed, the rest is impossible; of a row of NaN, all are NaN.
    """
    compiled = Library(NATIVE, wide)
    monkeypatch.setattr("slimwhisper.kernels.dispatch.library", lambda _: compiled)
    cpu, generator = torch.device("cpu"), torch.Generator().manual_seed(1)
    stamps, texts, logits = texts_and_logits(*case, cpu)
    kernels, plain = (Kernels(cpu, torch.float32, choice) for choice in ("auto", "torch"))
    rows = len(logits)
    heat = torch.tensor([0, 0.2, 0.4, 1.0]).repeat(rows)[:rows]
    ids = heat.nonzero().flatten()
    for _ in range(40):
        keys = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
        tokens, logprobs = stamps.choose(logits, texts, kernels, draws=make_draws(heat, keys, ids))
        expected = stamps.choose(logits.clone(), texts, plain, draws=make_draws(heat, keys, ids))
        assert torch.equal(tokens, expected[0])
        torch.testing.assert_close(logprobs, expected[1])
    bonuses = torch.randn(logits.shape, generator=generator)
    for ranking in (None, logits + bonuses):
        tokens, logprobs = stamps.choose(logits, texts, kernels, 6, ranking=ranking)
        expected = stamps.choose(logits.clone(), texts, plain, 6, ranking=ranking)
        torch.testing.assert_close(logprobs, expected[1])
        certain = logprobs.isfinite()
        certain[5, :2] = False  # equals, in any order
        assert torch.equal(tokens[certain], expected[0][certain]) and certain.sum() > 4 * rows
    logits[0] = float("nan")
    for count in (1, 6):
        _, logprobs = stamps.choose(logits, texts, kernels, count)
        assert logprobs[0].isnan().all() and not logprobs[1:].isnan().any()
    assert set(kernels.used) == {("choose_token", "c")}
