"""The turns of the speakers in a recording, by the options. No engine."""

from importlib import import_module
from pathlib import Path

from slimwhisper.audio.samples import Samples
from slimwhisper.speakers.choice import BACKENDS, SpeakerOptions
from slimwhisper.speakers.rttm import read_rttm, turns_of_recording
from slimwhisper.speakers.turns import FindTurns, Turn


def find_speakers(samples: Samples, options: SpeakerOptions, name: str = "") -> list[Turn]:
    """The turns of a recording, in order.

    name: the recording's, without suffix, to find it in RTTM files. Raises AudioError,
    DependencyError, OptionError.
    """
    assert options.diarize is not None
    if options.diarize not in BACKENDS:
        return turns_of_recording(Path(options.diarize), name)
    find_turns: FindTurns = import_module(BACKENDS[options.diarize].module).find_turns
    turns = find_turns(samples, options.speakers_between)
    if options.known_speakers:
        from slimwhisper.speakers.known import name_known

        turns = name_known(samples, turns, options.known_speakers)
    return turns


def prepare(options: SpeakerOptions) -> None:
    """Load what `find_speakers` needs, so that errors are reported once, before any recording is
    read. Raises as `find_speakers`.
    """
    assert options.diarize is not None
    if options.diarize not in BACKENDS:
        if Path(options.diarize).is_file():
            read_rttm(Path(options.diarize))
        return
    if options.diarize == "pyannote":
        from slimwhisper.speakers.pyannote import load_pipeline

        load_pipeline()
    if options.known_speakers:
        from slimwhisper.speakers.known import voice_of

        for _, path in options.known_speakers:
            voice_of(path)
