"""Decodes recordings exactly and with a pair of caches, and compares the two."""

import argparse
import logging
import re
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import ne
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import load_samples
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio_formats.names import Selection, is_hidden
from slimwhisper.cache.base import DecodeStep, Rows
from slimwhisper.cache.decoder_cache import CachePlan, DecoderCache
from slimwhisper.cache.fold import Activations, blocks_of
from slimwhisper.cache.forms import Form, parse_form
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.commands.costs import cache_sizes
from slimwhisper.cores import set_threads
from slimwhisper.devices import INT8, choose_device, choose_dtype
from slimwhisper.errors import AudioError
from slimwhisper.flags import load_weights
from slimwhisper.guard import guarded_plan, record_activations
from slimwhisper.model.model import Model
from slimwhisper.research.cache_file import as_stored, read_forms
from slimwhisper.research.pairs import FormPair, MeasuredCache
from slimwhisper.text import error_line, escape_line
from slimwhisper.tokens.encoding import UNSPACED
from slimwhisper.tokens.vocabulary import language_code
from slimwhisper.types import Transcript

logger = logging.getLogger("slimwhisper")
edits = Levenshtein.distance  # how many items to insert, delete or replace

REFERENCE = FormPair("kv", "kv")  # of exact decoding


class SourceRecording(NamedTuple):
    """A recording."""

    path: Path
    reference: str | None  # what was said, from the `.txt` beside it; None: there is none


def find_recordings(arguments: Sequence[str]) -> list[SourceRecording]:
    """The recordings that files and folders (searched recursively) name, each once, sorted within
    a folder. Raises AudioError, also where there are none.
    """
    paths: dict[Path, None] = {}
    takes = Selection().takes
    for argument in arguments:
        top = Path(argument)
        if top.is_dir():
            below = (p for p in top.rglob("*") if takes(str(p)))
            every = sorted(p for p in below if not any(map(is_hidden, p.relative_to(top).parts)))
            if not every:
                raise AudioError(f"{escape_line(top)}: has no audio or video files; check the path")
            paths |= dict.fromkeys(every)
        elif top.is_file():
            paths[top] = None
        else:
            raise AudioError(f"{escape_line(top)}: no such file; check the path")
    return [SourceRecording(path, _reference(path.with_suffix(".txt"))) for path in paths]


