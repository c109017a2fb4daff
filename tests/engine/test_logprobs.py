"""Each token's log-probability, against whole texts read at once by openai-whisper in float64."""

from dataclasses import replace

import pytest
import torch
from whisper.decoding import ApplyTimestampRules, SuppressBlank, SuppressTokens

from slimwhisper.engine.requests import Decoded, Search, Window
from slimwhisper.model.model import Model
from tests.support.few_tokens import random_checkpoint
from tests.support.reference import whisper_logits, whisper_model
from tests.support.windows import SEARCHES, SHORT, TOKENIZER, decode, short_windows


@pytest.fixture(scope="module")
def reference():
    return whisper_model(SHORT, random_checkpoint(SHORT).state, torch.float64)


def teacher_forced(reference, window: Window, decoded: Decoded, urge: float = 0.0) -> list[float]:
    """What the rules leave of each token's probability, and of <|endoftext|>'s if it was reached;
    the filters are openai-whisper's, one step at a time. urge: added to <|endoftext|>'s logit.
    """
    rules, prompt = window.rules, list(window.prompt)
    assert rules is not None and window.mel is not None
    filters = [SuppressBlank(TOKENIZER, len(prompt)), SuppressTokens(rules.suppress.tolist())]
    if rules.timestamps:
        limit = rules.max_initial_timestamp
        filters.append(ApplyTimestampRules(TOKENIZER, len(prompt), limit))
    with torch.no_grad():
        features = reference.encoder(window.mel.double()[None])[0]
    text = [*decoded.tokens, TOKENIZER.eot]
    logits = whisper_logits(reference, [*prompt, *text[:-1]], features)
    found = []
    for i, token in enumerate(text[: len(decoded.logprobs)]):
        row = logits[len(prompt) - 1 + i][None].clone()
        row[0, TOKENIZER.eot] += urge
        before = torch.tensor([[*prompt, *text[:i]]])
        for rule in filters:
            rule.apply(row, before)
        found.append(float(row.log_softmax(-1)[0, token]))
    return found


@pytest.mark.parametrize("urge", [0.0, 16.0])
@pytest.mark.parametrize(("search", "temperatures"), SEARCHES)
def test_each_is_what_the_rules_leave_of_the_model(
    model: Model,
    reference,
    search: Search | None,
    temperatures: tuple[float, ...],
    urge: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a text counts too, once, also if it is seen later: random models do not end
    theirs, unless they are urged to.
    """
    plain_logits = model.decoder.logits

    def urged(hidden: torch.Tensor) -> torch.Tensor:
        logits = plain_logits(hidden)
        logits[..., TOKENIZER.eot] += urge
        return logits

    monkeypatch.setattr(model.decoder, "logits", urged)
    plain = short_windows(4, None, temperatures)
    # one does not ask: its neighbours' answers do not depend on it, nor its own on theirs
    asked = [replace(w, logprobs=i != 1) for i, w in enumerate(plain)]
    found, others = (decode(model, windows, 3, search, 9) for windows in (asked, plain))
    for window, ours, other in zip(asked, found, others, strict=True):
        assert (ours.tokens, ours.avg_logprob) == (other.tokens, other.avg_logprob)
        assert other.logprobs == ()
        if not window.logprobs:
            assert ours.logprobs == ()
            continue
        assert len(ours.logprobs) - len(ours.tokens) in (0, 1)
        assert sum(ours.logprobs) == pytest.approx(ours.avg_logprob * (len(ours.tokens) + 1), 1e-5)
        expected = teacher_forced(reference, window, ours, urge)
        assert ours.logprobs == pytest.approx(expected, abs=2e-4)
    assert any(len(d.logprobs) > len(d.tokens) for d in found) or not urge
