"""Aligns a script with a recording, once that has been transcribed."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slimwhisper.audio.mel import Spectrogram
from slimwhisper.forced_alignment.matching import Match, heard_words, match
from slimwhisper.forced_alignment.pieces import PieceSession, pieces_of
from slimwhisper.forced_alignment.script import words_of
from slimwhisper.trust import NOT_IN_AUDIO
from slimwhisper.types import FRAMES_PER_SECOND, Segment, Transcript, Word

if TYPE_CHECKING:  # it imports numba, which is slow to start
    from whisper.tokenizer import Tokenizer

LEAST_LOGPROB = -2.0  # of a line that was heard as other words, in the mean: less is another text


class ScriptAlignment:
    """The pieces of a script, to be aligned one by one, and the script with its times."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        self._language, self._match = "", Match([], set(), [], [])
        self._waiting: list[PieceSession] | None = None  # the last is the next; None: not begun
        self._sessions: list[PieceSession] = []

    def begin(self, heard: Transcript, mel: Spectrogram, tokenizer: "Tokenizer") -> None:
        """Find the pieces. heard: the recording's transcript with word times. mel: of the same
        audio. tokenizer: of the transcript's language.
        """
        self._language = heard.language
        self._match = match(words_of(self.lines), heard_words(heard.segments))
        before = tuple(tokenizer.sot_sequence_including_notimestamps)
        pieces = pieces_of(self._match.placed, tokenizer, mel.frames, mel.width)
        self._waiting = [PieceSession(piece, mel, before) for piece in pieces][::-1]

    @property
    def begun(self) -> bool:
        """Whether the recording has been transcribed."""
        return self._waiting is not None

    def next_session(self) -> PieceSession | None:
        """The next piece to align; None: all have begun."""
        if not self._waiting:
            return None
        self._sessions.append(self._waiting.pop())
        return self._sessions[-1]

    @property
    def done(self) -> bool:
        """Whether all pieces are aligned."""
        return self._waiting == [] and all(s.done for s in self._sessions)

    @property
    def share_done(self) -> float:
        """Of the pieces, from 0 to 1."""
        count = len(self._sessions) + len(self._waiting or ())
        return sum(s.done for s in self._sessions) / count if count else 1.0

    def transcript(self) -> Transcript:
        """A segment for each line, with the line as its text. A line that is not in the audio has
        no length, and the flag `NOT_IN_AUDIO`.
        """
        words = defaultdict[int, list[Word]](list)  # by line
        logprobs, tokens = defaultdict[int, list[float]](list), defaultdict[int, list[int]](list)
        for session in self._sessions:
            piece = session.piece
            rows = zip(piece.words, piece.tokens, session.words, session.logprobs, strict=True)
            for placed, word_tokens, word, logprob in rows:
                line = placed.word.line
                words[line].append(word)
                logprobs[line].append(logprob)
                tokens[line] += word_tokens
        segments, missing, end = list[Segment](), set[int](), 0.0
        for number, text in enumerate(self.lines):
            of_line, ids, logprob = words[number], tokens[number], 0.0
            if of_line:
                logprob = sum(logprobs[number]) / len(of_line)
            certain = number in self._match.certain
            if not of_line or (not certain and logprob < LEAST_LOGPROB):
                missing.add(number)
                of_line, ids, logprob = [], [], 0.0
            start = of_line[0].start if of_line else end
            end = of_line[-1].end if of_line else end
            segments.append(
                Segment(
                    id=number,
                    seek=round(start * FRAMES_PER_SECOND),
                    start=start,
                    end=end,
                    text=text,
                    tokens=ids,
                    temperature=0.0,
                    avg_logprob=logprob,
                    compression_ratio=0.0,
                    no_speech_prob=0.0,
                    words=of_line,
                    flags=(NOT_IN_AUDIO,) if number in missing else (),
                )
            )
        text = "\n".join(self.lines)
        return Transcript(text, segments, self._language, self._match.unscripted(missing))
