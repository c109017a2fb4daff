"""Reads the JSON files that a Hugging Face folder has beside its weights: the settings, and the
vocabulary from them and the tokenizer (tokenizer.json, or the older files that it replaced).

If the tokens are those of openai-whisper's table, that table is used, because it is faster.
Otherwise `tokenizers` reads the folder's files.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimwhisper.checkpoint.files import inside, load_error, read_json_of, reading
from slimwhisper.checkpoint.load import GenerationSettings, Setting
from slimwhisper.errors import CheckpointError
from slimwhisper.formats.settings import (
    CONFIG,
    MARKS,
    TASK_TOKENS,
    chosen_tokens,
    openai_vocabulary,
    own_audio_window,
    parse_settings,
)
from slimwhisper.option_group import TASKS
from slimwhisper.tokens.encoding import LANGUAGES, SPECIAL, Tokenizer
from slimwhisper.tokens.vocabulary import (
    SIZES,
    Vocabulary,
    get_tokenizer,
    is_openai_table,
    ranges_of,
    with_new_names,
)
from slimwhisper.types import HOP_SAMPLES, POSITIONS_PER_SECOND, SAMPLE_RATE, TIMESTAMPS, Dims

if TYPE_CHECKING:  # it takes a moment to import
    import tokenizers

GENERATION, TOKENIZER = "generation_config.json", "tokenizer.json"
EXTRACTORS = ("preprocessor_config.json", "processor_config.json")
FFT_SAMPLES = 400  # of a spectrogram's window
_OF_MODEL = ("feature_size", "chunk_length")  # settings of the audio that depend on the model
# older folders have these instead; normalizer.json is for scoring texts, and is not needed
VOCABULARY, MERGES = "vocab.json", "merges.txt"
ADDED, SPECIAL_TOKENS = "added_tokens.json", "special_tokens_map.json"


def _check_audio(folder: Path, dims: Dims) -> None:
    """Refuse spectrograms that are not Whisper's."""
    for name in EXTRACTORS:
        content = read_json_of(folder, name) or {}
        content = content.get("feature_extractor", content)
        if not isinstance(content, dict):
            what = "feature_extractor is not a JSON object; copy it again"
            raise load_error(f"{folder / name}: {what}")
        required = {
            "feature_size": dims.n_mels,
            "hop_length": HOP_SAMPLES,
            "chunk_length": dims.n_audio_ctx // POSITIONS_PER_SECOND,
            "sampling_rate": SAMPLE_RATE,
            "n_fft": FFT_SAMPLES,
            "dither": 0,
            "do_normalize": False,
        }
        for key, whispers in required.items():
            if content.get(key, whispers) not in (whispers, None):
                source = f"{'config.json' if key in _OF_MODEL else 'Whisper'}'s {whispers!r}"
                found = f"{key} is {content[key]!r}, but only {source} is supported"
                raise load_error(f"{folder / name}: {found}; use a model that was trained with it")


def read_settings(folder: Path, dims: Dims) -> GenerationSettings:
    """Settings from generation_config.json, else from config.json; checks the feature extractor's.

    Raises CheckpointError.
    """
    _check_audio(folder, dims)
    config, generation = (read_json_of(folder, name) for name in (CONFIG, GENERATION))
    source, content = (CONFIG, config or {}) if generation is None else (GENERATION, generation)
    beside = own_audio_window(folder / CONFIG, config or {})  # beside the dimensions
    found = parse_settings(folder / source, content, dims)
    return found if found.audio_window else replace(found, audio_window=beside)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a folder's files."""

    ids: Mapping[str, int]  # of all tokens, by name
    special: frozenset[str]  # no text
    # with these tokens as no text; raises Exception for files that do not fit together
    make: Callable[[Set[str]], "tokenizers.Tokenizer"]


def read_tokens(folder: Path) -> Tokens | None:
    """None: the folder has no tokenizer. Raises CheckpointError."""
    content = read_json_of(folder, TOKENIZER)
    if content is None:
        return _read_older(folder)
    with reading(folder / TOKENIZER, "not a tokenizer file"):
        table, added = content["model"]["vocab"], content.get("added_tokens") or []
        if isinstance(table, list):  # of [name, score]
            table = {entry[0]: i for i, entry in enumerate(table)}
        ids = {str(name): int(i) for name, i in table.items()}
        ids |= {str(a["content"]): int(a["id"]) for a in added}
        special = frozenset(str(a["content"]) for a in added if a.get("special", False))

    def make(special: Set[str]) -> "tokenizers.Tokenizer":
        import tokenizers

        rows = [a | {"special": a["content"] in special} for a in added]
        return tokenizers.Tokenizer.from_str(json.dumps(content | {"added_tokens": rows}))

    return Tokens(ids, special, make)


