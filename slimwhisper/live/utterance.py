"""The text of an utterance, and that of its speech buffers."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimwhisper.engine.requests import Decoded
from slimwhisper.live.policy import TextPiece, letters_of
from slimwhisper.live.setup import UpdateSettings
from slimwhisper.live.types import UtteranceEnded
from slimwhisper.longform.requests import Prompts, compression_ratio
from slimwhisper.speakers.live import LiveSpeakers
from slimwhisper.types import Segment, Word


class BufferText:
    """A buffer's text since its last cut: committed tokens, and words that may still change."""

    def __init__(self) -> None:
        self.committed: list[int] = []  # tokens
        self.logprobs: list[float] = []  # of `committed`
        self.words: list[TextPiece] = []  # tentative
        self.result = Decoded()  # of the update that committed the last words

    @property
    def tentative(self) -> tuple[int, ...]:
        """The tokens of the words that may still change."""
        return tuple(t for word in self.words for t in word.tokens)

    def commit(self, count: int, result: Decoded) -> tuple[str, list[int]]:
        """Commit the first words; returns their text and their tokens."""
        committed, self.words, self.result = self.words[:count], self.words[count:], result
        tokens = [t for word in committed for t in word.tokens]
        self.committed += tokens
        self.logprobs += [p for word in committed for p in word.logprobs]
        return "".join(word.text for word in committed), tokens

    def tokens_with(self, count: int) -> int:
        """How many tokens are committed since the cut once the first words are."""
        return len(self.committed) + sum(len(word.tokens) for word in self.words[:count])

    def words_within(self, tokens: int) -> int:
        """How many words must be committed for this many committed tokens since the cut."""
        most = len(self.words)
        return next((n for n in range(most) if self.tokens_with(n) >= tokens), most)

    def cut(self, tokens: int) -> None:
        """Remove the first tokens, which became part of a segment."""
        del self.committed[:tokens], self.logprobs[:tokens]


@dataclass(frozen=True, slots=True)
class Heard:
    """Some speech, and its text."""

    logs: Tensor  # [n_mels, frames] float32: `LiveMel.logs`
    tokens: tuple[int, ...] = ()


class History:
    """The last segments of a stream, as many as an update may have before its buffer."""

    def __init__(self, n_mels: int) -> None:
        self.tokens: list[int] = []  # the stream's latest: the segments', and some before them
        self.nothing, self._segments = Heard(torch.empty(n_mels, 0)), deque[Heard]()
        self._language: str | None = None  # of the segments

    def clear(self) -> None:
        """Forget all."""
        self.tokens.clear()
        self._segments.clear()

    def add(self, segment: Heard, language: str | None, setup: UpdateSettings) -> None:
        """Append a segment; those before it stay as long as an update may have all."""
        self.tokens += segment.tokens
        del self.tokens[: -setup.dims.n_text_ctx // 2]
        if language != self._language:
            self._segments.clear()
        self._language = language
        self._segments.append(segment)
        while sum(each.logs.shape[1] for each in self._segments) > setup.heard_frames:
            self._segments.popleft()

    def context(self, language: str | None, frames: int, tokens: int) -> Heard:
        """The last segments in this language that have no more mel frames and tokens."""
        found = self.nothing
        for each in reversed(self._segments if language == self._language else ()):
            joined = Heard(torch.cat([each.logs, found.logs], dim=1), each.tokens + found.tokens)
            if joined.logs.shape[1] > frames or len(joined.tokens) > tokens:
                break
            found = joined
        return found


class Utterance:
    """The text of one utterance; its audio is in speech buffers."""

    def __init__(
        self,
        number: int,
        start: float,
        setup: UpdateSettings,
        history: History,
        speakers: LiveSpeakers | None = None,
    ) -> None:
        """start: seconds. history: the stream's, which grows. speakers: of the stream; None: not
        requested.
        """
        self.number, self.start, self.end, self.setup = number, start, start, setup
        self.text = ""  # all committed text
        kept = setup.live.condition_on_previous_text
        self.history = history if kept else History(setup.dims.n_mels)
        self._segments = list[Segment]()
        self.speakers = speakers
        self.language: str | None = None  # code; None: not known yet
        self.continues = False  # in the language before it
        if setup.language is not None:
            self.set_language(setup.language)

    def set_language(self, code: str) -> None:
        self.language = code
        self.tokenizer = self.setup.vocabulary.tokenizer(code, self.setup.options.task)

    def prompt(self, said: list[int], room: int) -> tuple[tuple[int, ...], int]:
        """The prompt of an update without the text of its audio, and the index, at most `room`, of
        <|startoftranscript|>. said: the tokens of the stream before that text.
        """
        setup, most = self.setup, max(room - 1, 0)  # besides <|startofprev|>
        prompts = Prompts(self.tokenizer, setup.dims, setup.options, most)
        prompts.add(said, keep=True)
        return prompts.of_window(self.tokenizer)

    def copies(self, since: Sequence[int], text: str) -> bool:
        """Whether a text begins with two or more words that end what comes before it, which the
        model copies where it hears little. since: the committed tokens since the cut. After them,
        it may also be three words from anywhere.
        """
        before = [*self.history.tokens, *since]
        said = list(map(letters_of, self.tokenizer.decode(before).split()))
        words = list(map(letters_of, text.split()))
        copied = any(words[:n] == said[-n:] for n in range(2, min(len(said), len(words)) + 1))
        loops = any(said[i : i + 3] == words[:3] for i in range(len(said) - 2))
        return copied or (bool(since) and loops)

    def commit(self, text: str) -> str:
        """Add committed text. Returns it as emitted: the utterance does not begin with a space."""
        added = text if self.text else text.lstrip()
        self.text += added
        return added

    def close_segment(
        self,
        tokens: Sequence[int],
        times: tuple[float, float],
        words: Sequence[Word] | None,
        result: Decoded,
        speech: NDArray[np.float32] | None,
        logs: Tensor,
    ) -> None:
        """Add a segment of committed tokens. times: seconds, where there are no words. words: None:
        not requested. result: of the update that committed the last of them. speech: its samples,
        float32 [n]; None: speakers are not requested. logs: as in `Heard`.
        """
        if not tokens:
            return
        if self.speakers is not None and speech is not None:
            self.speakers.hear((self.number, len(self._segments)), speech)
        text = self.tokenizer.decode(list(tokens))
        start, end = (words[0].start, words[-1].end) if words else times
        self._segments.append(
            Segment(
                id=len(self._segments),
                seek=round(times[0] * 100),
                start=round(start, 2),
                end=round(max(start, end), 2),
                text=text,
                tokens=list(tokens),
                temperature=result.temperature,
                avg_logprob=result.avg_logprob,
                compression_ratio=compression_ratio(text.strip()),
                no_speech_prob=result.no_speech_prob,
                words=None if words is None else list(words),
            )
        )
        if result.temperature > 0.5:  # as in `whisper`: such text is a bad prompt
            self.history.clear()
        else:
            self.history.add(Heard(logs, tuple(tokens)), self.language, self.setup)

    def end_event(self) -> UtteranceEnded:
        """The event at its end."""
        times = (round(self.start * 100), self.start, self.end)
        segments = tuple(self._segments) or (Segment(0, *times, "", [], 0.0, 0.0, 0.0, 1.0),)
        text, translated = self.text, self.setup.options.task == "translate"
        return UtteranceEnded(self.number, segments, text, self.language or "en", translated)
