"""Several results for one recording, with different options."""

from collections.abc import Mapping, Sequence
from typing import Any

from slimwhisper.audio.load import AudioSource, load_channels, load_samples, stem_of
from slimwhisper.errors import OptionError
from slimwhisper.loaded_model import LoadedModel
from slimwhisper.longform.answers import Answers, MakeRecording, SampleSource
from slimwhisper.longform.batch import BatchEntry, transcribe_variants
from slimwhisper.longform.channels import make_recording
from slimwhisper.longform.engine_pool import EnginePool, search_of
from slimwhisper.speakers.diarize import prepare
from slimwhisper.types import SAMPLE_RATE, Options, Transcript


class ModelWithVariants(LoadedModel):
    """A model with an engine, and its calls for several results."""

    _engines: EnginePool

    def transcribe_variants(
        self,
        audio: AudioSource,
        variants: Sequence[Mapping[str, Any]],
        *,
        sample_rate: int = SAMPLE_RATE,
        batch_size: int | None = None,
        **options: Any,
    ) -> list[Transcript]:
        """Several results for one recording: the same as separate calls. The recording is read
        once, and variants with the same search are decoded side by side.

        Arguments:
            variants: options of each result, such as [{"task": "transcribe"}, {"task":
                "translate"}]; they replace those in `options`.
            audio, sample_rate, batch_size, options: as in `transcribe`.
        Returns:
            a result as `transcribe`'s for each of the variants.
        Raises:
            AudioError, OptionError.
        """
        chosen = self._variants(variants, options)
        samples = self._read(audio, chosen[0], sample_rate=sample_rate)
        parts = (samples, chosen, self._maker(audio), batch_size)
        try:
            return transcribe_variants(self._engines, *parts)
        finally:
            for each in samples.values() if isinstance(samples, Mapping) else [samples]:
                each.close()

    def _variants(
        self, variants: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[Options]:
        """The options of each variant. Raises OptionError."""
        if not variants:
            raise OptionError("variants: there are none; give a list of dictionaries of options")
        chosen = [self.make_options(**{**options, **variant}) for variant in variants]
        if len({(each.channels, each.channel_names, each.audio_track) for each in chosen}) > 1:
            raise OptionError("variants must not differ in channels, channel_names or audio_track")
        for each in chosen:
            prepare(each)
        return chosen

    def _load(
        self,
        source: AudioSource,
        several: Sequence[Options],
        script: Sequence[str] = (),
        **reading: Any,
    ) -> BatchEntry:
        """Read a recording, for one answer or several. reading: arguments of `load_samples`."""
        split = not script  # `Recording` refuses channels beside a script
        samples = self._read(source, several[0], split=split, **reading)
        make = self._maker(source, script)
        return make(samples, several[0]) if len(several) == 1 else Answers(samples, several, make)

    @staticmethod
    def _read(
        source: AudioSource, options: Options, *, split: bool = True, **reading: Any
    ) -> SampleSource:
        """A source's samples or, with `split`, those of its channels if the options want them."""
        reading["audio_track"] = options.audio_track
        if options.channels is None or not split:
            return load_samples(source, **reading)
        return load_channels(source, options.channel_names, **reading)

    def _maker(self, source: AudioSource, script: Sequence[str] = ()) -> MakeRecording:
        """Makes the recordings of a source's samples."""
        name, vocabulary = stem_of(source), self.network.vocabulary
        return lambda samples, options: make_recording(
            samples, self.dims, options, vocabulary, name, script
        )

    def _same_search(
        self, variants: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[Options]:
        """The options of variants that are decoded in one engine. Raises OptionError."""
        chosen = self._variants(variants, options)
        if any(search_of(each) != search_of(chosen[0]) for each in chosen):
            names = "beam_size, best_of, patience, length_penalty or expected"
            raise OptionError(f"variants must not differ in {names}; use transcribe_variants")
        return chosen
