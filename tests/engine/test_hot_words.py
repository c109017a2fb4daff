"""Hot words against their definition: phrases compared with the whole text at every step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.hot_words import HotWordFilter, HotWords, argmax
from slimwhisper.engine.requests import Attempt, Decoded, Search, Window
from slimwhisper.engine.sampling import waiting_times
from slimwhisper.longform.requests import hot_words, make_rules
from slimwhisper.model.model import Model
from slimwhisper.options import Options
from slimwhisper.tokens.texts import Spelling, spellings, word_ends
from tests.support.pretend.cuda import pretend_cuda
from tests.support.pretend.models import assert_recorded_like_a_cpu, made, requests
from tests.support.windows import (
    CPU,
    DIMS,
    GRADED_SEARCHES,
    VOCABULARY,
    Asker,
    assert_same,
    decode,
    run,
    short_model,
    short_windows,
    step,
)

SIZE = VOCABULARY.size
# phrases that begin, end and continue one another, and one with its own bonus
TANGLED = (
    *("new york", "new york city", "york city hall", "city", "hall of york\t3.5", "new new york"),
    *("art of the deal", "the deal", "of the", "東京", "東京都", "AT&T", "o'neil"),
)


class Plainly:
    """What a text gains, by comparing it with every phrase, in float64."""

    def __init__(self, lines: tuple[str, ...], bonus: float) -> None:
        self.spelled: Sequence[Spelling] = spellings(VOCABULARY, lines, bonus)
        self.ends = word_ends(VOCABULARY)
        self.prefixes: dict[tuple[int, ...], float] = {}
        for spelling in self.spelled:
            for n in range(1, len(spelling.tokens) + 1):
                start = spelling.tokens[:n]
                self.prefixes[start] = max(self.prefixes.get(start, 0.0), spelling.bonus)
        self.complete = {s.tokens for s in self.spelled}
        self.anywhere = {s.tokens[0] for s in self.spelled if s.anywhere}

    def may_begin(self, text: Sequence[int], at: int) -> bool:
        return at == 0 or text[at] in self.anywhere or bool(self.ends[text[at - 1]])

    def begun(self, text: Sequence[int]) -> int:
        """Where the longest end of the text that begins a phrase starts."""
        starts = (
            i
            for i in range(len(text))
            if self.may_begin(text, i) and tuple(text[i:]) in self.prefixes
        )
        return next(starts, len(text))

    def open_points(self, begun: Sequence[int]) -> float:
        """Of a begun phrase: the bonuses of its tokens that no phrase within it covers."""
        points = [self.prefixes[tuple(begun[: n + 1])] for n in range(len(begun))]
        for first in range(len(begun)):
            for last in range(first + 1, len(begun) + 1):
                inside = tuple(begun[first:last])
                if inside in self.complete and self.may_begin(begun, first):
                    points[first:last] = [0.0] * (last - first)
        return sum(points)

    def gain(self, text: Sequence[int], token: int) -> float:
        """Of one more token: what it gains, and what breaks off."""
        before = list(text[self.begun(text) :])
        after = [*text, token]
        begun = after[self.begun(after) :]
        lost = self.open_points(before)
        if not begun:
            return -lost
        return self.prefixes[tuple(begun)] + self.open_points(begun[:-1]) - lost


def filter_of(words: HotWords) -> HotWordFilter:
    made = HotWordFilter(1, VOCABULARY, CPU)
    assert made.prepare([replace(make_rules(DIMS, Options()), hot_words=words)])
    return made


def start(made: HotWordFilter, words: HotWords, text: Sequence[int]) -> tuple[Tensor, ...]:
    """The state of a text that begins with some tokens."""
    rules = replace(make_rules(DIMS, Options()), hot_words=words)
    return tuple(torch.tensor(np.asarray(t)[-1:]) for t in made.along(rules, text))


def random_text(rng: np.random.Generator, tokens: Sequence[int], length: int) -> list[int]:
    return [int(t) for t in rng.choice(np.array(tokens), length)]


@pytest.mark.parametrize("seed", range(3))
def test_gains_are_those_of_the_definition(seed: int) -> None:
    """Random texts of the phrases' own tokens, so that phrases begin, break off and overlap."""
    rng, plain = np.random.default_rng(seed), Plainly(TANGLED, 2.0)
    used = sorted({t for s in plain.spelled for t in s.tokens})
    near = [*used, VOCABULARY.eot, VOCABULARY.timestamps.start, *range(300, 310)]
    words = hot_words(VOCABULARY, TANGLED, 2.0)
    rows, gained, continued = filter_of(words), 0.0, 0
    state = start(rows, words, ())
    text = list[int]()
    for _ in range(60):
        if rng.random() < 0.5:  # a whole phrase
            more = list(plain.spelled[rng.integers(len(plain.spelled))].tokens)
        else:
            more = random_text(rng, near, 1)
        for token in more:
            every = [plain.gain(text, t) for t in near]
            found = rows.gained(state, torch.tensor([near]))[0] - state[1]
            assert found.tolist() == pytest.approx(every, abs=1e-4), text[-6:]
            gained += plain.gain(text, token)
            rows.state = state = rows.after(state, torch.tensor([token]))
            text.append(token)
            continued += bool(plain.open_points(text[plain.begun(text) :]))
            assert float(state[1]) == pytest.approx(gained, abs=1e-2)
            safe = gained - plain.open_points(text[plain.begun(text) :])
            assert float(rows.kept(slice(0, 1))) == pytest.approx(safe, abs=1e-2)
            assert safe > -1e-6
    assert continued > 12
    assert int(state[0]) - 2 == words.walk(text)[-1]


