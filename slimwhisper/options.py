"""All options of a transcription, joined from the groups of their features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimwhisper.audio.options import ChannelOptions
from slimwhisper.errors import OptionError
from slimwhisper.hot_words.options import HotWordOptions
from slimwhisper.longform.options import RecordingOptions
from slimwhisper.option_group import ModelFacts, check_names, check_rows, groups_of, plain_values
from slimwhisper.speakers.choice import SpeakerOptions
from slimwhisper.subtitles import SentenceOptions
from slimwhisper.trust import TrustOptions
from slimwhisper.word_times.options import WordOptions

if TYPE_CHECKING:
    from slimwhisper.checkpoint.load import Setting

IGNORED = ("fp16",)  # whisper's; the dtype is chosen when a model is loaded


# the fields of a later base come first
@dataclass(frozen=True, kw_only=True)
class Options(
    SentenceOptions,
    TrustOptions,
    SpeakerOptions,
    ChannelOptions,
    HotWordOptions,
    WordOptions,
    RecordingOptions,
):
    """The options of a transcription, with the names and the defaults of `whisper`.

    They are the keyword arguments of `transcribe`, `transcribe_many` and `align`. Use
    `SlimWhisper.make_options` to make them with the model's own settings and all checks. The
    options come in groups, each of which says which of its options are those of faster-whisper or
    of slimwhisper:

    - `LanguageOptions` has the language and the task.
    - `SearchOptions` says how the text of a window is searched.
    - `SpeechOptions` says what counts as speech.
    - `PromptOptions` and `HotWordOptions` have what is known of the text.
    - `ThresholdOptions` says when a text fails.
    - `WordOptions` has the times of words.
    - `RecordingOptions` has clips and the length of windows.
    - `ChannelOptions` has tracks and channels.
    - `SpeakerOptions` says how to find who speaks.
    - `TrustOptions` leaves doubtful segments out.
    - `SentenceOptions` makes segments that can be read as subtitles.

    A new option needs only a field in its group, and a new group its place among the bases of this
    class. The command line gets a flag for it, and `make_options` checks its limits.
    """

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Check that the groups do not contradict each other.

        Args:
            values: The options that were given, by name.
            defaults: The model's own values for the others.
            model: The model that they are for.

        Raises:
            OptionError: When both channels and voices are to name the speakers.
        """
        if values.get("channels") and values.get("diarize"):
            raise OptionError("channels: each channel is a speaker already; identify no speakers")


def make_options(model: ModelFacts, **values: Any) -> Options:
    """Make the complete options of a call.

    An option that is not given has the value of the model's own settings, if they have one, and
    else Whisper's default.

    Args:
        model: What is known of the model.
        **values: The fields of `Options`. `fp16`, which `whisper` has, is ignored.

    Returns:
        The checked options.

    Raises:
        OptionError: When an option has an unknown name or an invalid value, or when the options
            contradict each other or are not for this model. The message has the name, the value and
            what to do.
        DependencyError: When an option needs a package that is not installed.
    """
    if values.pop("prompt", None) is not None:  # one of `whisper`'s, which replaces it as well
        raise OptionError("prompt: every window has its own here; give initial_prompt, or decode")
    given = {name: value for name, value in values.items() if name not in IGNORED}
    check_names(Options, given)
    given = plain_values(given)
    defaults = {} if model.settings is None else model.settings.defaults(model.dims)
    for group in groups_of(Options, "prepare"):
        group.prepare(given, defaults, model)
    options = Options(**{**defaults, **given})
    check_rows(options)
    for group in groups_of(Options, "check"):
        group.check(options, model)
    return options


def changed_settings(model: ModelFacts) -> list[Setting]:
    """List the settings of a model that make it decode differently from Whisper's own models.

    Args:
        model: What is known of the model.

    Returns:
        The settings that differ.
    """
    vocabulary, settings, plain = model.vocabulary, model.settings, Options()
    lists = {
        "suppress_tokens": vocabulary.suppressed is not None,
        "begin_suppress_tokens": vocabulary.suppressed_first is not None,
        "is_multilingual": settings.is_multilingual is False and model.dims.is_multilingual,
    }
    names = {"max_initial_timestamp_index": "max_initial_timestamp", "max_length": "sample_len"}
    defaults = settings.defaults(model.dims)

    def changes(row: Setting) -> bool:
        name = names.get(row.name, row.name)
        if row.name in lists:
            return lists[row.name]
        return not row.followed or defaults.get(name) not in (None, getattr(plain, name, None))

    return [row for row in settings.rows() if row.name != "return_timestamps" and changes(row)]
