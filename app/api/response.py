"""Transcripts as OpenAI's API gives them: in each response format, and as events of a stream.

The shapes are those of openai-python 3.54 (types/audio/transcription*.py).
"""

import io
import math
from collections.abc import Iterable, Iterator
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse, PlainTextResponse, Response

from slimwhisper.app.api.request import Wanted
from slimwhisper.outputs.formats import FORMATS, write_transcript
from slimwhisper.outputs.layout import SENTENCES
from slimwhisper.tokens.openai import byte_letters
from slimwhisper.tokens.vocabulary import Vocabulary
from slimwhisper.types import (
    FRAMES_PER_SECOND,
    MEL_FRAMES_PER_POSITION,
    Segment,
    Transcript,
)

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

POSITIONS_PER_SECOND = FRAMES_PER_SECOND / MEL_FRAMES_PER_POSITION  # of the encoder: audio tokens


class Result:
    """A finished transcript, and what the response to it needs."""

    def __init__(
        self, wanted: Wanted, transcript: Transcript, seconds: float, vocabulary: Vocabulary
    ) -> None:
        """seconds: of audio."""
        self.wanted, self.transcript, self.seconds = wanted, transcript, seconds
        self.vocabulary = vocabulary
        self.text = transcript.text.strip()

    def response(self) -> Response:
        """The whole response, in the format that was asked for."""
        headers = self.wanted.headers()
        match self.wanted.format:
            case "json":
                found = {"text": self.text, **self._details(), "usage": self._usage()}
                return JSONResponse(found, headers=headers)
            case "text":
                return PlainTextResponse(self.text + "\n", headers=headers)
            case "verbose_json":
                return JSONResponse(self._verbose(), headers=headers)
            case "diarized_json":
                segments = list(self._speakers_segments())
                found = {**self._whole(), "segments": segments, "usage": self._usage()}
                return JSONResponse(found, headers=headers)
            case format:
                file = io.StringIO()
                write_transcript(self.transcript, format, file, self._layout())
                media_type = f"{FORMATS[format].media_type}; charset=utf-8"
                return Response(file.getvalue(), media_type=media_type, headers=headers)

    def last_events(self) -> Iterator[dict[str, Any]]:
        """The events that end a stream: the speakers' segments, then the whole text."""
        if self.wanted.format == "diarized_json":
            yield from self._speakers_segments()
        done = {"type": "transcript.text.done", "text": self.text, **self._details()}
        yield {**done, "usage": self._tokens()}

    def _layout(self) -> dict[str, bool]:
        """What subtitles look like: two lines for sentences, karaoke for words with times."""
        return {
            SENTENCES: bool(self.wanted.options.get("sentences")),
            "highlight_words": self.wanted.format == "ass" and "word" in self.wanted.granularities,
        }

    def _details(self) -> dict[str, Any]:
        """What JSON and the last event have only if it was asked for."""
        found: dict[str, Any] = {}
        if "token_logprobs" in self.wanted.options:
            found["logprobs"] = logprobs(self.transcript.segments, self.vocabulary)
        if self.wanted.asked == "gpt-transcribe":
            found["languages"] = [{"code": self.transcript.language}]
        return found

    def _verbose(self) -> dict[str, Any]:
        from slimwhisper.tokens.whisper_package.tokenizer import LANGUAGES

        wanted, transcript = self.wanted, self.transcript
        language = LANGUAGES.get(transcript.language, transcript.language)
        found = {**self._whole(), "language": language}
        if "segment" in wanted.granularities:
            hidden = () if wanted.words_inside else ("words",)
            segments = transcript.as_dict()["segments"]
            found["segments"] = [{k: v for k, v in s.items() if k not in hidden} for s in segments]
        if "word" in wanted.granularities:
            words = [word for s in transcript.segments for word in s.words or ()]
            found["words"] = [
                {"word": w.word.strip(), "start": w.start, "end": w.end} for w in words
            ]
        found["usage"] = self._duration()
        return found

    def _whole(self) -> dict[str, Any]:
        """What both formats with segments begin with."""
        seconds = round(self.seconds, 3)
        return {"task": self.wanted.options["task"], "duration": seconds, "text": self.text}

    def _speakers_segments(self) -> Iterator[dict[str, Any]]:
        """The segments that have text, with their speakers: those without a name are A, B, ..."""
        named = {reference.name for reference in self.wanted.references}
        letters: dict[str | None, str] = {}  # enough for `MOST_SPEAKERS`
        for segment in self.transcript.segments:
            if not segment.text.strip():
                continue
            speaker = segment.speaker
            if speaker not in named:
                speaker = letters.setdefault(speaker, ascii_uppercase[len(letters)])
            yield {
                "type": "transcript.text.segment",
                "id": f"seg_{segment.id:03}",
                "start": segment.start,
                "end": segment.end,
                "text": segment.text,
                "speaker": speaker,
            }

    def _usage(self) -> dict[str, Any]:
        """By tokens where OpenAI bills by them: for its models with "gpt" in their names."""
        return self._tokens() if self.wanted.asked.startswith("gpt") else self._duration()

    def _duration(self) -> dict[str, Any]:
        """In whole seconds."""
        return {"type": "duration", "seconds": round(self.seconds)}

    def _tokens(self) -> dict[str, Any]:
        """Tokens of this model: encoder positions, the prompt, and what was sampled."""
        options, tokenizer = self.wanted.options, self.vocabulary.tokenizer()
        prompts = (options.get("initial_prompt"), options.get("hotwords"))
        text = sum(len(tokenizer.encode(" " + p.strip())) for p in prompts if p)
        audio = math.ceil(self.seconds * POSITIONS_PER_SECOND)
        sampled = sum(len(s.tokens) for s in self.transcript.segments)
        return {
            "type": "tokens",
            "input_tokens": audio + text,
            "input_token_details": {"audio_tokens": audio, "text_tokens": text},
            "output_tokens": sampled,
            "total_tokens": audio + text + sampled,
        }


def delta(wanted: Wanted, segment: Segment, vocabulary: Vocabulary) -> dict[str, Any]:
    """The event of a new segment of a stream."""
    found: dict[str, Any] = {"type": "transcript.text.delta", "delta": segment.text}
    if "token_logprobs" in wanted.options:
        found["logprobs"] = logprobs([segment], vocabulary)
    return found


def logprobs(segments: Iterable[Segment], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """The text's tokens, without timestamps: as text, as bytes, and their log-probabilities."""
    tokenizer = vocabulary.tokenizer()
    found = []
    for segment in segments:
        for token, logprob in zip(segment.tokens, segment.token_logprobs or (), strict=True):
            if vocabulary.is_text(token):
                data = token_bytes(tokenizer, token)
                text = data.decode(errors="replace")  # a token may end within a character
                found.append({"token": text, "bytes": list(data), "logprob": logprob})
    return found


def token_bytes(tokenizer: "Tokenizer", token: int) -> bytes:
    """The UTF-8 bytes that a token of text adds to it."""
    encoding: Any = tokenizer.encoding
    if hasattr(encoding, "decode_single_token_bytes"):  # tiktoken's
        return bytes(encoding.decode_single_token_bytes(token))
    piece = str(encoding.fast.id_to_token(token) or "")
    if type(encoding.fast.decoder).__name__ == "ByteLevel":
        byte = {letter: i for i, letter in enumerate(byte_letters())}
        if all(letter in byte for letter in piece):
            return bytes(byte[letter] for letter in piece)
    elif piece.startswith("<0x") and len(piece) == 6:  # SentencePiece's single bytes
        return bytes.fromhex(piece[3:5])
    return piece.replace("▁", " ").encode()
