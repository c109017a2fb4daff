"""The script in pieces of audio that fit into a window, and the request that aligns each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from slimwhisper.audio.mel import Spectrogram
from slimwhisper.engine.requests import Align, Alignment, Exchange, Steps, Window
from slimwhisper.forced_alignment.borders import word_attention, word_borders, word_means
from slimwhisper.forced_alignment.matching import PlacedWord
from slimwhisper.subtitles.cues import is_spaceless
from slimwhisper.tokens.options import encode_text
from slimwhisper.tokens.vocabulary import Tokenizer
from slimwhisper.types import FRAMES_PER_SECOND, Word

MARGIN = 0.5  # seconds of audio before and after a piece's words
LONGEST_PAUSE = 3.0  # seconds without words in a piece
STRANGERS = 2  # words in a row that are not in the script, from which on a new piece begins
MOST_TOKENS = 200  # of a piece's text


@dataclass(frozen=True, slots=True)
class Piece:
    """Words that follow each other, and their audio."""

    words: tuple[PlacedWord, ...]
    tokens: tuple[tuple[int, ...], ...]  # of each word
    start: int  # mel frames
    stop: int


def pieces_of(
    words: Sequence[PlacedWord], tokenizer: Tokenizer, frames: int, window: int
) -> Iterator[Piece]:
    """Cut placed words into pieces, at pauses. frames: of the recording; window: mel frames."""
    spoken = (word.word.spoken.strip() for word in words)
    # with a space before a word where its script has spaces
    texts = (text if is_spaceless(text[0]) else f" {text}" for text in spoken)
    # the context holds no longer word, and none is spoken
    tokens = [tuple(encode_text(tokenizer, text)[:MOST_TOKENS]) for text in texts]
    room = window / FRAMES_PER_SECOND - 2 * MARGIN
    first = 0
    while first < len(words):
        stop = _piece_end(words, tokens, first, room)
        before, after = words[first], words[stop - 1]
        begin = max(before.start - MARGIN, (before.free_from + before.start) / 2)
        end = min(after.end + MARGIN, (after.end + after.free_until) / 2)
        start = min(max(round(begin * FRAMES_PER_SECOND), 0), max(frames - 2, 0))
        last = max(min(round(end * FRAMES_PER_SECOND), frames, start + window), start + 2)
        yield Piece(tuple(words[first:stop]), tuple(tokens[first:stop]), start, last)
        first = stop


def _piece_end(
    words: Sequence[PlacedWord], tokens: Sequence[Sequence[int]], first: int, room: float
) -> int:
    """The word after the piece's last one. room: seconds that its words may take."""
    count = len(tokens[first])
    stop = first + 1
    while stop < len(words):
        word, count = words[stop], count + len(tokens[stop])
        pause = word.start - words[stop - 1].end
        if pause > LONGEST_PAUSE or word.strangers >= STRANGERS:
            return stop
        if word.end - words[first].start > room or count > MOST_TOKENS:
            # at the longest pause of its second half
            middle = first + 1 + (stop - first - 1) // 2
            pauses = [words[i].start - words[i - 1].end for i in range(middle, stop + 1)]
            return middle + int(np.argmax(pauses))
        stop += 1
    return stop


class PieceSession(Exchange):
    """A piece on its way through the engine: its audio, then its text."""

    def __init__(self, piece: Piece, mel: Spectrogram, tokenizer: Tokenizer) -> None:
        self.piece = piece
        self.words: list[Word] = []  # of the piece, with their times
        self.logprobs: list[float] = []  # of each word's tokens, in the mean
        super().__init__(self._run(mel, tokenizer))

    def _run(self, mel: Spectrogram, tokenizer: Tokenizer) -> Steps:
        piece, frames = self.piece, self.piece.stop - self.piece.start
        audio = mel.for_encoder(piece.start, frames)
        yield Window(audio, (tokenizer.sot,), 0, rules=None)
        text = tuple(token for tokens in piece.tokens for token in tokens)
        answer = yield Align(tuple(tokenizer.sot_sequence_including_notimestamps), text)
        assert isinstance(answer, Alignment)
        counts = [len(tokens) for tokens in piece.tokens]
        attention = word_attention(answer, counts, tokenizer, frames)
        borders = word_borders(attention, audio) + piece.start / FRAMES_PER_SECOND
        probs = np.array(answer.probs)
        self.logprobs = word_means(np.log(probs + 1e-10), counts).tolist()
        rows = zip(piece.words, borders, word_means(probs, counts), strict=True)
        self.words = [
            Word(placed.word.text, round(float(start), 2), round(float(end), 2), float(p))
            for placed, (start, end), p in rows
        ]