def _read_older(folder: Path) -> Tokens | None:
    table = read_json_of(folder, VOCABULARY)
    if table is None:
        return None
    merges_file = inside(folder, MERGES)
    if not merges_file.is_file():
        raise load_error(f"{folder}: has {VOCABULARY} but not {MERGES}; copy the tokenizer again")
    with reading(folder / VOCABULARY, f"this, {MERGES} or {ADDED} is damaged"):
        lines = merges_file.read_text(encoding="utf-8").split("\n")
        ids = {name: int(i) for name, i in table.items()}
        more = {n: int(i) for n, i in (read_json_of(folder, ADDED) or {}).items()}
    named = json.dumps(read_json_of(folder, SPECIAL_TOKENS) or {})
    every = ids | more
    special = {name for name in more if json.dumps(name) in named}
    special |= {name for name in every if re.fullmatch(r"<\|.*\|>", name)}

    def make(special: Set[str]) -> "tokenizers.Tokenizer":
        pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        merges = [(first, second) for first, second in pairs]
        added = sorted(special | more.keys(), key=every.__getitem__)
        return byte_level_tokenizer(ids, merges, {name: name in special for name in added})

    return Tokens(every, frozenset(special), make)


def fast_tokenizer(folder: Path, tokens: Tokens, special: Set[str]) -> "tokenizers.Tokenizer":
    """The tokenizer, with exactly the ids in the files. Raises CheckpointError.

    special: the tokens that are no text. In a text, their names are text all the same.
    """
    try:
        fast = tokens.make(special)
    except Exception as error:  # it raises plain Exceptions
        reason = " ".join(str(error).split())[:200]
        message = f"{folder}: the tokenizer cannot be read: {reason}; copy it again"
        raise load_error(message) from error
    fast.encode_special_tokens = True
    for name, i in tokens.ids.items():
        if fast.token_to_id(name) != i:
            what = f"{name[:40]!r} should have id {i}, but ids before it are missing"
            raise load_error(f"{folder}: the tokenizer's token {what}; save the tokenizer again")
    return fast


_LANGUAGE = re.compile(r"<\|([a-z]{2,3}(?:[-_][A-Za-z]{2,8})?)\|>")
_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
_COPY = "copy the tokenizer of this model there"


def read_folder(folder: Path, dims: Dims) -> tuple[Vocabulary, GenerationSettings]:
    """A folder's vocabulary, and its settings with the language and task that they force.

    Raises CheckpointError.
    """
    settings = read_settings(folder, dims)
    tokens = read_tokens(folder)
    if tokens is None and dims.n_vocab not in SIZES:
        problem = f"there is no {TOKENIZER}, and {dims.n_vocab} tokens are not one of {SIZES}"
        raise load_error(f"{folder}: {problem}; {_COPY}")
    is_whispers = dims.n_vocab in SIZES and (tokens is None or _is_whispers(tokens, dims))
    vocabulary = openai_vocabulary(dims, settings) if is_whispers else None
    if vocabulary is None:
        if tokens is None:
            problem = f"its token ids are not Whisper's, and there is no {TOKENIZER}"
            raise load_error(f"{folder / settings.file}: {problem}; {_COPY}")
        vocabulary = _of_tokens(folder, dims, tokens, settings)
    return vocabulary, _with_forced(vocabulary, settings)


# -- openai-whisper's table ------------------------------------------------------------------------


def _is_whispers(tokens: Tokens, dims: Dims) -> bool:
    """Whether they are openai-whisper's, and none was added."""
    t = get_tokenizer(dims)
    added = (name for name, i in tokens.ids.items() if i > t.eot and name not in tokens.special)
    return all(map(_TIMESTAMP.fullmatch, added)) and is_openai_table(tokens.ids, t)


# -- other tables ----------------------------------------------------------------------------------


