"""Decodes recordings exactly and with a pair of caches, and compares the two."""

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from slimwhisper.api import SlimWhisper
from slimwhisper.audio.load import load_samples
from slimwhisper.audio.mel import Spectrogram
from slimwhisper.cache.activations import Activations
from slimwhisper.cache.file import as_stored
from slimwhisper.cache.forms import form_of
from slimwhisper.cache.plan import CachePlan, CrossCache, SelfCache
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.commands.approximate.logits import Window, compare_logits
from slimwhisper.commands.approximate.measured import Measured
from slimwhisper.commands.approximate.recordings import (
    Recorded,
    edits,
    find_recordings,
    recordings_digest,
    words_of,
)
from slimwhisper.devices import INT8, choose_device, choose_dtype
from slimwhisper.digests import weights_digest
from slimwhisper.errors import AudioError, SlimWhisperError
from slimwhisper.flags import load_weights
from slimwhisper.model.calibration import (
    Learned,
    exact_plan,
    learned_by,
    record_activations,
    unguarded,
)
from slimwhisper.model.model import Model
from slimwhisper.tokens.vocabulary import language_code
from slimwhisper.types import Transcript

logger = logging.getLogger("slimwhisper")

REFERENCE = ("kv", "kv")  # what exact decoding keeps


@dataclass(frozen=True, slots=True)
class Setup:
    """How recordings are decoded, in all runs alike; temperature 0."""

    device: torch.device
    dtype: torch.dtype
    int8: bool
    language: str
    batch_size: int | None  # None: as `transcribe_many` chooses
    windows: int  # at most so many, for the logits' error and for what forms learn from

    @staticmethod
    def of(arguments: argparse.Namespace) -> "Setup":
        """What the flags of `tradeoff` and `calibrate` ask for. Raises OptionError."""
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        device = choose_device(arguments.device)
        return Setup(
            device=device,
            dtype=choose_dtype(arguments.dtype, device),
            int8=arguments.dtype == INT8,
            language=arguments.language,
            batch_size=arguments.batch_size,
            windows=arguments.windows,
        )

    @property
    def compute_type(self) -> str:
        """Such as "float16" or "int8"."""
        return INT8 if self.int8 else str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Recordings with their transcripts."""

    recordings: list[Recorded]
    transcripts: list[Transcript]
    seconds: float  # that it took
    audio_seconds: float


class Comparison:
    """Exact decoding of some recordings, and what others differ from it in.

    The exact model and the windows are made when they are first needed.
    """

    def __init__(
        self, checkpoint: Checkpoint, setup: Setup, recordings: Sequence[Recorded]
    ) -> None:
        self.checkpoint, self.setup, self.recordings = checkpoint, setup, recordings
        self.language = language_code(setup.language, checkpoint.tokens)
        self.heard: Callable[[], object] = lambda: None  # called after each recording

    @staticmethod
    def of(arguments: argparse.Namespace) -> "Comparison":
        """What the flags ask for. Raises AudioError, OptionError, CheckpointError."""
        recordings, setup = find_recordings(arguments.audio), Setup.of(arguments)
        return Comparison(load_weights(arguments), setup, recordings)

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """What a measurement depends on besides the pair; not the batch size."""
        return {
            "checkpoint": weights_digest(self.checkpoint.state),
            "recordings": recordings_digest(self.recordings),
            "dtype": self.setup.compute_type,
            "device": self.setup.device.type,
            "language": self.setup.language,
            "windows": self.setup.windows,
            "reference": "+".join(REFERENCE),
        }

    # -- the reference ---------------------------------------------------------------------------

    @cached_property
    def exact(self) -> SlimWhisper:
        """The reference model."""
        return self._model(REFERENCE, None)

    @cached_property
    def reference(self) -> Decoded:
        """The exact transcripts; recordings that cannot be read are left out, with a warning.

        Raises AudioError if none can be read, or if there are no words in any.
        """
        kept, failed = self._decode(self.exact, self.recordings)
        self.exact.release()  # its caches: the memory is others' now
        for error in failed:
            logger.warning("left out: %s", error)
        if not kept.recordings:
            raise failed[0]
        if not any(words_of(t.text, self.language) for t in kept.transcripts):
            raise AudioError(
                f"no speech in {len(kept.recordings)} recordings: exact decoding finds no words; "
                "give recordings of speech"
            )
        return kept

    @cached_property
    def windows(self) -> list[Window]:
        """Windows with text, spread evenly over all of the recordings."""
        dims = self.checkpoint.dims
        sot = list(self.checkpoint.tokens.tokenizer(self.language).sot_sequence)
        texts: dict[tuple[int, int], list[int]] = {}  # by recording and first mel frame
        for i, transcript in enumerate(self.reference.transcripts):
            for segment in transcript.segments:
                texts.setdefault((i, segment.seek), []).extend(segment.tokens)
        places = sorted(place for place, tokens in texts.items() if tokens)
        count = min(len(places), self.setup.windows)
        chosen = [places[i] for i in np.linspace(0, len(places) - 1, count).round().astype(int)]
        found = []
        for i in dict.fromkeys(i for i, _ in chosen):
            samples = load_samples(self.reference.recordings[i].path)
            spectrogram = Spectrogram(samples, dims.n_mels, dims.window_frames)
            for seek in [seek for j, seek in chosen if j == i]:
                rest = spectrogram.frames - seek
                mel = spectrogram.window(seek, min(dims.window_frames, rest))
                tokens = [*sot, *texts[i, seek]]
                found.append(Window(mel, tokens[: dims.n_text_ctx]))
            spectrogram.close()
        return found

    @cached_property
    def activations(self) -> Activations:
        """What forms learn from: the windows, and what exact decoding writes of them."""
        mels = torch.stack([window.mel for window in self.windows])
        return record_activations(self.checkpoint, mels, [w.tokens for w in self.windows])

    # -- a pair of caches ------------------------------------------------------------------------

    def learn(self, cross: str, self_: str) -> Learned | None:
        """What the forms learn, rounded as in a file; None: neither of them learns."""
        learns = form_of(cross).learns, form_of(self_).learns
        if not any(learns):
            return None
        return as_stored(learned_by(self._exact_plan(cross, self_)))

    def sizes(self, cross: str, self_: str) -> tuple[int, int]:
        """(bytes of one window, bytes of one text), of forms that need no guard."""
        plan = self._exact_plan(cross, self_).to(self.setup.device, self.setup.dtype)
        return self._sizes(plan)

    def measure(self, cross: str, self_: str, learned: Learned | None = None) -> Measured:
        """Decode everything with a pair of caches. `learned`: from a file; None: learn it.

        Raises what folding raises for settings that the model cannot have: ValueError.
        """
        reference = self.reference
        if learned is None:
            learned = self.learn(cross, self_)
        model = self._model((cross, self_), learned)
        decoded, failed = self._decode(model, reference.recordings)
        model.release()
        if failed:
            raise failed[0]
        error, read = compare_logits(self.exact.network, model.network, self.windows)
        kept = self._sizes(model.network.plan)
        truth, found = ([self._words(d.text) for d in x.transcripts] for x in (reference, decoded))
        tokens = [[_tokens(d) for d in x.transcripts] for x in (reference, decoded)]
        said = [
            (self._words(recorded.reference), theirs, ours)
            for recorded, theirs, ours in zip(reference.recordings, truth, found, strict=True)
            if recorded.reference is not None
        ]
        return Measured(
            cross=cross,
            self_=self_,
            kept_cross=kept[0],
            kept_self=kept[1],
            kept_baseline=model.baseline_bytes_per_window(),
            read=read,
            words=sum(map(len, truth)),
            word_edits=sum(map(edits, truth, found)),
            said=sum(len(s) for s, _, _ in said) if said else None,
            said_edits=sum(edits(s, ours) for s, _, ours in said) if said else None,
            exact_said_edits=sum(edits(s, theirs) for s, theirs, _ in said) if said else None,
            recordings=len(truth),
            recordings_changed=sum(a != b for a, b in zip(*tokens, strict=True)),
            tokens=sum(map(len, tokens[0])),
            token_edits=sum(map(edits, *tokens)),
            logit_error=error,
            seconds=round(decoded.seconds, 3),
            audio_seconds=round(decoded.audio_seconds, 1),
            fallbacks=model.fallbacks,
        )

    def _words(self, text: str) -> list[str]:
        return words_of(text, self.language)

    def _model(self, forms: tuple[str, str], learned: Learned | None) -> SlimWhisper:
        s = self.setup
        network = Model(self.checkpoint, s.device, s.dtype, forms, int8=s.int8, learned=learned)
        return SlimWhisper(network)

    def _exact_plan(self, cross: str, self_: str) -> CachePlan:
        """The folded weights of forms that need no guard; others are replaced by exact ones."""
        forms = unguarded(cross, self_)
        activations = self.activations if any(form_of(form).learns for form in forms) else None
        return exact_plan(self.checkpoint.state, self.checkpoint.dims, *forms, activations)

    def _sizes(self, plan: CachePlan) -> tuple[int, int]:
        dims, meta = self.checkpoint.dims, torch.device("meta")
        cross = CrossCache(plan, 1, dims.n_audio_ctx, meta).nbytes()
        return cross, SelfCache(plan, 1, dims.n_text_ctx, meta).nbytes()

    def _decode(
        self, model: SlimWhisper, recordings: Sequence[Recorded]
    ) -> tuple[Decoded, list[SlimWhisperError]]:
        """The transcripts in order, and the errors of recordings that have none."""
        lengths: list[float] = []
        outcomes: dict[Any, Transcript | SlimWhisperError] = {}
        since = time.monotonic()
        for path, outcome in model.transcribe_many(
            [recorded.path for recorded in recordings],
            batch_size=self.setup.batch_size,
            on_duration=lambda _, seconds: lengths.append(seconds),
            temperature=0.0,
            language=self.language,
        ):
            outcomes[path] = outcome
            self.heard()
        spent = time.monotonic() - since
        kept = [r for r in recordings if isinstance(outcomes[r.path], Transcript)]
        transcripts = [t for r in kept if isinstance(t := outcomes[r.path], Transcript)]
        failed = [e for r in recordings if isinstance(e := outcomes[r.path], SlimWhisperError)]
        return Decoded(kept, transcripts, spent, sum(lengths)), failed


def _tokens(transcript: Transcript) -> list[int]:
    return [token for segment in transcript.segments for token in segment.tokens]
