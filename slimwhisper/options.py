"""The table of the options of a transcription, with the help and the limits of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ON_FAILURE = ("last", "best")  # the values of `Options.on_failure`
TASKS = ("transcribe", "translate")
WITHIN = {"low": 0, "high": 1, "open": True}  # of a probability
SPEECH = {"needs": ("vad_filter", "parallel")}
MOST_VAD_MS = 60_000
MOST_SPEAKERS = 20


@dataclass(frozen=True, slots=True)
class OptionHelp:
    """The help and the limits of a field of `Options` or `LiveOptions`, wherever it can be set."""

    group: str  # of flags of the command line; "": it has no flag
    help: str
    low: float | None = None  # bounds of a number; None: none
    high: float | None = None
    open: bool = False  # whether the bounds themselves are not allowed
    choices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # options of which one must be set, too


def option(default: Any, group: str, help: str, **arguments: Any) -> Any:
    """A field of `Options` or `LiveOptions`. arguments: of `OptionHelp`."""
    return field(default=default, metadata={"help": OptionHelp(group, help, **arguments)})


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a transcription; names and defaults are `whisper`'s.

    `hotwords`, `multilingual`, `vad_filter` with its settings, `repetition_penalty`,
    `no_repeat_ngram_size` and `prompt_reset_on_temperature` are faster-whisper's; `languages`,
    `parallel`, `seed`, `token_logprobs`, `on_failure`, `expected`, `sentences` and those for
    speakers are slimwhisper's. A new option needs only a field here: the command line gets its
    flag, and `make_options` checks its bounds.
    """

    task: str = option(
        "transcribe",
        "decoding",
        "translate into English, or transcribe in the language spoken",
        choices=TASKS,
    )
    language: str | None = option(
        None, "decoding", "language code or name [detected for each file]"
    )
    languages: tuple[str, ...] = option(
        (), "decoding", "languages to choose from, such as de,en [all]"
    )
    multilingual: bool = option(False, "decoding", "detect the language of every window")
    # one, or several to try in turn until a window's text passes the thresholds
    temperature: float | tuple[float, ...] = option(
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        "decoding",
        "first temperature to try; 0 means greedy or beam search",
    )
    best_of: int | None = option(
        None, "decoding", "samples per window at temperatures above 0", low=1, high=100
    )
    beam_size: int | None = option(
        None,
        "decoding",
        "beams at temperature 0; None means greedy search, several times faster",
        low=1,
        high=100,
    )
    patience: float | None = option(
        None,
        "decoding",
        "stop a search after beam_size times this many finished texts [1.0]",
        needs=("beam_size",),
    )
    length_penalty: float | None = option(
        None,
        "decoding",
        "alpha of the Google NMT length penalty [rank by mean log-probability]",
        low=0,
        high=1,
    )
    sample_len: int | None = option(None, "decoding", "maximum number of tokens per window [224]")
    repetition_penalty: float = option(
        1.0,
        "decoding",
        "divide the logits of tokens that a window's text has already, or multiply those below 0",
        low=0,
        high=100,
        open=True,
    )
    no_repeat_ngram_size: int = option(
        0, "decoding", "tokens in a row that a window's text may not repeat; 0: no limit", low=0
    )
    seed: int = option(0, "decoding", "random seed for sampling", low=0)  # each file has its own
    initial_prompt: str | tuple[int, ...] | None = option(
        None, "prompting", "text to condition the first window on"
    )
    carry_initial_prompt: bool = option(
        False, "prompting", "prepend --initial_prompt to the prompt of every window"
    )
    condition_on_previous_text: bool = option(
        True, "prompting", "prompt each window with the preceding text"
    )
    prompt_reset_on_temperature: float = option(
        0.5,
        "prompting",
        "do not condition on text that was sampled at a higher temperature",
        low=0,
        high=10,
    )
    prefix: str | None = option(None, "prompting", "text that every window begins with")
    hotwords: str | None = option(
        None, "prompting", "expected words, added to the prompt of every window"
    )
    expected: str | None = option(
        None,
        "prompting",
        "file with the text that the recordings should follow, or a folder of NAME.txt: the same "
        "result, faster; not with beams [none]",
    )
    without_timestamps: bool = option(False, "decoding", "decode text without timestamps")
    max_initial_timestamp: float | None = option(
        1.0, "decoding", "latest possible first timestamp, in seconds"
    )
    suppress_blank: bool = option(True, "decoding", "do not start with a blank")
    suppress_tokens: str | tuple[int | str, ...] | None = option(
        "-1",
        "decoding",
        "comma-separated token ids; -1 means symbols that are not spoken, and numerals all tokens "
        "with a digit",
    )
    compression_ratio_threshold: float | None = option(
        2.4,
        "thresholds",
        "fall back if the text compresses better than this, which means it repeats itself",
    )
    logprob_threshold: float | None = option(
        -1.0, "thresholds", "fall back if the average log-probability is lower"
    )
    no_speech_threshold: float | None = option(
        0.6,
        "thresholds",
        "treat a window as silent if its no-speech probability is higher "
        "and it fails --logprob_threshold",
    )
    on_failure: str = option(
        "last",
        "thresholds",
        "which text to keep if all temperatures fail a threshold: the last, as whisper does, "
        "or the most likely one that does not repeat itself (best)",
        choices=ON_FAILURE,
    )
    word_timestamps: bool = option(False, "words", "find the start and end of each word")
    prepend_punctuations: str = option(
        "\"'“¿([{-", "words", "punctuation to attach to the next word"
    )
    append_punctuations: str = option(
        "\"'.。,，!！?？:：”)]}、", "words", "punctuation to attach to the previous word"
    )
    clip_timestamps: str | tuple[float, ...] = option(
        "0",
        "decoding",
        "clips to transcribe, in seconds: start,end,start,end,...; the last end is optional",
    )
    hallucination_silence_threshold: float | None = option(
        None,
        "thresholds",
        "skip silence longer than this many seconds around text that may be hallucinated; "
        "requires --word_timestamps",
        needs=("word_timestamps",),
    )
    vad_filter: bool = option(False, "decoding", "skip audio without speech")
    parallel: bool = option(False, "decoding", "decode the speech regions of each file in parallel")
    vad_threshold: float = option(
        0.5,
        "decoding",
        "lowest probability that counts as speech, for --vad_filter and --parallel",
        **WITHIN,
        **SPEECH,
    )
    vad_neg_threshold: float | None = option(
        None,
        "decoding",
        "probability below which speech ends [0.15 less than --vad_threshold]",
        **WITHIN,
        **SPEECH,
    )
    vad_min_speech_duration_ms: int = option(
        0, "decoding", "drop speech shorter than this many ms", low=0, high=MOST_VAD_MS, **SPEECH
    )
    vad_max_speech_duration_s: float | None = option(
        None, "decoding", "cut speech longer than this many seconds [no limit]", low=1, **SPEECH
    )
    vad_min_silence_duration_ms: int | None = option(
        None,
        "decoding",
        "milliseconds of silence that end speech [2000; with --parallel, 300]",
        low=0,
        high=MOST_VAD_MS,
        **SPEECH,
    )
    vad_speech_pad_ms: int | None = option(
        None,
        "decoding",
        "milliseconds added to speech on both sides [400; with --parallel, 200]",
        low=0,
        high=MOST_VAD_MS,
        **SPEECH,
    )
    token_logprobs: bool = option(
        False, "decoding", "write the log-probability of every token, in json"
    )
    diarize: str | None = option(
        None,
        "speakers",
        "find who spoke: embedding, pyannote, an .rttm file, or a folder of NAME.rttm [no]",
    )
    speakers: int | None = option(
        None,
        "speakers",
        "number of speakers [detected]",
        low=1,
        high=MOST_SPEAKERS,
        needs=("diarize",),
    )
    known_speakers: tuple[tuple[str, str], ...] = option(
        (), "", "names, each with the path of a recording of that voice", needs=("diarize",)
    )
    sentences: bool = option(
        False,
        "words",
        "make each segment a sentence, or a part of one, that can be read as a subtitle; "
        "implies --word_timestamps True",
    )

    @property
    def temperatures(self) -> tuple[float, ...]:
        """`temperature`, one or several, in the order in which they are tried."""
        temperature = self.temperature
        return tuple(temperature) if isinstance(temperature, Sequence) else (temperature,)

    @property
    def clip_seconds(self) -> list[float]:
        """The numbers of `clip_timestamps`. Raises ValueError or TypeError for others."""
        clips = self.clip_timestamps
        parts = [t for t in clips.split(",") if t.strip()] if isinstance(clips, str) else clips
        return [float(t) for t in parts]