def _of_tokens(
    folder: Path, dims: Dims, tokens: Tokens, settings: GenerationSettings
) -> Vocabulary:
    ids, size = with_new_names(tokens.ids), dims.n_vocab
    if too_large := [name for name, i in ids.items() if not 0 <= i < size]:
        what = f"the tokenizer's token {too_large[0][:40]!r} has id {ids[too_large[0]]}"
        raise load_error(f"{folder}: {what}, but the model has {size} tokens; {_COPY}")
    chosen = {name: ids[name] for name in (*MARKS, *TASK_TOKENS) if name in ids}
    chosen |= chosen_tokens(settings)
    for name in ("<|endoftext|>", "<|startoftranscript|>"):
        if name not in chosen:
            sources = f"neither the tokenizer nor {settings.file or 'a settings file'}"
            raise load_error(f"{folder}: {sources} defines {name}; {_COPY}")
    timestamps = _timestamps(ids, chosen.get("<|notimestamps|>"), size)
    languages = _languages(ids, chosen, size, settings)
    special = {**chosen, **{f"<|{code}|>": i for i, code in languages.items()}}
    if settings.is_multilingual is False:
        languages, special = {}, {name: i for name, i in chosen.items() if name in MARKS}
    tasks = tuple(task for task in TASKS if f"<|{task}|>" in special)
    core = {*special.values(), *timestamps}
    texts = ranges_of(i for n, i in tokens.ids.items() if n not in tokens.special and i not in core)
    if not texts:
        raise load_error(f"{folder}: the tokenizer has no text tokens; copy it again")

    # read it now, so that a damaged file is refused when the model is loaded
    no_text = {name for name, i in tokens.ids.items() if not any(i in part for part in texts)}
    eot = special["<|endoftext|>"]
    encoding = FolderEncoding(fast_tokenizer(folder, tokens, no_text), eot, size)
    of_texts = partial(FolderTokenizer, encoding, special, texts, timestamps, languages)
    return Vocabulary(
        size=size,
        eot=eot,
        sot=special["<|startoftranscript|>"],
        no_speech=special.get("<|nospeech|>"),
        no_timestamps=special.get("<|notimestamps|>"),
        timestamps=timestamps,
        languages=languages,
        texts=texts,
        make_tokenizer=lru_cache(maxsize=256)(of_texts),
        tasks=tasks,
        sot_prev=special.get("<|startofprev|>"),
        suppressed=settings.suppress_tokens,
        suppressed_first=settings.begin_suppress_tokens,
    )


def _timestamps(ids: Mapping[str, int], no_timestamps: int | None, size: int) -> range:
    """The timestamps by their names, or, in older folders, which do not name them, those after
    <|notimestamps|>. Empty if there are none.
    """
    begin = ids.get("<|0.00|>")
    if begin is not None:
        count = 1
        while ids.get(f"<|{count * 0.02:.2f}|>") == begin + count:
            count += 1
        return range(begin, begin + count)
    if no_timestamps is not None and no_timestamps + 1 + TIMESTAMPS <= size:
        following = range(no_timestamps + 1, no_timestamps + 1 + TIMESTAMPS)
        if not any(i in following for i in ids.values()):
            return following
    return range(size, size)


def _languages(
    ids: Mapping[str, int], special: Mapping[str, int], size: int, settings: GenerationSettings
) -> dict[int, str]:
    """Token -> code: those of the settings, else Whisper's codes and others between <|start...|>
    and the tasks.
    """
    if settings.lang_to_id is not None:
        return {i: code for code, i in sorted(settings.lang_to_id.items(), key=lambda p: p[1])}
    first_task = min((special[name] for name in TASK_TOKENS if name in special), default=size)
    between = range(special["<|startoftranscript|>"] + 1, first_task)
    named = {i: match[1] for name, i in ids.items() if (match := _LANGUAGE.fullmatch(name))}
    return {i: code for i, code in sorted(named.items()) if code in LANGUAGES or i in between}


