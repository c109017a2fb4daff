"""Words as tones, and an engine that reads them off a spectrogram: streams without a model."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.digits.voices import WORDS
from slimwhisper.engine.requests import (
    Align,
    Alignment,
    Answer,
    Attempt,
    Decoded,
    Languages,
    Request,
    Window,
)
from slimwhisper.live.mel import LiveMel
from slimwhisper.live.stream import Stream
from slimwhisper.live.types import (
    LiveEvent,
    LiveOptions,
    SpeechStarted,
    SpeechStopped,
    StreamFailed,
    TextUpdate,
    UtteranceEnded,
)
from slimwhisper.tokens.vocabulary import Vocabulary, get_vocabulary
from slimwhisper.types import SAMPLE_RATE, Dims
from slimwhisper.voice_activity import FRAME
from tests.support.checkpoints import facts_of

DIMS = Dims(80, 500, 8, 1, 1, 51_864, 448, 8, 1, 1)  # windows of 10 s, English
MULTILINGUAL = Dims(80, 500, 8, 1, 1, 51_865, 448, 8, 1, 1)
POSITIONS = 1500  # of an encoder, at most
LENGTH, GAP = 0.34, 0.06  # seconds of a word, and the quiet after it
SOUND = int(LENGTH * 100) - 4  # mel frames of a word that are loud, at least


class Loudness:
    """In place of silero: whatever is loud is speech."""

    def probabilities(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        frames = np.pad(block, (0, -len(block) % 512)).reshape(-1, 512)
        loud: NDArray[np.float32] = (np.abs(frames).max(axis=1) > 0.05).astype(np.float32)
        return loud

    @staticmethod
    def next_batch(
        streams: "Sequence[Loudness]", blocks: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        return np.stack([s.probabilities(b) for s, b in zip(streams, blocks, strict=True)])


def tone(digit: int) -> NDArray[np.float32]:
    """A word, and the quiet after it."""
    times = np.arange(round(LENGTH * SAMPLE_RATE)) / SAMPLE_RATE
    sound = 0.3 * np.sin(2 * np.pi * 300 * 1.27**digit * times)
    return np.pad(sound, (0, round(GAP * SAMPLE_RATE))).astype(np.float32)


def speech(phrases: Sequence[Sequence[int]], pause: float) -> NDArray[np.float32]:
    """Phrases of digits, with a pause in seconds before each."""
    silence = np.zeros(round(pause * SAMPLE_RATE), np.float32)
    return np.concatenate([part for p in phrases for part in (silence, *map(tone, p))])


def text(digits: Sequence[int]) -> str:
    return " ".join(WORDS[d] for d in digits)


@cache
def _bands() -> torch.Tensor:
    """[10]: the loudest mel bin of each digit's tone."""
    found = []
    for digit in range(10):
        mel = LiveMel(80, 100)
        mel.append(tone(digit))
        found.append(int(mel.window(30)[:, 15].argmax()))
    return torch.tensor(found)


def read(mel: torch.Tensor) -> list[tuple[int, int]]:
    """[80, frames] -> each word's digit and the mel frame in its middle. One that is cut off is
    taken for another.
    """
    loud = (mel.amax(dim=0) > mel.max() - 0.5).tolist()
    if mel.max() < -1.0:  # silence
        return []
    found, start = list[tuple[int, int]](), None
    for frame, now in enumerate([*loud, False]):
        if now and start is None:
            start = frame
        elif not now and start is not None:
            middle = (start + frame) // 2
            band = int(mel[:, middle].argmax())
            digit = int((_bands() - band).abs().argmin())
            found.append((digit if frame - start >= SOUND else (digit + frame) % 10, middle))
            start = None
    return found


