"""All options of a transcription, joined from the groups of their features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from slimwhisper.audio.options import ChannelOptions
from slimwhisper.errors import OptionError
from slimwhisper.longform.options import RecordingOptions
from slimwhisper.option_group import ModelFacts, check_names, check_rows, groups_of, plain_values
from slimwhisper.speakers.choice import SpeakerOptions
from slimwhisper.subtitles import SentenceOptions
from slimwhisper.trust import TrustOptions

if TYPE_CHECKING:
    from slimwhisper.checkpoint.settings import Setting

IGNORED = ("fp16",)  # whisper's; the dtype is chosen when a model is loaded


# the fields of a later base come first
@dataclass(frozen=True, kw_only=True)
class Options(SentenceOptions, TrustOptions, SpeakerOptions, ChannelOptions, RecordingOptions):
    """The options of a transcription; names and defaults are `whisper`'s.

    Each group says which of its own are faster-whisper's or slimwhisper's. A new option needs only
    a field in its group, and a new group its place here: the command line gets its flags, and
    `make_options` checks its limits.
    """

    @classmethod
    def prepare(cls, values: dict[str, Any], defaults: dict[str, Any], model: ModelFacts) -> None:
        """Raises OptionError for groups that contradict each other."""
        if values.get("channels") and values.get("diarize"):
            raise OptionError("channels: each channel is a speaker already; leave out diarize")


def make_options(model: ModelFacts, **values: Any) -> Options:
    """The options of a call: those given, else the model's own settings, else Whisper's.

    Raises `OptionError` with the name, the value and what to do; `DependencyError` for a package
    that an option needs.
    """
    if values.pop("prompt", None) is not None:  # one of `whisper`'s, which replaces it as well
        raise OptionError("prompt: every window has its own here; give initial_prompt, or decode")
    given = {name: value for name, value in values.items() if name not in IGNORED}
    check_names(Options, given)
    given = plain_values(given)
    for row in fields(Options):
        value = given.get(row.name)
        if "tuple" in str(row.type) and isinstance(value, Sequence) and not isinstance(value, str):
            given[row.name] = tuple(value)
    defaults = {} if model.settings is None else model.settings.defaults(model.dims)
    for group in groups_of(Options, "prepare"):
        group.prepare(given, defaults, model)
    options = Options(**{**defaults, **given})
    check_rows(options)
    for group in groups_of(Options, "check"):
        group.check(options, model)
    return options


def changed_settings(model: ModelFacts) -> list[Setting]:
    """The settings of a model that make it decode differently from Whisper's own models."""
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
