"""Formats transcripts as OpenAI's API does: each response format, and the events of a stream.

The shapes are those of openai-python 3.54 (types/audio/transcription*.py).
"""

import math
from collections.abc import Iterable, Iterator
from string import ascii_uppercase
from typing import Any

from fastapi.responses import JSONResponse, PlainTextResponse, Response

from slimwhisper.app.api.request import TranscriptionRequest
from slimwhisper.outputs import FORMATS, SENTENCES
from slimwhisper.tokens.options import prompt_tokens
from slimwhisper.tokens.vocabulary import Tokenizer, Vocabulary, byte_letters
from slimwhisper.types import POSITIONS_PER_SECOND, Segment, Transcript


class FinishedTranscript:
    """A finished transcript, and its responses."""

    def __init__(
        self,
        request: TranscriptionRequest,
        transcript: Transcript,
        seconds: float,
        vocabulary: Vocabulary,
    ) -> None:
        """seconds: of audio."""
        self.request, self.transcript, self.seconds = request, transcript, seconds
        self.vocabulary = vocabulary
        self.text = transcript.text.strip()
        told = {"channels", "diarize"} & request.options.keys()
        if told and (request.words_inside or request.format == "text"):
            self.text = text_with_speakers(transcript)

    def response(self) -> Response:
        """The whole response, in the requested format."""
        headers = self.request.headers()
        if self.request.render is not None:
            return JSONResponse(self.request.render(self), headers=headers)
        match self.request.format:
            case "json":
                body = {"text": self.text, **self._optional_fields(), "usage": self._usage()}
                return JSONResponse(body, headers=headers)
            case "text":
                return PlainTextResponse(self.text + "\n", headers=headers)
            case "verbose_json":
                return JSONResponse(self._verbose_json(), headers=headers)
            case "diarized_json":
                segments = list(self._speaker_segments())
                body = {**self._common_fields(), "segments": segments, "usage": self._usage()}
                return JSONResponse(body, headers=headers)
            case format:
                file = FORMATS[format].render(self.transcript, self._layout())
                default, plain = FORMATS[format].media_type, "text/plain"
                media_type = f"{plain if plain in self.request.accept else default}; charset=utf-8"
                return Response(file, media_type=media_type, headers=headers)

    def last_events(self) -> Iterator[dict[str, Any]]:
        """The last events of a stream: the speakers' segments, then the whole text."""
        if self.request.format == "diarized_json":
            yield from self._speaker_segments()
        text = self.transcript.text.strip()  # without speakers, as the deltas
        done = {"type": "transcript.text.done", "text": text, **self._optional_fields()}
        yield {**done, "usage": self._tokens()}

    def _layout(self) -> dict[str, bool]:
        """The layout of subtitles: two lines for sentences, karaoke for words with times."""
        karaoke = self.request.format == "ass" and "word" in self.request.granularities
        sentences = bool(self.request.options.get("sentences"))
        return {SENTENCES: sentences, "highlight_words": karaoke}

    def _optional_fields(self) -> dict[str, Any]:
        """The fields of JSON and of the last event that are there only on request."""
        details: dict[str, Any] = {}
        if "token_logprobs" in self.request.options:
            details["logprobs"] = logprobs(self.transcript.segments, self.vocabulary)
        if self.request.openai_model == "gpt-transcribe":
            details["languages"] = [{"code": self.transcript.language}]
        return details

    def _verbose_json(self) -> dict[str, Any]:
        from slimwhisper.tokens.languages import LANGUAGES

        request, transcript = self.request, self.transcript
        language = LANGUAGES.get(transcript.language, transcript.language)
        language = "english" if request.options["task"] == "translate" else language
        body = {**self._common_fields(), "language": language}
        if "segment" in request.granularities:
            hidden = () if request.words_inside else ("words",)
            segments = transcript.segment_rows()
            body["segments"] = [{k: v for k, v in s.items() if k not in hidden} for s in segments]
            body |= transcript.dropped_rows()
        if "word" in request.granularities:
            words = [word for s in transcript.segments for word in s.words or ()]
            body["words"] = [
                {"word": w.word.strip(), "start": w.start, "end": w.end} for w in words
            ]
        body["usage"] = self._duration()
        return body

    def _common_fields(self) -> dict[str, Any]:
        """The first fields of both formats with segments."""
        seconds = round(self.seconds, 3)
        return {"task": self.request.options["task"], "duration": seconds, "text": self.text}

    def _speaker_segments(self) -> Iterator[dict[str, Any]]:
        """The segments with text, and their speakers: unknown voices are named A, B, ..."""
        names = {reference.name for reference in self.request.references}
        letters: dict[str | None, str] = {}  # enough for `MOST_SPEAKERS`
        for segment in self.transcript.segments:
            if not segment.text.strip():
                continue
            speaker = segment.speaker
            if speaker not in names and "channels" not in self.request.options:
                speaker = letters.setdefault(speaker, ascii_uppercase[len(letters)])
            yield {
                "type": "transcript.text.segment",
                "id": f"seg_{segment.id:03}",
                "start": segment.start,
                "end": segment.end,
                "text": segment.text.strip(),
                "speaker": speaker,
            }

    def _usage(self) -> dict[str, Any]:
        """In tokens where OpenAI bills by them: for its models named "gpt...". Else, in seconds."""
        return self._tokens() if self.request.openai_model.startswith("gpt") else self._duration()

    def _duration(self) -> dict[str, Any]:
        """In whole seconds."""
        return {"type": "duration", "seconds": round(self.seconds)}

    def _tokens(self) -> dict[str, Any]:
        """Tokens of this model: encoder positions, the prompt, and the decoded tokens."""
        options, tokenizer = self.request.options, self.vocabulary.tokenizer()
        prompts = (options.get("initial_prompt"), options.get("hotwords"))
        text = sum(len(prompt_tokens(tokenizer, p)) for p in prompts)
        audio = math.ceil(self.seconds * POSITIONS_PER_SECOND)
        sampled = sum(len(s.tokens) for s in self.transcript.segments)
        return {
            "type": "tokens",
            "input_tokens": audio + text,
            "input_token_details": {"audio_tokens": audio, "text_tokens": text},
            "output_tokens": sampled,
            "total_tokens": audio + text + sampled,
        }