class Reader:
    """Answers as an engine with one slot would."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.tokenizer = vocabulary, vocabulary.tokenizer("en")
        self.tokens = [self.tokenizer.encode(f" {word}")[0] for word in WORDS]
        self.windows: list[Window] = []
        self.logprob = -0.1
        self.texts: list[list[str]] = []  # the words of each window
        self._digits: list[tuple[int, int]] = []

    def answer(self, request: Request) -> Answer:
        match request:
            case Align(before=before, text=tokens):
                words = [i for i, t in enumerate(tokens) if t in self.tokens]
                scores = torch.zeros(1, len(before) + len(tokens) + 1, POSITIONS)
                middles = [middle // 2 for _, middle in self._digits]
                heard = sum(t in self.tokens for t in before)
                for number, i in enumerate(words, heard):  # up to the next word, also over a pause
                    at = middles[min(number, len(middles) - 1)]
                    after = next((m - 8 for m in middles if m > at), at + 8)
                    scores[0, len(before) - 1 + i, max(at - 8, 0) : after] = 9
                return Alignment(tokens, len(before), scores, (0.9,) * len(tokens))
            case Attempt():
                return self._decoded(self.windows[-1], request.temperature)
            case Window():
                self.windows.append(request)
                if request.mel is not None:
                    self._digits = read(request.mel)
                if request.rules is None:
                    codes = list(self.vocabulary.languages.values())
                    return Languages({c: 0.9 if c == "de" else 0.001 for c in codes})
                return self._decoded(request, 0.0)

    def _decoded(self, window: Window, temperature: float) -> Decoded:
        begun = window.prompt[window.sot_index :]
        already = sum(t in self.tokens for t in begun)
        spoken = [self.tokens[d] for d, _ in self._digits]
        self.texts.append([WORDS[d] for d, _ in self._digits])
        assert [t for t in begun if t in self.tokens] == spoken[:already]
        rest = spoken[already:]
        logprobs = (self.logprob,) * (len(rest) + 1)
        return Decoded(tuple(rest), self.logprob, 0.0, temperature, 0, logprobs)


def vocabulary(dims: Dims = DIMS) -> Vocabulary:
    return get_vocabulary(dims)


def update(stream: Stream, reader: Reader) -> None:
    """Run the update that is due."""
    passage, window = stream.next_window()
    request: Request | None = window
    while request is not None:
        request = stream.accept(passage, reader.answer(request))


def play(
    stream: Stream, reader: Reader, pieces: Sequence[NDArray[np.float32]], finish: bool = True
) -> list[LiveEvent]:
    """The events of audio in pieces, with each update as soon as it is due."""
    events: list[LiveEvent] = []

    def run() -> None:
        while stream.due is not None:
            update(stream, reader)
        events.extend(stream.events())

    for piece in pieces:
        for start in range(0, len(piece), FRAME):
            stream.append(piece[start : start + FRAME])
            run()
    if finish:
        stream.finish()
        run()
    return events


def texts(events: Sequence[LiveEvent]) -> list[str]:
    """Of the utterances. Checks the events of each, and that they agree."""
    found: list[str] = []
    told = [e for e in events if not isinstance(e, StreamFailed)]
    for number in range(1 + max((e.utterance for e in told), default=-1)):
        first, *middle, last = (e for e in told if e.utterance == number)
        (stop,) = (e for e in middle if isinstance(e, SpeechStopped))
        assert isinstance(first, SpeechStarted) and first.start <= stop.end
        assert isinstance(last, UtteranceEnded) and last.segments and last.language == "en"
        committed = ""
        for event in middle:
            if isinstance(event, TextUpdate):
                assert not (committed + event.committed + event.tentative).startswith(" ")
                committed += event.committed
        assert last.text == committed == "".join(s.text for s in last.segments).strip()
        assert all(a.end <= b.start + 0.1 for a, b in pairwise(last.segments))
        assert all(s.start <= s.end for s in last.segments)
        found.append(last.text)
    for kind in (SpeechStarted, SpeechStopped, UtteranceEnded):  # utterances begin and end in order
        assert [e.utterance for e in events if isinstance(e, kind)] == list(range(len(found)))
    return found


PLAIN = LiveOptions()
ONE_SAMPLE = np.zeros(1, np.float32)


def begin(options: LiveOptions = PLAIN, dims: Dims = DIMS) -> tuple[Stream, Reader]:
    """A stream of this module's model, and what reads its windows."""
    return Stream(facts_of(dims), options), Reader(vocabulary(dims))
