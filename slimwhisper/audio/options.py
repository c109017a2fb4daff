"""The options about what is decoded of a recording: its speech, its channels, a track."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from slimwhisper.errors import OptionError
from slimwhisper.option_group import MILLISECONDS, WITHIN, ModelFacts, OptionGroup, option

CHANNELS = ("split",)
MAX_LETTERS = 64  # of a speaker's name
decoding = partial(option, section="decoding")
speaking = partial(option, section="speakers")
speech: Callable[..., Any] = partial(decoding, needs=("vad_filter", "parallel"))


@dataclass(frozen=True, kw_only=True)
class SpeechOptions(OptionGroup):
    """What counts as speech, and what becomes of the rest.

    The options are those of faster-whisper, except `speech_only` and `parallel`. Those that begin
    with `vad_` need `vad_filter` or `parallel`.

    Attributes:
        vad_filter: Whether to skip audio without speech. The default is False.
        speech_only: Whether not to decode windows of 30 s in which no speech is found. The default
            is False.
        parallel: Whether to decode the speech regions of each file in parallel. It skips the rest
            as `vad_filter` does, and cannot be combined with it. The default is False.
        vad_threshold: The lowest probability that counts as speech, between 0 and 1. The default is
            0.5.
        vad_neg_threshold: The probability below which speech ends, between 0 and 1. None means 0.15
            less than `vad_threshold`.
        vad_min_speech_duration_ms: Speech that is shorter than this many milliseconds is dropped.
            The default is 0.
        vad_max_speech_duration_s: Speech that is longer than this many seconds is cut. None means
            no limit.
        vad_min_silence_duration_ms: The milliseconds of silence that end speech. None means 2000,
            and 300 with `parallel`.
        vad_speech_pad_ms: The milliseconds that are added to speech on both sides. None means 400,
            and 200 with `parallel`.
    """

    vad_filter: bool = decoding(False, "skip audio without speech")
    speech_only: bool = decoding(False, "do not decode windows of 30 s in which no speech is found")
    parallel: bool = decoding(False, "decode the speech regions of each file in parallel")
    vad_threshold: float = speech(
        0.5, "lowest probability that counts as speech, for --vad_filter and --parallel", **WITHIN
    )
    vad_neg_threshold: float | None = speech(
        None, "probability below which speech ends [0.15 less than --vad_threshold]", **WITHIN
    )
    vad_min_speech_duration_ms: int = speech(
        0, "drop speech shorter than this many ms", **MILLISECONDS
    )
    vad_max_speech_duration_s: float | None = speech(
        None, "cut speech longer than this many seconds [no limit]", low=1
    )
    vad_min_silence_duration_ms: int | None = speech(
        None, "milliseconds of silence that end speech [2000; with --parallel, 300]", **MILLISECONDS
    )
    vad_speech_pad_ms: int | None = speech(
        None,
        "milliseconds added to speech on both sides [400; with --parallel, 200]",
        **MILLISECONDS,
    )

    def check(self, model: ModelFacts) -> None:
        """Check that there is one way to skip the rest.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When both `parallel` and `vad_filter` are set.
        """
        if self.parallel and self.vad_filter:
            raise OptionError("parallel already skips audio without speech; drop vad_filter")


@dataclass(frozen=True, kw_only=True)
class ChannelOptions(OptionGroup):
    """The tracks and channels of a recording. They are options of slimwhisper.

    Attributes:
        audio_track: Which of several audio tracks to transcribe: a number from 1, or a language
            such as "en". None means the default one.
        channels: "split" decodes each channel of a recording by itself, without its silences. The
            speaker of a channel is its name. None mixes the channels.
        channel_names: The names of the channels, such as ("agent", "customer"). They need
            `channels`. () means "left" and "right"; of more than two channels, "channel 1" and so
            on.
    """

    audio_track: str | int | None = decoding(
        None,
        "of several audio tracks, the one to transcribe: a number from 1, or a language such as en "
        "[the default one]",
    )
    channels: str | None = speaking(
        None,
        "split: decode each channel of a recording by itself, without its silences; its speaker "
        "is left, right, or of --channel_names [mix the channels]",
        choices=CHANNELS,
    )
    channel_names: tuple[str, ...] = speaking(
        (),
        "names for the channels, such as agent,customer [left,right; of more than two, channel 1 "
        "and so on]",
        needs=("channels",),
    )

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Skip silences and find the times of words if channels are split.

        Most of each channel is silence, in which others speak.

        Args:
            values: The options of all groups that were given, by name. They are changed in place.
            defaults: The model's own values for the others.
            model: The model that they are for.
        """
        if values.get("channels"):
            values.setdefault("vad_filter", not values.get("parallel"))
            values.setdefault("word_timestamps", True)

    def check(self, model: ModelFacts) -> None:
        """Check that there may be such a track, and such names.

        Args:
            model: The model that the options are for.

        Raises:
            OptionError: When the number of the track is below 1, or a name cannot be a speaker's.
        """
        track = self.audio_track
        number = str(track).strip().removeprefix("-")
        if isinstance(track, bool) or (number.isdecimal() and int(str(track)) < 1):
            rule = "give a number from 1, or a language such as en"
            raise OptionError(f"audio_track {track!r}: {rule}")
        check_speaker_names("channel_names", self.channel_names)

    @property
    def windows_of_one(self) -> int:
        """The number of windows of one recording that are decoded together, without `parallel`."""
        return 1 if self.channels is None else 2


def check_speaker_names(option: str, names: Sequence[Any]) -> None:
    """Check the names of speakers.

    Args:
        option: The name of the option, for error messages.
        names: The names.

    Raises:
        OptionError: When a name is empty, too long or not printable, or is given twice.
    """
    for name in names:
        if not (isinstance(name, str) and 0 < len(name.strip()) <= MAX_LETTERS):
            raise OptionError(f"{option}: {name!r}: give a name of 1 to {MAX_LETTERS} characters")
        if not name.isprintable():
            raise OptionError(f"{option}: {name!r}: give a name without line breaks and tabs")
        if names.count(name) > 1:
            raise OptionError(f"{option}: {name!r} is given twice; give each name once")
