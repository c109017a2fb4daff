"""The settings that came with a model: how its makers decode with it, read from a folder's JSON.

Names and meanings are those of transformers' `GenerationConfig` and `WhisperFeatureExtractor`.
What a folder does not say is Whisper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slimwhisper.checkpoint.errors import problem
from slimwhisper.checkpoint.files import read_json_of
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
    alignment_heads: int = 0  # how many are given
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

        def tokens(ids: tuple[int, ...]) -> str:
            return f"{len(ids)} tokens" if len(ids) > 6 else ", ".join(map(str, ids)) or "none"

        found = []

        def row(name: str, value: Any, effect: str, flag: str = "", followed: bool = True) -> None:
            if value is not None and value != ():
                shown = tokens(value) if isinstance(value, tuple) else str(value)
                found.append(Setting(name, shown, effect, flag, followed))

        row("suppress_tokens", self.suppress_tokens, "never sampled", "--suppress_tokens")
        row(
            "begin_suppress_tokens",
            self.begin_suppress_tokens,
            "never sampled first",
            "--suppress_blank",
        )
        row("language", self.language, "the language, instead of detecting it", "--language")
        row("task", self.task, "the task", "--task")
        row(
            "max_initial_timestamp_index",
            self.max_initial_timestamp_index,
            "the latest first timestamp, in steps of 20 ms",
            "--max_initial_timestamp",
        )
        row("max_length", self.max_length, "most tokens of a window", "--sample_len")
        row(
            "return_timestamps",
            self.return_timestamps,
            "segments are cut at timestamps"
            if self.return_timestamps
            else "not followed: segments are cut at timestamps",
            "--without_timestamps",
            self.return_timestamps is not False,
        )
        row("is_multilingual", self.is_multilingual, "languages and tasks are in the prompt or not")
        for name in ("lang_to_id", "task_to_id"):
            entries = getattr(self, name)
            row(name, None if entries is None else f"{len(entries)} tokens", "their tokens")
        row("no_timestamps_token_id", self.no_timestamps_token_id, "timestamps follow it")
        row("alignment_heads", self.alignment_heads or None, "heads that word timestamps are from")
        return [*found, *self.ignored]


WHISPERS = Settings()  # of a model that came without


def read_settings(folder: Path, dims: Dims) -> Settings:
    """Of generation_config.json, else of config.json; checks the feature extractor's.

    Raises CheckpointError in one line: the file, the value, and what would work.
    """
    _check_audio(folder, dims)
    name, content = GENERATION, read_json_of(folder, GENERATION)
    if content is None:
        name, content = CONFIG, read_json_of(folder, CONFIG) or {}
    return _Reader(folder / name, content, dims).settings()


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


def _bare(token: str) -> str:
    """ "<|de|>" -> "de"."""
    return token.removeprefix("<|").removesuffix("|>")


class _Reader:
    """Checks the kinds of a file's values."""

    def __init__(self, file: Path, content: Mapping[str, Any], dims: Dims) -> None:
        self.file, self.content, self.dims = file, content, dims

    def settings(self) -> Settings:
        forced = self._forced()
        ignored = [
            Setting(key, str(self.content[key]), "not followed", followed=False)
            for key, plain in _OTHERS.items()
            if self.content.get(key) not in plain
        ]
        task = self._one("task", str)
        if task is not None and task not in TASKS:
            raise self._wrong("task", f"neither {TASKS[0]!r} nor {TASKS[1]!r}")
        language = self._one("language", str)
        heads = self.content.get("alignment_heads")
        own = self.file.name == GENERATION  # config.json has Whisper's own, whatever was trained
        return Settings(
            file=self.file.name,
            suppress_tokens=self._ids("suppress_tokens"),
            begin_suppress_tokens=self._ids("begin_suppress_tokens"),
            language=None if language is None else _bare(language),
            task=task,
            max_initial_timestamp_index=self._number("max_initial_timestamp_index"),
            max_length=self._number("max_length", least=1) if own else None,
            return_timestamps=self._one("return_timestamps", bool),
            is_multilingual=self._one("is_multilingual", bool),
            lang_to_id=self._tokens("lang_to_id"),
            task_to_id=self._tokens("task_to_id"),
            eos_token_id=self._token("eos_token_id") if own else None,
            decoder_start_token_id=self._token("decoder_start_token_id") if own else None,
            no_timestamps_token_id=self._token("no_timestamps_token_id"),
            prev_sot_token_id=self._token("prev_sot_token_id"),
            alignment_heads=len(heads) if isinstance(heads, list) else 0,
            forced=forced,
            ignored=tuple(ignored),
        )

    def _wrong(self, key: str, what: str) -> Exception:
        value = f"{self.content[key]!r}"[:80]
        return problem(f"{self.file}: {key} is {value}, {what}; correct it, or copy the file again")

    def _one(self, key: str, kind: type) -> Any:
        value = self.content.get(key)
        if value is not None and type(value) is not kind:
            raise self._wrong(key, f"not of the kind {kind.__name__}")
        return value

    def _number(self, key: str, least: int = 0) -> int | None:
        value: int | None = self._one(key, int)
        if value is not None and value < least:
            raise self._wrong(key, f"less than {least}")
        return value

    def _token(self, key: str) -> int | None:
        value = self.content.get(key)
        if isinstance(value, list) and len(value) == 1:  # eos_token_id may be a list
            value = value[0]
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < self.dims.n_vocab:
            raise self._wrong(key, f"no token id below {self.dims.n_vocab}")
        return value

    def _ids(self, key: str) -> tuple[int, ...] | None:
        """Those of the vocabulary; transformers passes over others too."""
        value = self.content.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(type(t) is not int for t in value):
            raise self._wrong(key, "not a list of token ids")
        return tuple(sorted({t for t in value if 0 <= t < self.dims.n_vocab}))

    def _tokens(self, key: str) -> dict[str, int] | None:
        value = self.content.get(key)
        if value is None:
            return None
        size = self.dims.n_vocab
        if not isinstance(value, dict) or any(
            type(t) is not int or not 0 <= t < size for t in value.values()
        ):
            raise self._wrong(key, f"not names with token ids below {size}")
        return {_bare(name): t for name, t in value.items()}

    def _forced(self) -> tuple[tuple[int, int | None], ...]:
        value = self.content.get("forced_decoder_ids")
        if value is None:
            return ()
        sound = isinstance(value, list) and all(
            isinstance(pair, list)
            and len(pair) == 2
            and type(pair[0]) is int
            and (pair[1] is None or type(pair[1]) is int)
            for pair in value
        )
        if not sound:
            raise self._wrong("forced_decoder_ids", "not a list of places and token ids")
        return tuple((place, token) for place, token in value)
