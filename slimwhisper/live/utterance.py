"""The text of an utterance, and that of its speech buffers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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


class Utterance:
    """The text of one utterance; its audio is in speech buffers."""

    def __init__(
        self,
        number: int,
        start: float,
        setup: UpdateSettings,
        history: list[int],
        speakers: LiveSpeakers | None = None,
    ) -> None:
        """start: seconds. history: the stream's committed tokens before the last cut; they grow.
        speakers: of the stream; None: not requested.
        """
        self.number, self.start, self.end, self.setup = number, start, start, setup
        self.text = ""  # all committed text
        kept = setup.live.condition_on_previous_text
        self._history, self._segments = history if kept else [], list[Segment]()
        self.speakers = speakers
        self.language: str | None = None  # code; None: not known yet
        if setup.language is not None:
            self.set_language(setup.language)

    def set_language(self, code: str) -> None:
        self.language = code
        self.tokenizer = self.setup.vocabulary.tokenizer(code, self.setup.options.task)

    def prompt(self, since: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """The prompt of an update with the committed tokens since the cut, and the index of
        <|startoftranscript|>.
        """
        prompts = Prompts(self.tokenizer, self.setup.dims, self.setup.options)
        prompts.add(self._history, keep=True)
        prompt, index = prompts.of_window(self.tokenizer)
        return (*prompt, *since), index

    def copies_prompt(self, since: Sequence[int], text: str) -> bool:
        """Whether a text begins with two or more words that end the prompt, which the model copies
        where it hears little. since: the committed tokens since the cut. After them, it may also be
        three words from anywhere in the prompt; without them, there is no prompt any more.
        """
        before = list(map(letters_of, self.tokenizer.decode([*self._history, *since]).split()))
        words = list(map(letters_of, text.split()))
        copied = any(words[:n] == before[-n:] for n in range(2, min(len(before), len(words)) + 1))
        if since:
            return copied or any(before[i : i + 3] == words[:3] for i in range(len(before) - 2))
        if copied:
            self._history.clear()
        return copied

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
    ) -> None:
        """Add a segment of committed tokens. times: seconds, where there are no words. words: None:
        not requested. result: of the update that committed the last of them. speech: its samples,
        float32 [n]; None: speakers are not requested.
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
            self._history.clear()
        else:
            self._history += tokens
            del self._history[: -self.setup.dims.n_text_ctx // 2]

    def end_event(self) -> UtteranceEnded:
        """The event at its end."""
        times = (round(self.start * 100), self.start, self.end)
        segments = self._segments or [Segment(0, *times, "", [], 0.0, 0.0, 0.0, 1.0)]
        return UtteranceEnded(self.number, tuple(segments), self.text, self.language or "en")
