"""The table of the options of a transcription, with the help and the limits of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

ON_FAILURE = ("last", "best")  # the values of `Options.on_failure`
TASKS = ("transcribe", "translate")
WITHIN: dict[str, Any] = {"low": 0, "high": 1, "open": True}  # of a probability
MILLISECONDS: dict[str, Any] = {"low": 0, "high": 60_000}  # of silence or speech
MOST_SPEAKERS = 20
WORD_TIMES = ("whisper", "fine")
CHANNELS = ("split",)
AUDIO_WINDOWS = ("auto", "full")


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


def option(default: Any, help: str, *, group: str = "", **arguments: Any) -> Any:
    """A field of `Options` or `LiveOptions`. arguments: of `OptionHelp`."""
    return field(default=default, metadata={"help": OptionHelp(group, help, **arguments)})


# fields by their group
decoding, prompting = partial(option, group="decoding"), partial(option, group="prompting")
thresholds, words = partial(option, group="thresholds"), partial(option, group="words")
speaking = partial(option, group="speakers")
speech = partial(decoding, needs=("vad_filter", "parallel"))  # what counts as speech


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a transcription; names and defaults are `whisper`'s.

    `hotwords`, `multilingual`, `vad_filter` with its settings, `repetition_penalty`,
    `no_repeat_ngram_size` and `prompt_reset_on_temperature` are faster-whisper's; `languages`,
    `parallel`, `speech_only`, `audio_window`, `seed`, `token_logprobs`, `on_failure`, `drop`,
    `sentences`, `hot_words`, `hot_word_bonus`, `audio_track`, and those for speakers
    and channels are slimwhisper's. A new option needs only a field here: the command line gets its
    flag, and `make_options` checks its bounds.
    """

    task: str = decoding(
        "transcribe",
        "transcribe in the language spoken, translate into English, or both, by the command",
        choices=TASKS,
    )
    language: str | None = decoding(None, "language code or name [detected for each file]")
    languages: tuple[str, ...] = decoding((), "languages to choose from, such as de,en [all]")
    multilingual: bool = decoding(False, "detect the language of every window")
    # one, or several to try in turn until a window's text passes the thresholds
    temperature: float | tuple[float, ...] = decoding(
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "first temperature to try; 0 means greedy or beam search"
    )
    best_of: int | None = decoding(
        None, "samples per window at temperatures above 0", low=1, high=100
    )
    beam_size: int | None = decoding(
        None,
        "beams at temperature 0; None means greedy search, several times faster",
        low=1,
        high=100,
    )
    patience: float | None = decoding(
        None,
        "stop a search after beam_size times this many finished texts [1.0]",
        needs=("beam_size",),
    )
    length_penalty: float | None = decoding(
        None, "alpha of the Google NMT length penalty [rank by mean log-probability]", low=0, high=1
    )
    sample_len: int | None = decoding(None, "maximum number of tokens per window [224]")
    repetition_penalty: float = decoding(
        1.0,
        "divide the logits of tokens that a window's text has already, or multiply those below 0",
        low=0,
        high=100,
        open=True,
    )
    no_repeat_ngram_size: int = decoding(
        0, "tokens in a row that a window's text may not repeat; 0: no limit", low=0
    )
    seed: int = decoding(0, "random seed for sampling", low=0)  # each file has its own
    initial_prompt: str | tuple[int, ...] | None = prompting(
        None, "text to condition the first window on"
    )
    carry_initial_prompt: bool = prompting(
        False, "prepend --initial_prompt to the prompt of every window"
    )
    condition_on_previous_text: bool = prompting(True, "prompt each window with the preceding text")
    prompt_reset_on_temperature: float = prompting(
        0.5, "do not condition on text that was sampled at a higher temperature", low=0, high=10
    )
    prefix: str | tuple[int, ...] | None = prompting(None, "text that every window begins with")
    hotwords: str | None = prompting(None, "expected words, added to the prompt of every window")
    # the path of a file, or its lines; `make_options` reads the file
    hot_words: str | tuple[str, ...] = prompting(
        (),
        "file of up to 10,000 words or phrases, one a line, whose tokens get --hot_word_bonus, or "
        "the number after a tab; unlike --hotwords, which is a prompt [none]",
    )
    hot_word_bonus: float = prompting(
        2.0, "added to the log-probability of each token that continues a hot word", low=0, high=20
    )
    without_timestamps: bool = decoding(False, "decode text without timestamps")
    max_initial_timestamp: float | None = decoding(
        1.0, "latest possible first timestamp, in seconds"
    )
    suppress_blank: bool = decoding(True, "do not start with a blank")
    suppress_tokens: str | tuple[int | str, ...] | None = decoding(
        "-1",
        "comma-separated token ids; -1 means symbols that are not spoken, and numerals all tokens "
        "with a digit",
    )
    compression_ratio_threshold: float | None = thresholds(
        2.4, "fall back if the text compresses better than this, which means it repeats itself"
    )
    logprob_threshold: float | None = thresholds(
        -1.0, "fall back if the average log-probability is lower"
    )
    no_speech_threshold: float | None = thresholds(
        0.6,
        "treat a window as silent if its no-speech probability is higher "
        "and it fails --logprob_threshold",
    )
    on_failure: str = thresholds(
        "last",
        "which text to keep if all temperatures fail a threshold: the last, as whisper does, "
        "or the most likely one that does not repeat itself (best)",
        choices=ON_FAILURE,
    )
    drop: tuple[str, ...] = thresholds(
        (),
        "leave segments with one of these flags out of the text, such as invented,repeats; json "
        "keeps them, as dropped [none]",
    )
    word_timestamps: bool = words(False, "find the start and end of each word")
    prepend_punctuations: str = words("\"'“¿([{-", "punctuation to attach to the next word")
    append_punctuations: str = words(
        "\"'.。,，!！?？:：”)]}、", "punctuation to attach to the previous word"
    )
    clip_timestamps: str | tuple[float, ...] = decoding(
        "0", "clips to transcribe, in seconds: start,end,start,end,...; the last end is optional"
    )
    hallucination_silence_threshold: float | None = thresholds(
        None,
        "skip silence longer than this many seconds around text that may be hallucinated; "
        "requires --word_timestamps",
        needs=("word_timestamps",),
    )
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
    audio_track: str | int | None = decoding(
        None,
        "of several audio tracks, the one to transcribe: a number from 1, or a language such as en "
        "[the default one]",
    )
    # the flag is among the model's, as `load_model` has the argument, too
    audio_window: str | None = option(
        None,
        "windows as long as their audio (auto), or with silence up to 30 s (full, None)",
        choices=AUDIO_WINDOWS,
    )
    token_logprobs: bool = decoding(False, "write the log-probability of every token, in json")
    diarize: str | None = speaking(
        None, "find who spoke: embedding, pyannote, an .rttm file, or a folder of NAME.rttm [no]"
    )
    speakers: int | None = speaking(
        None, "number of speakers [detected]", low=1, high=MOST_SPEAKERS, needs=("diarize",)
    )
    known_speakers: tuple[tuple[str, str], ...] = option(
        (), "names, each with the path of a recording of that voice", needs=("diarize",)
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
    word_times: str = words(
        "whisper",
        "times of words: whisper's, or fine: closer to the sound, by attention and loudness",
        choices=WORD_TIMES,
        needs=("word_timestamps",),
    )
    sentences: bool = words(
        False,
        "make each segment a sentence, or a part of one, that can be read as a subtitle; "
        "implies --word_timestamps True",
    )

    @property
    def temperatures(self) -> tuple[float, ...]:
        """`temperature`, one or several, in the order in which they are tried."""
        temperature = self.temperature
        return tuple(temperature) if isinstance(temperature, Sequence) else (temperature,)

    @property
    def windows_of_one(self) -> int:
        """How many windows of one recording to decode together, without `parallel`."""
        return 1 if self.channels is None else 2

    @property
    def clip_seconds(self) -> list[float]:
        """The numbers of `clip_timestamps`. Raises ValueError or TypeError for others."""
        clips = self.clip_timestamps
        parts = [t for t in clips.split(",") if t.strip()] if isinstance(clips, str) else clips
        return [float(t) for t in parts]
