"""The settings that came with a model: how its makers decode with it, read from a folder's JSON.

Names and meanings are those of transformers' `GenerationConfig` and `WhisperFeatureExtractor`.
What a folder does not say is Whisper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slimwhisper.checkpoint.alignment_heads import Heads, heads_of
from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import Fields, read_json_of
from slimwhisper.tokens.vocabulary import TASKS
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    MEL_FRAMES_PER_POSITION,
    SAMPLE_RATE,
    Dims,
)

GENERATION, CONFIG = "generation_config.json", "config.json"
EXTRACTORS = ("preprocessor_config.json", "processor_config.json")
_FFT_SAMPLES = 400
# what transformers would follow and we do not, and the values that say nothing
_OTHERS: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "do_sample": (None, False),
    "repetition_penalty": (None, 1, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0),
    "bad_words_ids": (None, []),
    "sequence_bias": (None,),
}
_EFFECTS = {  # setting: its effect, and the flag of `slimwhisper transcribe` that overrides it
    "suppress_tokens": ("never sampled", "--suppress_tokens"),
    "begin_suppress_tokens": ("never sampled first", "--suppress_blank"),
    "language": ("the language, instead of detecting it", "--language"),
    "task": ("the task", "--task"),
    "max_initial_timestamp_index": (
        "the latest first timestamp, in steps of 20 ms",
        "--max_initial_timestamp",
    ),
    "max_length": ("most tokens of a window", "--sample_len"),
    "return_timestamps": ("segments are cut at timestamps", "--without_timestamps"),
    "is_multilingual": ("languages and tasks are in the prompt or not", ""),
    "lang_to_id": ("their tokens", ""),
    "task_to_id": ("their tokens", ""),
    "no_timestamps_token_id": ("timestamps follow it", ""),
    "alignment_heads": ("heads that word timestamps are from", ""),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a model, for people."""

    name: str
    value: str
    effect: str
    flag: str = ""  # of `slimwhisper transcribe`, which overrides it
    followed: bool = True

    def __str__(self) -> str:
        flag = f"; {self.flag} overrides it" if self.flag else ""
        return f"the model's {self.name}: {self.value} ({self.effect}{flag})"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a folder says about decoding; None: nothing."""

    file: str = ""  # where it stands; empty: the folder has no such file
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    language: str | None = None  # a code or a name
    task: str | None = None
    max_initial_timestamp_index: int | None = None  # tokens of 20 ms
    max_length: int | None = None  # most tokens sampled
    return_timestamps: bool | None = None
    is_multilingual: bool | None = None
    lang_to_id: Mapping[str, int] | None = None  # such as {"de": 50261}
    task_to_id: Mapping[str, int] | None = None  # such as {"transcribe": 50359}
    eos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    no_timestamps_token_id: int | None = None
    prev_sot_token_id: int | None = None
    alignment_heads: Heads | None = None
    forced: tuple[tuple[int, int | None], ...] = ()  # forced_decoder_ids: place, token
    ignored: tuple[Setting, ...] = field(default=())  # cannot be followed

    def defaults(self, dims: Dims) -> dict[str, Any]:
        """The options of `Options` that it gives, for a model of these dimensions."""
        found: dict[str, Any] = {"language": self.language, "task": self.task}
        if self.max_initial_timestamp_index is not None:
            seconds = self.max_initial_timestamp_index * MEL_FRAMES_PER_POSITION / FRAMES_PER_SECOND
            found["max_initial_timestamp"] = seconds
        if self.max_length is not None and self.max_length < dims.n_text_ctx // 2:
            found["sample_len"] = self.max_length
        return {name: value for name, value in found.items() if value is not None}

    def rows(self) -> list[Setting]:
        """All that it says, in the order of docs/checkpoints.md."""
        found = []
        for name, (effect, flag) in _EFFECTS.items():
            value = getattr(self, name)
            if value is None or value == ():
                continue
            words = value if isinstance(value, tuple) else (value,)
            shown = ", ".join(map(str, words))
            if name == "alignment_heads":
                shown = str(sum(map(len, value.values())))
            elif isinstance(value, Mapping) or len(words) > 6:
                shown = f"{len(value)} tokens"
            followed = name != "return_timestamps" or value
            effect = effect if followed else f"not followed: {effect}"
            found.append(Setting(name, shown, effect, flag, followed))
        return [*found, *self.ignored]


WHISPERS = Settings()  # of a model that came without


def _check_audio(folder: Path, dims: Dims) -> None:
    """Refuse spectrograms that are not Whisper's."""
    for name in EXTRACTORS:
        content = read_json_of(folder, name)
        if content is None:
            continue
        content = content.get("feature_extractor", content)
        if not isinstance(content, dict):
            raise problem(f"{folder / name}: feature_extractor is not a JSON object; copy it again")
        wanted = {
            "feature_size": dims.n_mels,
            "hop_length": HOP_SAMPLES,
            "chunk_length": dims.window_frames // FRAMES_PER_SECOND,
            "sampling_rate": SAMPLE_RATE,
            "n_fft": _FFT_SAMPLES,
            "dither": 0,
            "do_normalize": False,
        }
        for key, whispers in wanted.items():
            if content.get(key, whispers) not in (whispers, None):
                ours = key in ("feature_size", "chunk_length")
                source = "config.json's" if ours else "Whisper's"
                raise problem(
                    f"{folder / name}: {key} is {content[key]!r}, and only {source} {whispers!r} "
                    "can be run; take a model that was trained with it"
                )


