"""Decodes recordings exactly and with a pair of caches, and compares the two."""

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import ne
from typing import Any

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import load_samples
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.audio.threads import set_threads
from slimwhisper.cache.activations import Activations
from slimwhisper.cache.decoder_cache import CachePlan, DecoderCache
from slimwhisper.cache.file import as_stored
from slimwhisper.cache.fold import Learned
from slimwhisper.cache.forms import parse_form
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.commands.approximate.logits import ExactWindow, compare_logits
from slimwhisper.commands.approximate.measured import MeasuredCache
from slimwhisper.commands.approximate.recordings import (
    SourceRecording,
    find_recordings,
    words_of,
)
from slimwhisper.devices import INT8, choose_device, choose_dtype
from slimwhisper.errors import AudioError
from slimwhisper.flags import load_weights
from slimwhisper.model.calibration import fold_plan, learned_by, record_activations
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import language_code
from slimwhisper.types import Transcript

logger = logging.getLogger("slimwhisper")
edits = Levenshtein.distance  # how many items to insert, delete or replace

REFERENCE = ("kv", "kv")  # the forms of exact decoding


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
        return self._model(REFERENCE, None)

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
        count = min(len(positions), self.most_windows)
        indices = np.linspace(0, len(positions) - 1, count).round().astype(int)
        chosen = [positions[i] for i in indices]
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

    def learn(self, cross: str, self_: str) -> Learned | None:
        """The tensors that the forms learn, rounded as in a file; None: neither form learns."""
        if not (parse_form(cross).learns or parse_form(self_).learns):
            return None
        return as_stored(learned_by(self._exact_plan(cross, self_)))

    def sizes(self, cross: str, self_: str) -> tuple[int, int]:
        """(bytes of one window, bytes of one text), of forms that need no guard.

        Raises ValueError for settings that the model cannot have.
        """
        return self._sizes(self._exact_plan(cross, self_).to(self.device, self.dtype))

    def measure(self, cross: str, self_: str, learned: Learned | None = None) -> MeasuredCache:
        """Decode everything with a pair of caches. `learned`: from a file; None: learn it.

        Raises ValueError for settings that the model cannot have.
        """
        exact = self.reference
        model = self._model((cross, self_), learned or self.learn(cross, self_))
        approximate = self._decode(model, exact.recordings)
        if approximate.recordings != exact.recordings:
            raise AudioError("some recordings can no longer be read; check the disk")
        error, read = compare_logits(self.exact.network, model.network, self.windows)
        kept_cross, kept_self = self._sizes(model.network.plan)
        truth, words = (list(map(self._words, each.transcripts)) for each in (exact, approximate))
        referred = [i for i, r in enumerate(exact.recordings) if r.reference is not None]
        references = [exact.recordings[i].reference or "" for i in referred]
        spoken = [words_of(reference, self.language) for reference in references]
        return MeasuredCache(
            cross=cross,
            self_=self_,
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

    def _model(self, forms: tuple[str, str], learned: Learned | None) -> SlimWhisper:
        where = self.device, self.dtype
        return SlimWhisper(Model(self.checkpoint, *where, forms, int8=self.int8, learned=learned))

    def _exact_plan(self, cross: str, self_: str) -> CachePlan:
        """The folded weights of forms that need no guard; others are replaced by exact ones."""
        forms = parse_form(cross), parse_form(self_)
        activations = self.activations if any(form.learns for form in forms) else None
        return fold_plan(self.checkpoint.state, self.checkpoint.dims, *forms, activations)

    def _sizes(self, plan: CachePlan) -> tuple[int, int]:
        dims, meta = self.checkpoint.dims, torch.device("meta")
        cache = DecoderCache.allocate(plan, 1, dims.n_audio_ctx, dims.n_text_ctx, device=meta)
        return cache.cross.nbytes(), cache.self_.nbytes()

    def _decode(
        self, model: SlimWhisper, recordings: Sequence[SourceRecording]
    ) -> TranscribedRecordings:
        """All recordings in order; those that cannot be read are left out, with a warning. The
        model's caches are freed.
        """
        lengths: list[float] = []
        transcripts: dict[Any, Transcript] = {}
        since = time.monotonic()
        for path, outcome in model.transcribe_many(
            [recorded.path for recorded in recordings],
            batch_size=self.batch_size,
            on_duration=lambda _, seconds: lengths.append(seconds),
            temperature=0.0,
            language=self.language,
        ):
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