def test_a_false_start_gains_nothing_and_a_phrase_keeps_its_bonus() -> None:
    plain, eot = Plainly(("new york",), 2.0), VOCABULARY.eot
    new, york, is_ = 649, 331, 318
    (tokens,) = (s.tokens for s in plain.spelled if s.tokens[0] == new)
    assert tokens[:2] == (new, york)

    def total(text: Sequence[int]) -> float:
        return sum(plain.gain(text[:i], t) for i, t in enumerate(text))

    assert total([new, is_, eot]) == 0
    assert total([new, york, eot]) == 0
    assert total([*tokens, is_, eot]) == 2.0 * len(tokens)


def test_all_tokens_that_gain_are_boosted() -> None:
    """At a node of any depth, and no others."""
    words, plain = hot_words(VOCABULARY, TANGLED, 2.0), Plainly(TANGLED, 2.0)
    rows = filter_of(words)
    every = {t for s in plain.spelled for t in s.tokens}
    texts = [s.tokens[:n] for s in plain.spelled for n in range(len(s.tokens) + 1)]
    for text in [*texts, (318,), (VOCABULARY.eot,)]:
        lost = plain.open_points(text[plain.begun(text) :])
        expected = torch.zeros(1, SIZE, dtype=torch.float64)
        for token in every:
            expected[0, token] = plain.gain(text, token) + lost
        found = rows.boosted(start(rows, words, text), torch.zeros_like(expected))
        assert torch.allclose(found, expected, atol=1e-5)


def test_the_largest_is_argmax() -> None:
    """Of rows with equal numbers as well, and of any length."""
    generator = torch.Generator().manual_seed(0)
    for size in (1, 255, 256, 257, 1000, 50257):
        numbers = torch.randint(40, (9, size), generator=generator).float()
        assert torch.equal(argmax(numbers), torch.from_numpy(numbers.numpy().argmax(axis=1)))