def _reference(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read as UTF-8 text ({error_line(error)})"
        raise AudioError(f"{escape_line(path)}: {what}; fix or remove it") from error


def words_of(text: str, language: str) -> list[str]:
    """A text's words without case, punctuation and what is in brackets, as by the basic normalizer
    of `whisper.normalizers`; in languages without spaces, its letters, as in the Whisper paper
    (appendix C).

    Not as of the English one: it would write "one two three" as "123", so that one wrong digit
    would count as much as three.
    """
    import regex  # tiktoken's

    spoken = re.sub(r"\([^)]+?\)", "", re.sub(r"[<\[][^>\]]*[>\]]", "", text.lower()))
    letters = unicodedata.normalize("NFKC", spoken)
    plain = "".join(" " if unicodedata.category(c)[0] in "MSP" else c for c in letters).lower()
    return (" ".join(regex.findall(r"\X", plain)) if language in UNSPACED else plain).split()


@dataclass(frozen=True, slots=True)
class ExactWindow:
    """30 s of a recording with its exact text."""

    mel: Tensor  # [n_mels, 3000] float32
    tokens: list[int]  # from <|startoftranscript|> on


@dataclass(frozen=True, slots=True)
class TranscribedRecordings:
    """Recordings with their transcripts."""

    recordings: list[SourceRecording]
    transcripts: list[Transcript]
    seconds: float  # that it took
    audio_seconds: float

    @property
    def tokens(self) -> list[list[int]]:
        """Of each transcript."""
        return [list(chain.from_iterable(s.tokens for s in t.segments)) for t in self.transcripts]


class Comparison:
    """Decodes recordings exactly, and compares other caches with the results; at temperature 0.

    The exact model and the windows are made on first use.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        recordings: Sequence[SourceRecording],
        *,
        device: str | None = None,
        dtype: str | None = None,
        language: str = "en",
        batch_size: int | None = None,
        windows: int = 8,
    ) -> None:
        """windows: the largest number of windows for the logits' error and for learning. The other
        arguments: as for `load_model` and `transcribe_many`. Raises OptionError.
        """
        self.checkpoint, self.recordings = checkpoint, recordings
        self.device = choose_device(device)
        self.dtype, self.int8 = choose_dtype(dtype, self.device), dtype == INT8
        self.language = language_code(language, checkpoint.tokens)
        self.batch_size, self.most_windows = batch_size, windows
        self.on_recording: Callable[[], object] = lambda: None  # called after each recording

    @staticmethod
    def of(arguments: argparse.Namespace) -> "Comparison":
        """The comparison that the flags define. Raises AudioError, OptionError, CheckpointError."""
        recordings = find_recordings(arguments.audio)
        set_threads(arguments.threads)
        names = ("device", "dtype", "language", "batch_size", "windows")
        options = {name: getattr(arguments, name) for name in names}
        return Comparison(load_weights(arguments), recordings, **options)

    # -- the reference ---------------------------------------------------------------------------

    @cached_property
    def exact(self) -> SlimWhisper:
        """The reference model."""
        return self._model(REFERENCE)

    @cached_property
    def reference(self) -> TranscribedRecordings:
        """The exact transcripts. Raises AudioError if there are no words in any."""
        decoded = self._decode(self.exact, self.recordings)
        if not any(map(self._words, decoded.transcripts)):
            raise AudioError("exact decoding finds no words; give recordings of speech")
        return decoded

    @cached_property
    def windows(self) -> list[ExactWindow]:
        """Windows with text, spread evenly over all of the recordings."""
        dims = self.checkpoint.dims
        sot = list(self.checkpoint.tokens.tokenizer(self.language).sot_sequence)
        texts: dict[tuple[int, int], list[int]] = {}  # by recording and first mel frame
        for i, transcript in enumerate(self.reference.transcripts):
            for segment in transcript.segments:
                texts.setdefault((i, segment.seek), []).extend(segment.tokens)
        positions = sorted(position for position, tokens in texts.items() if tokens)
        indices = np.linspace(0, len(positions) - 1, min(len(positions), self.most_windows))
        chosen = [positions[round(i)] for i in indices]
        windows = []
        for i in dict.fromkeys(i for i, _ in chosen):
            samples = load_samples(self.reference.recordings[i].path)
            spectrogram = Spectrogram(samples, dims.n_mels, dims.window_frames)
            for seek in [seek for j, seek in chosen if j == i]:
                size = min(dims.window_frames, spectrogram.frames - seek)
                tokens = [*sot, *texts[i, seek]][: dims.n_text_ctx]
                windows.append(ExactWindow(spectrogram.window(seek, size), tokens))
            spectrogram.close()
        return windows

    @cached_property
    def activations(self) -> Activations:
        """The activations that forms learn from: of the windows and their exact texts."""
        mels = torch.stack([window.mel for window in self.windows])
        return record_activations(self.checkpoint, mels, [w.tokens for w in self.windows])

    # -- a pair of caches ------------------------------------------------------------------------

    def forms(self, pair: FormPair) -> tuple[Form, Form]:
        """A pair's forms, with what they have learned: from its file, else from the windows, and
        rounded as in a file.
        """
        cross, self_ = parse_form(pair.cross), parse_form(pair.self_)
        if pair.file is not None:
            return read_forms(pair.file, (cross, self_), self.checkpoint)
        return self._learned("cross", cross), self._learned("self", self_)

    def _learned(self, attention: str, form: Form) -> Form:
        if not form.learns:
            return form
        pairs = blocks_of(self.checkpoint.state, self.checkpoint.dims, attention)
        return as_stored(form.learn(attention, [block for block, _ in pairs], self.activations))

    def sizes(self, pair: FormPair) -> tuple[int, int]:
        """(bytes of one window, bytes of one text), of forms that need no guard.

        Raises ValueError for settings that the model cannot have.
        """
        plan = CachePlan.of(self.checkpoint.state, self.checkpoint.dims, *self.forms(pair))
        return cache_sizes(plan.to(self.device, self.dtype), 1, self.checkpoint.dims)

    def measure(self, pair: FormPair) -> MeasuredCache:
        """Decode everything with a pair of caches.

        Raises ValueError for settings that the model cannot have, CacheError for a file.
        """
        exact = self.reference
        model = self._model(pair)
        approximate = self._decode(model, exact.recordings)
        if approximate.recordings != exact.recordings:
            raise AudioError("some recordings can no longer be read; check the disk")
        error, read = compare_logits(self.exact.network, model.network, self.windows)
        kept_cross, kept_self = cache_sizes(model.network.plan, 1, self.checkpoint.dims)
        truth, words = (list(map(self._words, each.transcripts)) for each in (exact, approximate))
        referred = [i for i, r in enumerate(exact.recordings) if r.reference is not None]
        spoken = [words_of(exact.recordings[i].reference or "", self.language) for i in referred]
        return MeasuredCache(
            cross=pair.cross,
            self_=pair.self_,
            kept_cross=kept_cross,
            kept_self=kept_self,
            kept_baseline=model.baseline_bytes_per_window(),
            read=read,
            words=sum(map(len, truth)),
            word_edits=sum(map(edits, truth, words)),
            reference_words=sum(map(len, spoken)),
            reference_edits=sum(map(edits, spoken, [words[i] for i in referred])),
            exact_reference_edits=sum(map(edits, spoken, [truth[i] for i in referred])),
            recordings=len(truth),
            recordings_changed=sum(map(ne, exact.tokens, approximate.tokens)),
            tokens=sum(map(len, exact.tokens)),
            token_edits=sum(map(edits, exact.tokens, approximate.tokens)),
            logit_error=error,
            seconds=round(approximate.seconds, 3),
            audio_seconds=round(approximate.audio_seconds, 1),
            fallbacks=model.fallbacks,
        )

    def _words(self, transcript: Transcript) -> list[str]:
        return words_of(transcript.text, self.language)

    def _model(self, pair: FormPair) -> SlimWhisper:
        forms, where = self.forms(pair), (self.device, self.dtype)
        return SlimWhisper(Model(self.checkpoint, *where, forms, guarded_plan, self.int8))

    def _decode(
        self, model: SlimWhisper, recordings: Sequence[SourceRecording]
    ) -> TranscribedRecordings:
        """All recordings in order; those that cannot be read are left out, with a warning. The
        model's caches are freed.
        """
        lengths: list[float] = []
        transcripts: dict[Any, Transcript] = {}
        since = time.monotonic()
        options: dict[str, Any] = {"batch_size": self.batch_size, "language": self.language}
        options |= {"temperature": 0.0, "condition_on_previous_text": False}
        options["on_duration"] = lambda _, seconds: lengths.append(seconds)
        for path, outcome in model.transcribe_many([r.path for r in recordings], **options):
            self.on_recording()
            if isinstance(outcome, Transcript):
                transcripts[path] = outcome
            else:
                logger.warning("left out: %s", outcome)
        spent = time.monotonic() - since
        model.release()
        read = [recorded for recorded in recordings if recorded.path in transcripts]
        found = [transcripts[recorded.path] for recorded in read]
        return TranscribedRecordings(read, found, spent, sum(lengths))


@torch.inference_mode()
def compare_logits(
    exact: Model, approximate: Model, windows: Sequence[ExactWindow]
) -> tuple[float, float]:
    """(error of the logits, bytes that a step of one row reads), both over all windows.

    Both models are fed the windows' tokens, one by one, as in decoding: a prompt that is read at
    once would leave nothing out with most forms. The error is the root mean square of the
    difference, relative to the standard deviation of the exact logits over the vocabulary. What is
    read is that of the caches after the last step, with half of the text's context.
    """
    dims, device, count = exact.dims, exact.device, len(windows)
    rows = Rows.block(count, device=device)
    features = exact.encoder(torch.stack([window.mel for window in windows]))
    lengths = torch.tensor([len(window.tokens) for window in windows], device=device)
    tokens = torch.full((count, int(lengths.max())), exact.vocabulary.eot)
    for row, window in zip(tokens, windows, strict=True):
        row[: len(window.tokens)] = torch.tensor(window.tokens)
    tokens = tokens.to(device)
    caches = []
    for model in (exact, approximate):
        cache = DecoderCache(model.allocate_cross(count), model.allocate_self(count))
        cache.cross.put(rows.slots, features.to(model.dtype))
        caches.append(cache)

    different = torch.zeros((), dtype=torch.float64, device=device)
    spread = torch.zeros_like(different)
    for position in range(tokens.shape[1]):
        theirs, found = (
            _step(model, tokens, position, rows, cache).double()
            for model, cache in zip((exact, approximate), caches, strict=True)
        )
        real = lengths > position
        # the variance, as what all tokens share changes no probability
        different += ((found - theirs).var(dim=-1, correction=0) * real).sum()
        spread += (theirs.var(dim=-1, correction=0) * real).sum()

    half = dims.n_text_ctx // 2
    read = [
        sum(layer.read_bytes(i) for layer in caches[1].cross.layers)
        + sum(layer.read_bytes(i, half) for layer in caches[1].self_.layers)
        for i in range(count)
    ]
    return float((different / spread).sqrt()), sum(read) / count


def _step(model: Model, tokens: Tensor, position: int, rows: Rows, cache: DecoderCache) -> Tensor:
    """The logits [R, V] after one more token of tokens [R, T]."""
    if position == 0:
        hidden = model.decoder.prefill(tokens[:, :1], rows, cache)
        return model.decoder.logits(hidden[:, -1])
    positions = torch.full((len(tokens),), position, device=tokens.device)
    step = DecodeStep.at(rows, positions, position + 1, True, model.dtype)
    return model.decoder.step(tokens[:, position], step, cache)
