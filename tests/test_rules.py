"""The vectorised logit rules against openai-whisper's own filters, one row at a time."""

import pytest
import torch
from checkpoints import tiny_dims
from whisper.decoding import ApplyTimestampRules, SuppressBlank, SuppressTokens

from slimwhisper.errors import OptionError
from slimwhisper.rules import TimestampState, apply_timestamp_rules, choose_greedily, suppress
from slimwhisper.types import Options
from slimwhisper.vocabulary import (
    get_tokenizer,
    get_vocabulary,
    language_code,
    make_rules,
    suppressed_tokens,
)

DIMS = tiny_dims()
TOKENIZER = get_tokenizer(DIMS)
VOCABULARY = get_vocabulary(DIMS)
BEGIN = VOCABULARY.timestamp_begin


def sampled_sequences() -> list[list[int]]:
    """What rows may have sampled: none, text, one stamp, pairs, stamps and text in turn."""
    text, stamp = 100, BEGIN
    return [
        [],
        [stamp + 0],
        [stamp + 3, stamp + 3],
        [text],
        [text, text],
        [stamp + 3, text],
        [stamp + 3, text, stamp + 40],
        [stamp + 3, text, stamp + 40, stamp + 40],
        [stamp + 3, text, stamp + 40, stamp + 41, text],
        [text, stamp + 1500],
        [stamp, text, stamp + 1499, stamp + 1499],
        [text, text, stamp + 7, text],
    ]


def state_of(sequences: list[list[int]], limit: int, enabled: list[bool]) -> TimestampState:
    """Rows advanced one token at a time, as the engine does it."""
    state = TimestampState.allocate(len(sequences), torch.device("cpu"))
    for row, sequence in enumerate(sequences):
        state.start(row, enabled[row], limit)
        for token in sequence:
            state.view(slice(row, row + 1)).advance(torch.tensor([token]), BEGIN)
    return state


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("stamp_bonus", [0.0, 4.0, -4.0])
def test_timestamp_rules_are_whispers(seed: int, stamp_bonus: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    sequences = sampled_sequences()
    logits = torch.randn(len(sequences), VOCABULARY.size, generator=generator) * 3
    logits[:, BEGIN:] += stamp_bonus
    expected = logits.clone()
    begin = 3
    reference = ApplyTimestampRules(TOKENIZER, begin, max_initial_timestamp_index=50)
    for row, sequence in enumerate(sequences):
        tokens = torch.tensor([[TOKENIZER.sot] * begin + sequence])
        reference.apply(expected[row : row + 1], tokens)
    apply_timestamp_rules(logits, state_of(sequences, 50, [True] * len(sequences)), VOCABULARY)
    assert torch.equal(logits, expected)
    assert torch.isneginf(expected).any(dim=1).all()


def test_rows_without_timestamps_are_left_alone() -> None:
    sequences = sampled_sequences()
    logits = torch.randn(
        len(sequences), VOCABULARY.size, generator=torch.Generator().manual_seed(0)
    )
    before = logits.clone()
    enabled = [i % 2 == 0 for i in range(len(sequences))]
    apply_timestamp_rules(logits, state_of(sequences, 50, enabled), VOCABULARY)
    for row, on in enumerate(enabled):
        assert torch.equal(logits[row], before[row]) == (not on)


@pytest.mark.parametrize("wanted", ["-1", "", None, "5,6", (7, 8), "-1,9"])
def test_suppressed_tokens_are_whispers(wanted: str | tuple[int, ...] | None) -> None:
    rules = make_rules(TOKENIZER, DIMS, Options(suppress_tokens=wanted))
    logits = torch.zeros(1, VOCABULARY.size)
    suppress(logits, rules.suppress)
    expected = torch.zeros(1, VOCABULARY.size)
    if wanted:
        from whisper.decoding import DecodingOptions, DecodingTask
        from whisper.model import ModelDimensions, Whisper

        dims = ModelDimensions(80, 1500, 8, 1, 0, DIMS.n_vocab, 8, 8, 1, 0)
        given = wanted if isinstance(wanted, str) else list(wanted)
        task = DecodingTask(Whisper(dims), DecodingOptions(suppress_tokens=given, language="en"))
        for logit_filter in task.logit_filters:
            if isinstance(logit_filter, SuppressTokens):
                logit_filter.apply(expected, torch.zeros(1, 1))
    assert torch.equal(logits, expected)


def test_blank_is_whispers() -> None:
    rules = make_rules(TOKENIZER, DIMS, Options())
    logits, expected = torch.zeros(1, VOCABULARY.size), torch.zeros(1, VOCABULARY.size)
    suppress(logits, rules.suppress_first)
    SuppressBlank(TOKENIZER, 0).apply(expected, torch.zeros(1, 0))
    assert torch.equal(logits, expected)
    assert not make_rules(TOKENIZER, DIMS, Options(suppress_blank=False)).suppress_first.any()


def test_greedy_choice_and_its_probability() -> None:
    logits = torch.randn(5, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[2, :50] = float("-inf")
    tokens, logprobs = choose_greedily(logits)
    expected = logits.log_softmax(dim=-1).max(dim=-1)
    assert torch.equal(tokens, expected.indices)
    torch.testing.assert_close(logprobs, expected.values)


@pytest.mark.parametrize("wanted", ["a,b", "999999", "-2", (60_000,)])
def test_bad_suppress_tokens(wanted: str | tuple[int, ...]) -> None:
    with pytest.raises(OptionError, match="suppress_tokens") as caught:
        suppressed_tokens(TOKENIZER, wanted)
    assert "\n" not in str(caught.value)


def test_languages_by_code_and_name() -> None:
    assert language_code("de", DIMS) == language_code("German", DIMS) == "de"
    assert language_code("en", tiny_dims(multilingual=False)) == "en"
    with pytest.raises(OptionError, match="did you mean"):
        language_code("Germann", DIMS)
    with pytest.raises(OptionError, match="English-only"):
        language_code("de", tiny_dims(multilingual=False))
    with pytest.raises(OptionError, match="not in this model"):
        language_code("Cantonese", DIMS)  # large-v3's vocabulary has it