class Deltas:
    """The events for the new segments of a stream. Together they are the whole text, which has no
    spaces around it.
    """

    def __init__(self, request: TranscriptionRequest) -> None:
        self._request = request
        self._begun, self._spaces = False, ""  # spaces that wait for more text

    def next(self, segment: Segment, vocabulary: Vocabulary) -> dict[str, Any]:
        """The event for a segment."""
        text = self._spaces + segment.text
        text = text if self._begun else text.lstrip()
        delta = text.rstrip()
        self._begun, self._spaces = self._begun or bool(delta), text[len(delta) :]
        event: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
        if "token_logprobs" in self._request.options:
            event["logprobs"] = logprobs([segment], vocabulary)
        return event


def text_with_speakers(transcript: Transcript) -> str:
    """A line for each segment; "NAME: " where the speaker changes."""
    return FORMATS["txt"].render(transcript, {}).decode().strip()


def logprobs(segments: Iterable[Segment], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """The text's tokens, without timestamps: as text, as bytes, and their log-probabilities."""
    tokenizer = vocabulary.tokenizer()
    tokens = []
    for segment in segments:
        for token, logprob in zip(segment.tokens, segment.token_logprobs or (), strict=True):
            if vocabulary.is_text(token):
                data = token_bytes(tokenizer, token)
                text = data.decode(errors="replace")  # a token may end within a character
                tokens.append({"token": text, "bytes": list(data), "logprob": logprob})
    return tokens


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The UTF-8 bytes of a text token."""
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