def _with_forced(vocabulary: Vocabulary, settings: GenerationSettings) -> GenerationSettings:
    """The settings with the language and task that forced_decoder_ids mean. `language` and `task`
    have priority, as in transformers; <|notimestamps|> is ignored, as segments are cut at
    timestamps.
    """
    if settings.language is not None or settings.task is not None:
        return settings
    tokenizer = vocabulary.tokenizer()
    tasks = {getattr(tokenizer, task): task for task in vocabulary.tasks}
    changes: dict[str, Any] = {}
    for _, token in settings.forced:
        if token in vocabulary.languages:
            changes["language"] = vocabulary.languages[token]
        elif token is not None and token in tasks:
            changes["task"] = tasks[token]
        elif token not in (None, vocabulary.no_timestamps):
            row = Setting("forced_decoder_ids", str(token), "not followed", followed=False)
            changes["ignored"] = (*settings.ignored, row)
    return replace(settings, **changes)


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Turns a panic of `tokenizers`, which no `except Exception` sees, into a CheckpointError: its
    regular expressions give up after many steps, and patterns come from the model's files.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = f"{error}".splitlines()[0][:200]
        remedy = "correct the patterns in its tokenizer.json"
        raise CheckpointError(f"the model's tokenizer fails: {reason}; {remedy}") from None


class FolderEncoding:
    """The calls of `tiktoken.Encoding` that `whisper`'s Tokenizer makes."""

    def __init__(self, fast: "tokenizers.Tokenizer", eot: int, size: int) -> None:
        """size: ids from 0 up; some may have no token."""
        fast.no_truncation()
        fast.no_padding()
        self.fast, self.eot_token, self.n_vocab = fast, eot, size

    def encode(self, text: str, **_: Any) -> list[int]:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # as tiktoken
        with _panics_as_errors():
            return list(self.fast.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """The text of tokens; ids that have none are left out."""
        with _panics_as_errors():
            return str(self.fast.decode(list(tokens), skip_special_tokens=False))


class FolderTokenizer(Tokenizer):
    """Texts as tokens and back. Tokens that the vocabulary lacks are None, and not in prompts."""

    def __init__(
        self,
        encoding: FolderEncoding,
        special_tokens: Mapping[str, int],
        texts: tuple[range, ...],
        timestamps: range,
        languages: Mapping[int, str],
        language: str | None,
        task: str,
    ) -> None:
        """special_tokens: by `whisper`'s names, such as "<|transcribe|>", timestamps aside.
        texts: the ids of text. languages: token -> code. language: a code; None: not in the prompt.
        """
        self.encoding, self.special_tokens = encoding, dict(special_tokens)
        self.texts, self.timestamps, self.languages = texts, timestamps, dict(languages)
        self.num_languages, self.language = len(languages), language
        self.task = task if f"<|{task}|>" in special_tokens else None
        names = [f"<|{n}|>" for n in ("startoftranscript", language, task) if n is not None]
        self.sot_sequence = tuple(special_tokens[n] for n in names if n in special_tokens)
        self.timestamp_begin = timestamps.start
        self.all_language_tokens = tuple(self.languages)
        self.all_language_codes = tuple(self.languages.values())
        self.eot = encoding.eot_token
        for name, token in SPECIAL.items():
            setattr(self, name, self.special_tokens.get(token))

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        """The text, without special tokens and timestamps."""
        return self.encoding.decode([t for t in token_ids if self.is_text(t)])

    def decode_with_timestamps(self, token_ids: Sequence[int], **_: Any) -> str:
        """The text, with the names of other tokens."""
        parts: list[str] = []
        for is_text, group in groupby(token_ids, key=self.is_text):
            tokens = list(group)
            parts += [self.encoding.decode(tokens)] if is_text else map(self._name, tokens)
        return "".join(parts)

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """As in `whisper`; none if the vocabulary has no "-"."""
        if not (self.encode(" -") and self.encode(" '")):
            return ()
        return super().non_speech_tokens

    def is_text(self, token: int) -> bool:
        """Whether a token is text, not special."""
        return any(token in ids for ids in self.texts)

    def _name(self, token: int) -> str:
        if token in self.timestamps:
            return f"<|{(token - self.timestamps.start) * 0.02:.2f}|>"
        return self.encoding.fast.id_to_token(token) or ""


def byte_level_tokenizer(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], added: Mapping[str, bool]
) -> "tokenizers.Tokenizer":
    """GPT-2's pattern and letters.

    Arguments:
        vocabulary: token, spelled as by `tokens.vocabulary.spelled` -> id.
        merges: pairs of tokens, the first to merge first.
        added: tokens that are matched whole in texts, in the order of their ids -> whether they are
            special, not text. Those that are not in the vocabulary get the ids after it.
    Raises Exception, as `tokenizers` does, for merges of tokens that are not in the vocabulary.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [AddedToken(name, special=special, normalized=False) for name, special in added.items()]
    )
    return tokenizer
