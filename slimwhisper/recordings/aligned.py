"""A recording that is transcribed, then aligned with a script."""

from collections import defaultdict
from collections.abc import Sequence

from slimwhisper.forced_alignment.matching import Match, heard_words, match
from slimwhisper.forced_alignment.pieces import Piece, PieceSession, pieces_of
from slimwhisper.forced_alignment.script import words_of
from slimwhisper.longform.recording import Recording, Session
from slimwhisper.trust import NOT_IN_AUDIO
from slimwhisper.types import FRAMES_PER_SECOND, Segment, Transcript, Word

LEAST_LOGPROB = -2.0  # of a line that was heard as other words, in the mean: less is another text


class AlignedRecording:
    """The sessions of a recording, then those of the script's pieces. Its result is the script,
    with its times.
    """

    def __init__(self, recording: Recording, lines: Sequence[str]) -> None:
        """recording: with word times."""
        self.recording, self.lines = recording, list(lines)
        self.options, self.seconds = recording.options, recording.seconds
        self.vocabulary = recording.vocabulary  # of the model that transcribes
        self._language, self._match = "", Match([], set(), [], [])
        self._waiting: list[Piece] | None = None  # the last is the next; None: not begun
        self._sessions: list[PieceSession] = []

    def next_session(self) -> Session | PieceSession | None:
        """The next session to start; None: there is none now."""
        if self._waiting is None:
            return self.recording.next_session()
        if not self._waiting:
            return None
        piece, recording = self._waiting.pop(), self.recording
        self._sessions.append(PieceSession(piece, recording.mel, recording.context.tokenizer))
        return self._sessions[-1]

    def _begin(self) -> list[Piece]:
        """Find the pieces in what was heard. Returns them in reverse."""
        heard, mel = self.recording.transcript(), self.recording.mel
        self._language = heard.language
        self._match = match(words_of(self.lines), list(heard_words(heard.segments)))
        tokenizer = self.recording.context.tokenizer
        return [*pieces_of(self._match.placed, tokenizer, mel.frames, mel.width)][::-1]

    @property
    def done(self) -> bool:
        """Whether all is transcribed, and all pieces, which begin then, are aligned."""
        if self._waiting is None:
            if not self.recording.done:
                return False
            self._waiting = self._begin()
        return self._waiting == [] and all(s.done for s in self._sessions)

    @property
    def seconds_done(self) -> float:
        """Seconds of the recording done so far; transcribing is half of aligning."""
        if self._waiting is None:
            return self.recording.seconds_done / 2
        count = len(self._sessions) + len(self._waiting)
        share = sum(s.done for s in self._sessions) / count if count else 1.0
        return self.seconds * (1 + share) / 2

    def report(self) -> list[Segment]:
        """None: they come with `transcript`."""
        return []

    def close(self) -> None:
        """Free memory and files."""
        self.recording.close()

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
