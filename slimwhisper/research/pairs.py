"""The pairs of caches that `tradeoff` measures and `calibrate` searches, and what is measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from slimwhisper.cache.forms import (
    PRESETS,
    all_forms,
    brief,
    check_cache,
    check_form,
    choose_forms,
    names_of,
    parse_form,
)
from slimwhisper.errors import OptionError
from slimwhisper.text import human_size
from slimwhisper.types import Dims


class FormPair(NamedTuple):
    """Caches of both parts, as canonical specs."""

    cross: str
    self_: str
    file: str | None = None  # of `calibrate`, which has what they learned

    @property
    def title(self) -> str:
        """The specs without default settings."""
        forms = f"{brief(self.cross)}+{brief(self.self_)}"
        return forms if self.file is None else f"{forms} of {Path(self.file).name}"


SLIM, SLIM8 = FormPair(*PRESETS["slim"]), FormPair("e8", "x8")  # the second in float8


def ladders(part: str, dims: Dims, name: str | None = None) -> Iterator[list[str]]:
    """Canonical specs for "cross" or "self", the largest first, without repeats; of one form or of
    all. Raises ValueError.
    """
    for form in all_forms().values():
        if name in (None, form.name) and part in form.attentions:
            for rungs in form.ladder(dims, part):
                specs = (str(parse_form(f"{form.name}:{rung}")) for rung in rungs)
                yield list(dict.fromkeys(specs))


def with_slim(part: str, spec: str) -> FormPair:
    """A spec for one part, and slim's for the other."""
    return FormPair(spec, SLIM.self_) if part == "cross" else FormPair(SLIM.cross, spec)


def ladder_pairs(dims: Dims, name: str | None = None) -> list[FormPair]:
    """Every rung with slim's other part; of one form or of all."""
    return [with_slim(p, s) for p in ("cross", "self") for s in chain(*ladders(p, dims, name))]


def choose_pairs(specs: Sequence[str] | None, dims: Dims) -> list[FormPair]:
    """The pairs of `--specs`; by default the presets, slim in float8, and every rung. Raises
    OptionError.
    """
    specs = specs or [*PRESETS, "slim8", *(n for n, f in all_forms().items() if not f.exact)]
    return list(dict.fromkeys(pair for spec in specs for pair in parse_pairs(spec, dims)))


def parse_pairs(text: str, dims: Dims) -> list[FormPair]:
    """The pair of a preset's name, `slim8` (slim in float8), `CROSS+SELF`, or a file of
    `calibrate`; for an approximate form's name, the pairs of all its rungs.
    """
    if text in PRESETS:
        return [FormPair(*PRESETS[text])]
    if text == "slim8":
        return [SLIM8]
    if rungs := ladder_pairs(dims, text):
        return rungs
    cross, plus, self_ = text.partition("+")
    try:
        if not plus or Path(text).is_file():
            return [FormPair._make((*map(str, choose_forms(check_cache(text))), text))]
        first = check_form(cross, names_of("cross", exact=False))
        second = check_form(self_, names_of("self", exact=False))
        return [FormPair(str(first), str(second))]
    except OptionError as error:
        known = "give a preset, slim8, a form, CROSS+SELF such as e+x, or a file of calibrate"
        raise OptionError(f"specs: {error}; {known}") from None


@dataclass(frozen=True, slots=True)
class MeasuredCache:
    """Counts over all recordings, against exact decoding (`kv` in both parts, same dtype).

    Edits: words or tokens inserted, deleted or replaced.
    """

    cross: str  # spec
    self_: str  # spec
    kept_cross: int  # bytes of one window
    kept_self: int  # bytes of one text
    kept_baseline: int  # bytes that keys and values of both take
    read: float  # bytes of the caches that a step of one row reads, at half of the text's context
    words: int  # of the exact transcripts
    word_edits: int
    reference_words: int  # 0: there are no references
    reference_edits: int
    exact_reference_edits: int  # the exact transcripts' own
    recordings: int
    recordings_changed: int  # those with other tokens
    tokens: int  # of the exact transcripts
    token_edits: int
    logit_error: float  # root mean square, relative to the exact logits' standard deviation
    seconds: float  # to decode all recordings, encoder included
    audio_seconds: float
    fallbacks: list[str]  # a line for each form that the guard replaced

    @property
    def pair(self) -> FormPair:
        """Without its file."""
        return FormPair(self.cross, self.self_)

    @property
    def kept(self) -> int:
        """Bytes of a window with one text."""
        return self.kept_cross + self.kept_self

    @property
    def times_smaller(self) -> float:
        """How many times smaller than the baseline."""
        return self.kept_baseline / self.kept

    @property
    def word_error(self) -> float:
        """Percent of the exact transcripts' words."""
        return 100 * self.word_edits / self.words

    @property
    def reference_error(self) -> float | None:
        """Percent of the references' words."""
        return 100 * self.reference_edits / self.reference_words if self.reference_words else None

    @property
    def token_error(self) -> float:
        """Percent of the exact transcripts' tokens."""
        return 100 * self.token_edits / self.tokens

    @property
    def loss(self) -> float:
        """In percentage points of the word error: against exact decoding or, if that is more, the
        increase against the references.
        """
        if not self.reference_words:
            return self.word_error
        lost = self.reference_edits - self.exact_reference_edits
        return max(self.word_error, 100 * lost / self.reference_words)

    @property
    def sample(self) -> str:
        """The amount of audio and text."""
        count = f"{self.recordings} recording{'s' * (self.recordings != 1)}"
        return f"{count}, {self.audio_seconds / 60:.1f} minutes, {self.words} words"

    @property
    def line(self) -> str:
        """For progress."""
        return f"{human_size(self.kept)}, loss {self.loss:.2f} %, {self.seconds:.1f} s"
