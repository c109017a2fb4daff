"""Hot words against their definition: phrases compared with the whole text at every step."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slimwhisper.engine.filters import Filters, Texts
from slimwhisper.engine.sampling import make_draws
from slimwhisper.hot_words.filter import HotWordFilter, hot_words
from slimwhisper.kernels.dispatch import Kernels
from tests.support.fuzz import examples
from tests.support.plain_text import SIZE, Phrases
from tests.support.windows import CPU, VOCABULARY, rules_of

# phrases that begin, end and continue one another, and one with its own bonus
TANGLED = (
    *("new york", "new york city", "york city hall", "city", "hall of york\t3.5", "new new york"),
    *("art of the deal", "the deal", "of the", "東京", "東京都", "AT&T", "o'neil"),
)
PHRASES = Phrases(TANGLED, 2.0)
OTHERS = (VOCABULARY.eot, VOCABULARY.timestamps.start, 300, 301, 318)
NEAR = [*PHRASES.tokens, *OTHERS]
PARTS = st.sampled_from([s.tokens for s in PHRASES.spelled]) | st.tuples(st.sampled_from(NEAR))


def start(text: Sequence[int]) -> tuple[HotWordFilter, tuple[Tensor, ...]]:
    """A filter, and the state of a text that begins with some tokens."""
    made, rules = HotWordFilter(1, VOCABULARY, CPU), rules_of(hot_words=TANGLED)
    assert made.prepare([rules])
    return made, tuple(torch.tensor(np.asarray(t)[-1:]) for t in made.along(rules, text))


@examples(40)
@given(st.lists(PARTS, min_size=1, max_size=6))
def test_gains_are_those_of_the_definition(parts: list[tuple[int, ...]]) -> None:
    """Texts of the phrases' own tokens, so that phrases begin, break off and overlap."""
    (rows, state), gained, text = start(()), 0.0, list[int]()
    for token in [token for part in parts for token in part]:
        every = [PHRASES.gain(text, t) for t in NEAR]
        found = rows.gained(state, torch.tensor([NEAR]))[0] - state[1]
        assert found.tolist() == pytest.approx(every, abs=1e-4), text[-6:]
        boosted = torch.zeros(1, SIZE, dtype=torch.float64)
        lost = PHRASES.open_points(text)
        boosted[0, NEAR] = torch.tensor(every).double() + lost
        for logits in (torch.zeros(1, SIZE).double(), torch.zeros(1, SIZE)):
            assert torch.allclose(rows.boosted(state, logits), boosted.to(logits.dtype))
        gained += PHRASES.gain(text, token)
        rows.state = state = rows.after(state, torch.tensor([token]))
        text.append(token)
        assert float(state[1]) == pytest.approx(gained, abs=1e-2)
        safe = gained - PHRASES.open_points(text)
        assert float(rows.kept(slice(0, 1))) == pytest.approx(safe, abs=1e-2)
        assert safe > -1e-6
    words = hot_words(VOCABULARY, TANGLED, 2.0)
    assert int(state[0]) - 2 == words.walk(text)[-1] == int(start(text)[1][0]) - 2


@pytest.mark.parametrize("path", ["auto", "torch"])
def test_a_banned_timestamp_leaves_the_draws_alone(path: str) -> None:
    """A third one in a row, far above all text: C leaves it in the logits."""
    rules, begin = rules_of(hot_words=TANGLED), VOCABULARY.timestamps.start
    filters = Filters(1, VOCABULARY, CPU, Kernels(CPU, torch.float32, path))
    filters.prepare([rules])
    in_use, text = filters.in_use([rules]), (begin + 3, 300, begin + 10, begin + 10)
    state = {f: tuple(torch.tensor(t[-1:]) for t in f.along(rules, text)) for f in in_use}
    texts = Texts(torch.zeros(1, 9, dtype=torch.int64), torch.tensor([4]), state)
    logits = torch.full((1, SIZE), -8.0)
    logits[0, 1000:1004], logits[0, begin + 20] = 0, 30
    for key in range(9):
        draws = make_draws(torch.tensor([0.2]), torch.tensor([key]), torch.tensor([0]))
        (token,), _ = filters.choose(in_use, logits.clone(), texts, draws)
        assert int(token) in range(1000, 1004)