class PlainLoop:
    """One window's text in float64, by a whole forward pass for each token."""

    def __init__(self, model: Model, window: Window, plain: Plainly) -> None:
        assert window.rules is not None and window.mel is not None
        assert not window.rules.timestamps
        self.model, self.window, self.rules, self.plain = model, window, window.rules, plain
        self.features = model.encoder(window.mel[None])

    def logprobs(self, text: Sequence[int]) -> Tensor:
        """[V] of the next token, without a bonus."""
        tokens = torch.tensor([[*self.window.prompt, *text]])
        logits = self.model.logits(tokens, self.features)[0, -1].clone()
        logits[self.rules.suppress] = float("-inf")
        if not text:
            logits[self.rules.suppress_first] = float("-inf")
        return logits.log_softmax(dim=0)

    @cache  # noqa: B019
    def gains(self, text: tuple[int, ...]) -> Tensor:
        """[V]: what each token gains."""
        known = {t for s in self.plain.spelled for t in s.tokens}
        gains = torch.full((SIZE,), self.plain.gain(text, VOCABULARY.sot), dtype=torch.float64)
        for token in known:
            gains[token] = self.plain.gain(text, token)
        return gains

    def one_text(self) -> tuple[list[int], float]:
        """Greedy, or random; and the mean log-probability."""
        attempt, text, total = self.window.attempt, list[int](), 0.0
        numbers = np.random.Generator(np.random.PCG64(attempt.seed))
        keys = torch.from_numpy(numbers.integers(-(2**63), 2**63, (1, DIMS.n_text_ctx // 2 + 1)))
        for number in range(self.rules.sample_len):
            logprobs = self.logprobs(text)
            scores, gained = logprobs, logprobs + self.gains(tuple(text))
            if heat := attempt.temperature:
                waits = waiting_times(keys[:, number], SIZE)[0].log()
                scores, gained = scores / heat - waits, gained / heat - waits
            token = int(scores.argmax())
            if VOCABULARY.is_text(token):
                is_text = torch.zeros(SIZE, dtype=torch.bool)
                is_text[: VOCABULARY.eot] = True
                token = int(gained.masked_fill(~is_text, float("-inf")).argmax())
            total += float(logprobs[token])
            if token == VOCABULARY.eot:
                break
            text.append(token)
        return text, total / (len(text) + 1)

    def best_beam(self, width: int) -> tuple[list[int], float]:
        """By the definition of beam search with whisper's stopping rule."""
        beams: list[tuple[list[int], float, float]] = [([], 0.0, 0.0)]
        finished: list[tuple[list[int], float, float]] = []
        for _ in range(self.rules.sample_len):
            proposals = []
            for text, total, bonus in beams:
                logprobs, gains = self.logprobs(text), self.gains(tuple(text))
                best = (logprobs + gains).topk(width + 1).indices.tolist()
                proposals += [
                    ([*text, t], total + float(logprobs[t]), bonus + float(gains[t])) for t in best
                ]
            proposals.sort(key=lambda p: -p[1] - p[2])
            beams = []
            for text, total, bonus in proposals:
                if text[-1] == VOCABULARY.eot:
                    finished.append((text[:-1], total, bonus))
                else:
                    beams.append((text, total, bonus))
                if len(beams) == width:
                    break
            if len(finished) >= width:
                break
        finished = finished[:width]
        if len(finished) < width:

            def safe(beam: tuple[list[int], float, float]) -> float:
                text = beam[0]
                return beam[1] + beam[2] - self.plain.open_points(text[self.plain.begun(text) :])

            beams.sort(key=lambda b: -safe(b))
            finished += [(b[0], b[1], safe(b) - b[1]) for b in beams[: width - len(finished)]]
        text, total, _ = max(finished, key=lambda f: (f[1] + f[2]) / max(len(f[0]), 1))
        return text, total / (len(text) + 1)


@lru_cache(maxsize=1)
def likely_words(model: Model) -> tuple[str, ...]:
    """Phrases that the model nearly writes: next to those of its texts."""
    tokenizer, phrases = VOCABULARY.tokenizer(), list[str]()
    for text in decode(model, free(6), slots=6):
        for i in range(0, len(text.tokens) - 3, 3):
            phrase = " ".join(tokenizer.decode(list(text.tokens[i : i + 2])).split())
            if phrase and "\ufffd" not in phrase:
                phrases.append(phrase)
    others = ("york\t6", "new city", "seven of nine\t8", "the deal\t7", "in the")
    return (*dict.fromkeys(phrases), *others)


def free(count: int, temperature: float = 0.0, sample_len: int = 14) -> list[Window]:
    """Windows without timestamps."""
    rules = make_rules(DIMS, Options(without_timestamps=True, sample_len=sample_len))
    windows = short_windows(count, temperatures=(temperature,))
    return [replace(w, rules=rules, logprobs=True) for w in windows]


def biased(window: Window, words: HotWords | None) -> Window:
    assert window.rules is not None
    return replace(window, rules=replace(window.rules, hot_words=words))


@pytest.mark.parametrize(
    ("search", "temperature"),
    [(Search(), 0.0), (Search(), 0.7), (Search(beams=3), 0.0)],
    ids=["greedy", "sampling", "beams"],
)
def test_texts_are_those_of_a_plain_loop(model: Model, search: Search, temperature: float) -> None:
    """All windows in one batch; log-probabilities are those without a bonus."""
    exact = short_model(forms=("kv", "kv"), dtype=torch.float64)
    lines = likely_words(model)
    words, plain = hot_words(VOCABULARY, lines, 5.0), Plainly(lines, 5.0)
    windows = free(2, temperature)
    asked = [biased(w, words) for w in windows]
    found = decode(exact, asked, slots=2, search=search)
    for window, text in zip(asked, found, strict=True):
        loop = PlainLoop(exact, window, plain)
        expected, mean = loop.one_text() if search.beams is None else loop.best_beam(search.beams)
        assert list(text.tokens) == expected
        assert text.avg_logprob == pytest.approx(mean, abs=1e-5)
        assert sum(text.logprobs) == pytest.approx(mean * (len(expected) + 1), abs=1e-4)
    before = decode(exact, windows, slots=2, search=search)
    assert any(a.tokens != b.tokens for a, b in zip(found, before, strict=True))


@pytest.mark.parametrize(("search", "temperatures"), GRADED_SEARCHES)
def test_texts_side_by_side_are_those_alone(
    model: Model, search: Search | None, temperatures: tuple[float, ...]
) -> None:
    """Different lists, an empty one and none in one batch; those without are unchanged."""
    lines = likely_words(model)
    lists = [
        hot_words(VOCABULARY, lines, 5.0),
        None,
        hot_words(VOCABULARY, lines[::2], 9.0),
        hot_words(VOCABULARY, (), 2.0),
    ]
    plain = short_windows(4, sample_len=25, temperatures=temperatures)
    mixed = [biased(w, lists[i]) for i, w in enumerate(plain)]
    found = decode(model, mixed, slots=3, search=search)
    for i, window in enumerate(mixed):
        assert_same([found[i]], decode(model, [window], slots=1, search=search))
    without = decode(model, plain, slots=3, search=search)
    assert_same(found[1::2], without[1::2])
    assert any(a.tokens != b.tokens for a, b in zip(found, without, strict=True))


@pytest.mark.parametrize(("search", "temperatures"), GRADED_SEARCHES)
def test_an_empty_list_changes_nothing_to_the_bit(
    model: Model, search: Search | None, temperatures: tuple[float, ...]
) -> None:
    """Nor do words that no text comes near, or a bonus of 0, side by side with others."""
    asked = [
        replace(w, logprobs=True)
        for w in short_windows(5, sample_len=25, temperatures=temperatures)
    ]
    expected = decode(model, asked, slots=3, search=search)
    assert make_rules(DIMS, Options(hot_words=())) is make_rules(DIMS, Options())
    for words in (
        hot_words(VOCABULARY, (), 2.0),
        hot_words(VOCABULARY, tuple(w.partition("\t")[0] for w in likely_words(model)), 0.0),
        hot_words(VOCABULARY, ("qzxj vkwq",), 1e-6),
    ):
        found = decode(model, [biased(w, words) for w in asked], slots=3, search=search)
        assert found == expected


def test_off_costs_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor is allocated, and nothing is called, until a text has hot words."""
    monkeypatch.setattr(HotWordFilter, "prefer", lambda *_: pytest.fail("it was called"))
    engine = Engine(model, VOCABULARY, 2)
    run(engine, dict(enumerate(short_windows(2))))
    assert all(HotWordFilter not in r.state.filters.made for r in engine.group_runners)


def test_lists_come_and_go(model: Model) -> None:
    """Texts in progress stay in their lists while new ones replace those that are gone."""
    lines = likely_words(model)
    plain = short_windows(12, sample_len=4)
    asked = []
    for i, window in enumerate(plain):
        words = hot_words(VOCABULARY, lines[i % 5 :: 1 + i % 3], 4.0 + i % 5)
        asked.append(biased(window, words))
    lengths = [3 + 9 * (i % 3) for i in range(12)]  # so that they end at different times
    asked = [
        replace(w, rules=replace(w.rules, sample_len=n))  # type: ignore[type-var]
        for w, n in zip(asked, lengths, strict=True)
    ]
    found = decode(model, asked, slots=3)
    for window, text in zip(asked, found, strict=True):
        assert_same([text], decode(model, [window], slots=1))


def test_drafts_and_preempted_texts_stay_in_their_phrases(model: Model) -> None:
    """A draft is accepted as far as hot words go; a preempted text goes on in its phrase."""
    words = hot_words(VOCABULARY, likely_words(model), 5.0)
    window = free(1, sample_len=40)[0]
    (without,) = decode(model, [window], slots=1)
    (expected,) = decode(model, [biased(window, words)], slots=1)
    assert expected.tokens != without.tokens
    for draft in (expected.tokens, without.tokens):
        drafted = replace(biased(window, words), draft=draft[:-1])
        (found,) = decode(model, [drafted], slots=1)
        assert_same([found], [expected])
        pairs = zip(draft[:-1], expected.tokens, strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), len(draft) - 1)
        assert found.drafted == common
    asked = [biased(w, words) for w in free(4, sample_len=130)]
    every = decode(model, asked, slots=4)
    engine = Engine(model, VOCABULARY, 4, pages=28)
    answers = run(engine, dict(enumerate(asked)))
    assert engine.preemptions > 0
    assert_same([a for i in range(4) for a in answers[i] if isinstance(a, Decoded)], every)


def test_timestamps_and_the_end_stay_where_they_are(model: Model) -> None:
    """However large the bonus, greedy texts have their timestamps by the model alone."""
    words = hot_words(VOCABULARY, ("new york", "seven"), 20.0)
    plain = short_windows(2, sample_len=12)
    assert plain[0].rules is not None and plain[0].rules.timestamps
    found = decode(model, [biased(w, words) for w in plain], slots=2)
    for text in found:
        assert text.tokens[0] in VOCABULARY.timestamps
    assert any(3797 in text.tokens or 3598 in text.tokens or 649 in text.tokens for text in found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:divide by zero")  # the interpreter's log(0)
@pytest.mark.parametrize(
    ("search", "temperatures"),
    [(None, (0.0,)), (Search(beams=2), (0.0,))],
)
def test_hot_words_are_part_of_the_graphs(
    search: Search | None, temperatures: tuple[float, ...]
) -> None:
    """On a pretend GPU: texts with different lists, and with none."""
    lists = [hot_words(VOCABULARY, TANGLED, 9.0), None, hot_words(VOCABULARY, TANGLED[:3], 15.0)]
    asked = [biased(w, lists[i % 3]) for i, w in enumerate(requests(5, temperatures))]
    assert_recorded_like_a_cpu(asked, search)


@pytest.mark.slow
@pytest.mark.parametrize(("search", "more"), [(None, 51), (Search(beams=3), 65)])
def test_nobody_waits_for_the_gpu(search: Search | None, more: int) -> None:
    """A step with 1,000 phrases reads and uploads nothing, and is one graph with more kernels."""
    tokenizer = VOCABULARY.tokenizer()
    texts = [tokenizer.decode([t, t + 1]).strip() for t in range(1000, 4000)]
    lines = tuple(dict.fromkeys(t for t in texts if t.isascii() and t.isalpha()))[:1000]
    launched = []
    with pretend_cuda() as gpu:
        model = made(("e", "x"), torch.device("cuda"), torch.float16)
        for words in (None, hot_words(VOCABULARY, lines, 1e-3)):  # the same texts
            engine, owner = Engine(model, VOCABULARY, 3, search, 4), Asker()
            for window in requests(3):
                assert window.rules is not None
                rules = replace(window.rules, sample_len=60, hot_words=words)
                engine.submit(owner, replace(window, rules=rules))
            step(engine)
            for i in range(6):
                with gpu.counting() as counts:
                    step(engine)
                assert not counts.reads - Counter({"event.synchronize": 1})
                if not i:  # it is being captured
                    launched.append(counts.kernels)
                    continue
                given = counts.kernels.pop("index_put_", 0)  # pages: one upload, pinned
                assert counts.uploads.total() == given <= 1
                # at a look, what unfinished phrases may lose
                looked = counts.kernels.pop("index", 0), counts.kernels.pop("sub", 0)
                looks = int(words is not None and bool(counts.downloads))
                assert looked == (looks, looks)
                assert counts.kernels == {"graph": 1}
    assert launched[1].total() - launched[0].total() == more, launched[1] - launched[0]


def test_attempts_of_a_window_share_their_list(model: Model) -> None:
    """Samples are ranked with their bonuses, and answered without."""
    words = hot_words(VOCABULARY, likely_words(model), 5.0)
    window = biased(replace(free(1)[0], attempt=Attempt(0.8, (0, 1))), words)
    (found,) = decode(model, [window], slots=1, search=Search(samples=4))
    mean = sum(found.logprobs) / (len(found.tokens) + 1)
    assert found.avg_logprob == pytest.approx(mean, abs=1e-4)
