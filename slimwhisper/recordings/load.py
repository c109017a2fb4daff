"""Makes the recordings that the options ask for, of samples or of what can be read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from slimwhisper.audio.load import AudioSource, load_channels, load_samples, stem_of
from slimwhisper.audio.samples import Samples
from slimwhisper.errors import OptionError
from slimwhisper.longform.recording import Recording
from slimwhisper.model.model import Model
from slimwhisper.recordings.passes import passes_of
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import Dims, Options

if TYPE_CHECKING:  # imported where they are asked for
    from slimwhisper.recordings.aligned import AlignedRecording
    from slimwhisper.recordings.channels import SplitRecording

AnyRecording: TypeAlias = "Recording | SplitRecording | AlignedRecording"
NOT_ALIGNED = ("channels", "diarize", "sentences", "vad_filter")  # options that a script refuses


def make_recording(
    samples: Samples,
    dims: Dims,
    options: Options,
    vocabulary: Vocabulary,
    name: str = "",
) -> Recording:
    """A recording with the passes that the options ask for.

    Reads all samples, once more each to find speech and speakers. name: of the recording, without
    suffix, for an RTTM file or an expected text. Raises AudioError, DependencyError, OptionError.
    """
    expected: tuple[int, ...] = ()
    if options.expected is not None:
        from slimwhisper.recordings.expected import expected_tokens, read_expected

        expected = expected_tokens(vocabulary, read_expected(options, name), options.hotwords)
    passes = passes_of(samples, options, name)
    return Recording(samples, dims, options, vocabulary, passes, expected)


def split_recording(
    channels: Mapping[str, Samples],
    dims: Dims,
    options: Options,
    vocabulary: Vocabulary,
    name: str = "",
) -> "SplitRecording":
    """A recording of channels, by their speakers' names; otherwise as `make_recording`."""
    from slimwhisper.recordings.channels import SplitRecording

    return SplitRecording(
        {
            speaker: make_recording(samples, dims, options, vocabulary, name)
            for speaker, samples in channels.items()
        }
    )


def aligned_recording(
    samples: Samples,
    dims: Dims,
    options: Options,
    vocabulary: Vocabulary,
    script: Sequence[str],
    name: str = "",
) -> "AlignedRecording":
    """A recording, to be aligned with the lines of a script; otherwise as `make_recording`."""
    from slimwhisper.recordings.aligned import AlignedRecording

    for refused in NOT_ALIGNED:
        if getattr(options, refused):
            raise OptionError(f"{refused} cannot be used to align a text; leave it out")
    options = replace(options, word_timestamps=True, word_times="fine", drop=())
    return AlignedRecording(make_recording(samples, dims, options, vocabulary, name), script)


def load_recording(
    source: AudioSource, model: Model, options: Options, script: Sequence[str] = (), **reading: Any
) -> AnyRecording:
    """Read a recording for a model. script: lines to align with it. reading: arguments of
    `load_samples`. Raises AudioError, and what `make_recording` raises.
    """
    dims, vocabulary, name = model.dims, model.vocabulary, stem_of(source)
    reading["audio_track"] = options.audio_track
    if options.channels is not None and not script:
        channels = load_channels(source, options.channel_names, **reading)
        return split_recording(channels, dims, options, vocabulary, name)
    samples = load_samples(source, **reading)
    if script:
        return aligned_recording(samples, dims, options, vocabulary, script, name)
    return make_recording(samples, dims, options, vocabulary, name)