class _Tokens(Fields):
    """Fields that hold token ids, or None where they are not given. Raises CheckpointError."""

    def __init__(self, file: Path, content: Mapping[str, Any], size: int) -> None:
        """size: of the vocabulary."""
        super().__init__(file, content)
        self.size = size

    def token(self, key: str) -> int | None:
        value = self.content.get(key)
        if isinstance(value, list) and len(value) == 1:  # eos_token_id may be a list
            value = value[0]
        if value is not None and not self._is_token(value):
            raise self.wrong(key, f"no token id below {self.size}")
        return value

    def tokens(self, key: str) -> tuple[int, ...] | None:
        """Those of the vocabulary; transformers passes over others too."""
        value = self.get(key, list)
        if value is None:
            return None
        if any(type(t) is not int for t in value):
            raise self.wrong(key, "not a list of token ids")
        return tuple(sorted({t for t in value if self._is_token(t)}))

    def named(self, key: str) -> dict[str, int] | None:
        value = self.get(key, dict)
        if value is None:
            return None
        if not all(map(self._is_token, value.values())):
            raise self.wrong(key, f"not names with token ids below {self.size}")
        return {_bare(name): t for name, t in value.items()}

    def placed(self, key: str) -> tuple[tuple[int, int | None], ...]:
        """Pairs of a place and a token."""
        pairs = self.get(key, list, [])
        for pair in pairs:
            kinds = [type(n) for n in pair] if isinstance(pair, list) else []
            if kinds not in ([int, int], [int, type(None)]):
                raise self.wrong(key, "not a list of places and token ids")
        return tuple((place, token) for place, token in pairs)

    def _is_token(self, value: Any) -> bool:
        return type(value) is int and 0 <= value < self.size


def _bare(token: str) -> str:
    """ "<|de|>" -> "de"."""
    return token.removeprefix("<|").removesuffix("|>")


def read_settings(folder: Path, dims: Dims) -> Settings:
    """Of generation_config.json, else of config.json; checks the feature extractor's.

    Raises CheckpointError in one line: the file, the value, and what would work.
    """
    _check_audio(folder, dims)
    name, content = GENERATION, read_json_of(folder, GENERATION)
    if content is None:
        name, content = CONFIG, read_json_of(folder, CONFIG) or {}
    own = name == GENERATION  # config.json has Whisper's own, whatever was trained
    fields = _Tokens(folder / name, content, dims.n_vocab)
    task, language = fields.get("task", str), fields.get("language", str)
    if task is not None and task not in TASKS:
        raise fields.wrong("task", f"neither {TASKS[0]!r} nor {TASKS[1]!r}")
    return Settings(
        file=name,
        suppress_tokens=fields.tokens("suppress_tokens"),
        begin_suppress_tokens=fields.tokens("begin_suppress_tokens"),
        language=None if language is None else _bare(language),
        task=task,
        max_initial_timestamp_index=fields.whole("max_initial_timestamp_index", 0),
        max_length=fields.whole("max_length", 1) if own else None,
        return_timestamps=fields.get("return_timestamps", bool),
        is_multilingual=fields.get("is_multilingual", bool),
        lang_to_id=fields.named("lang_to_id"),
        task_to_id=fields.named("task_to_id"),
        eos_token_id=fields.token("eos_token_id") if own else None,
        decoder_start_token_id=fields.token("decoder_start_token_id") if own else None,
        no_timestamps_token_id=fields.token("no_timestamps_token_id"),
        prev_sot_token_id=fields.token("prev_sot_token_id"),
        alignment_heads=heads_of(content.get("alignment_heads"), dims),
        forced=fields.placed("forced_decoder_ids"),
        ignored=tuple(
            Setting(key, str(content[key]), "not followed", followed=False)
            for key, plain in _OTHERS.items()
            if content.get(key) not in plain
        ),
    )
