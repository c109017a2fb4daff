"""Speech without a pause: its audio, the updates that decode it, and what of them is committed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slimwhisper.engine.requests import Answer, Decoded, Request, Window
from slimwhisper.live.cutting import Cut, choose_cut
from slimwhisper.live.decoding import Decoding, words_of
from slimwhisper.live.mel import LiveMel
from slimwhisper.live.policy import COMMITS, NEED_ATTENTION, Piece, Update, most_attended
from slimwhisper.live.setup import Setup
from slimwhisper.live.types import Text
from slimwhisper.live.utterance import PassageText, Utterance
from slimwhisper.longform.words import attention
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    MEL_FRAMES_PER_POSITION,
    SAMPLE_RATE,
    Word,
)

CERTAIN = SAMPLE_RATE // 10  # samples after the speech that an update must know to be the last
HUSH = SAMPLE_RATE // 4  # samples of silence after which speech may be over
TAIL = SAMPLE_RATE // 2  # samples after the speech that its last update hears


@dataclass(slots=True)
class Buffer:
    """A passage's audio since its last cut; samples are counted since the stream began."""

    mel: LiveMel
    start: int  # of the audio, in samples
    speech: int  # where speech begins
    spoken: int  # where the last speech so far ends
    closed: bool = False  # no more audio comes
    heard: int = 0  # mel frames that the last update knows

    @property
    def samples_heard(self) -> int:
        """Where the audio ends that an update knows."""
        return self.start + self.heard * HOP_SAMPLES

    @property
    def unheard(self) -> float:
        """Seconds that no update knows."""
        return (self.mel.frames - self.heard) / FRAMES_PER_SECOND

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + self.mel.samples

    @property
    def hush(self) -> int:
        """Samples of silence so far."""
        return self.end - self.spoken

    @property
    def useful(self) -> int:
        """Mel frames for the next update: the silence that ended a passage is not waited for."""
        if not self.closed:
            return self.mel.frames
        return min(self.mel.frames, -(-(self.spoken + TAIL - self.start) // HOP_SAMPLES))

    @property
    def all_speech_heard(self) -> bool:
        """Whether an update knows all of the speech, and that it is over."""
        return self.samples_heard >= min(self.spoken + CERTAIN, self.end - HOP_SAMPLES)

    def cut(self, frames: int) -> None:
        """Forget the first mel frames."""
        self.mel.cut(frames)
        self.start += frames * HOP_SAMPLES
        self.heard -= frames


class Passage:
    """A buffer of audio and the text since its last cut. Each update is one `Window`."""

    def __init__(self, utterance: Utterance, start: int, speech: int) -> None:
        """Samples since the stream began: start of the audio, and of the speech in it."""
        dims = utterance.setup.dims
        mel = LiveMel(dims.n_mels, dims.window_frames)
        self.utterance, self.audio = utterance, Buffer(mel, start, speech, spoken=speech)
        self.text = PassageText()
        self.ends_utterance = False
        self.done = False  # all is committed
        self.answered = False  # an update is decoded, and not committed yet
        self.deadline: float | None = None  # of an update, by `time.monotonic`; None: none is due
        self.updates = 0  # that were begun
        self._update: Decoding | None = None  # the last one; None: the buffer was cut since
        self._last: Decoded | None = None  # of the last update that is as good as final

    @property
    def setup(self) -> Setup:
        return self.utterance.setup

    # -- what is due -----------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether an update is due: at once where speech may be over, so that its end needs none;
        never for silence alone.
        """
        audio, live = self.audio, self.setup.live
        if audio.closed:
            return not self.done and audio.mel.frames > 0
        if audio.hush >= HUSH:
            return audio.samples_heard < audio.spoken + CERTAIN
        if audio.spoken <= audio.samples_heard:
            return False
        if not self.updates:
            return audio.end - audio.speech >= live.first * SAMPLE_RATE
        return audio.unheard >= live.update

    @property
    def patience(self) -> float:
        """Seconds that the update which is due may wait while others cannot: until the end of the
        silence if speech may be over, else until a whole period has been heard.
        """
        audio, live = self.audio, self.setup.live
        if audio.closed:
            return 0.0
        if audio.hush >= HUSH:
            return max(live.silence_duration_ms / 1000 - audio.hush / SAMPLE_RATE, 0.0)
        return 0.0 if self.updates else max(live.update - live.first, 0.0)

    # -- updates ---------------------------------------------------------------------------------

    def request(self) -> Window:
        """Begin an update with the newest audio."""
        audio, setup = self.audio, self.setup
        self.updates += 1
        useful, before = audio.useful, audio.heard
        audio.heard = min(useful, setup.most)
        final = audio.closed and audio.heard == useful
        long = len(self.text.committed) > setup.dims.n_text_ctx // 4
        self._update = Decoding(
            self.utterance,
            self.text,
            audio.mel.window(audio.heard),
            audio.heard,
            max(audio.heard - before, 0),
            final,
            not final and (audio.heard >= setup.full or long),
            (setup.options.seed, self.utterance.number, audio.start, audio.heard),
        )
        assert isinstance(self._update.request, Window)
        return self._update.request

    def accept(self, answer: Answer) -> Request | None:
        """The next request in the slot; None: the update is decoded, and to be committed. Raises
        SlimWhisperError if the model's output was not finite.
        """
        assert self._update is not None
        request = self._update.accept(answer)
        self.answered = request is None
        return request

    # -- commitment ------------------------------------------------------------------------------

    def commit(self) -> Text:
        """The text of the update that is decoded. Passages commit in their order."""
        update = self._update
        assert update is not None
        self.answered = False
        before, self.text.words = self.text.words, update.words
        self._last = None if update.doubtful else update.result
        if update.final:
            return self._commit(update.result, len(update.words), final=True)
        return self._commit(update.result, 0 if update.doubtful else self._certain(update, before))

    def _certain(self, update: Decoding, before: Sequence[Piece]) -> int:
        """How many words of an update are committed, where it is not the last."""
        policy, attended = self.setup.live.policy, list[int]()
        if update.alignment is not None and policy in NEED_ATTENTION:
            matrix = attention(update.alignment, update.frames)
            attended = most_attended(matrix[len(self.text.committed) : -1])
        positions = update.frames // MEL_FRAMES_PER_POSITION
        count = COMMITS[policy](Update(update.words, before, attended, positions))
        broken = (i for i, piece in enumerate(update.words) if "\ufffd" in piece.text)
        return min(count, next(broken, count))  # a character whose bytes are not all there

    def settle(self) -> Text | None:
        """Commit all, without another update, if the last one knew all of the speech."""
        if not self.audio.closed or self.done:
            return None
        if self.audio.mel.frames == 0:
            self.done = True
            return None
        if self._last is None or not self.audio.all_speech_heard:
            return None
        return self._commit(self._last, len(self.text.words), final=True)

    def forget(self) -> None:
        """Commit nothing more; what is committed stays."""
        if self.text.committed:
            self._close_segment(len(self.text.committed), self.audio.samples_heard)

    def _commit(self, result: Decoded, count: int, final: bool = False) -> Text:
        """Commit the first `count` tentative words; at the end, or in a full buffer, cut it."""
        text, update, cut = self.text, self._update, None
        if update is not None and update.full and not final:
            cut = self._choose_cut(update, count)
            count = max(count, text.words_within(cut.tokens))
        held = list(text.committed)
        committed, fresh = text.commit(count, result)
        words = self._words([held, fresh, text.tentative])[1]
        told = self.utterance.commit(committed)
        tentative = "".join(piece.text for piece in text.words).rstrip("\ufffd")
        if not self.utterance.text:
            tentative = tentative.lstrip()
        heard = self.audio.samples_heard / SAMPLE_RATE
        if final:
            self._close_segment(len(text.committed), self.audio.spoken)
            self.done = True
        elif cut is not None:
            self._close_segment(cut.tokens, self.audio.start + cut.frames * HOP_SAMPLES)
            self.audio.cut(cut.frames)
            self._update = self._last = None
        return Text(self.utterance.number, told, tentative, tuple(words), round(heard, 2))

    def _choose_cut(self, update: Decoding, count: int) -> Cut:
        """Of a full buffer, if so many tentative words are committed."""
        fresh = sum(len(piece.tokens) for piece in self.text.words[:count])
        return choose_cut(
            update.alignment,
            len(self.text.committed) + fresh,
            self.audio.mel,
            update.frames,
            self.utterance.tokenizer,
        )

    def _words(self, texts: Sequence[Sequence[int]]) -> list[list[Word]]:
        """The words of successive texts since the cut, if they are asked for."""
        update, audio = self._update, self.audio
        if not self.setup.live.words or update is None or update.alignment is None:
            return [[] for _ in texts]
        tokenizer, offset = self.utterance.tokenizer, audio.start / SAMPLE_RATE
        found = words_of(texts, update.alignment, tokenizer, audio.heard, offset)
        begin = round(audio.speech / SAMPLE_RATE, 2)  # the first word has the audio before it too
        return [
            [replace(w, start=min(max(w.start, begin), w.end)) for w in words] for words in found
        ]

    def _close_segment(self, count: int, end: int) -> None:
        """The first `count` tokens since the cut are a segment. end: of it, in samples."""
        times, text = (self.audio.start / SAMPLE_RATE, end / SAMPLE_RATE), self.text
        tokens = text.committed[:count]
        words = None
        if self.setup.live.words:
            words = self._words([tokens, text.committed[count:]])[0]
        self.utterance.close_segment(tokens, times, words, text.result)
        text.cut(count)
