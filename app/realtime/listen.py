"""Deepgram's /v1/listen, for recordings and for live streams.

As in deepgram-sdk 7.17 (listen/v1/media, listen/v1/types, types/listen_v1response*.py). What is not
served is named in a recording's warnings. A stream's utterance has one final result, with its
words, and interim results before it if the client asks for them.
"""

import re
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, BinaryIO, cast
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BeforeValidator, Field
from starlette.datastructures import FormData, UploadFile
from starlette.websockets import WebSocket

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import (
    Text,
    TextForm,
    Texts,
    Upload,
    check_form,
    json_object,
    one_of,
    refused,
)
from slimwhisper.app.api.recordings import ENCODINGS, wav_of
from slimwhisper.app.api.request import (
    TranscriptionRequest,
    choose_model,
    lacking_speakers,
    response_headers,
)
from slimwhisper.app.api.respond import FinishedTranscript, respond
from slimwhisper.app.realtime.stream_feed import SoundFormat
from slimwhisper.app.realtime.stream_socket import NORMAL, POLICY, SessionEnd, StreamSocket
from slimwhisper.app.service.host import Models, ServerHost
from slimwhisper.audio.samples import STEREO
from slimwhisper.live.types import LiveEvent, SpeechStarted, TextUpdate, UtteranceEnded
from slimwhisper.subtitles.cues import ends_sentence
from slimwhisper.subtitles.sentences import PAUSE
from slimwhisper.types import Segment, Word

AROUND = re.compile(r"^\W+|\W+$")  # punctuation at a word
IN_MEMORY = 1 << 20  # bytes of a body; a longer one is written to disk


class ListenForm(TextForm):
    """The fields of a query that are honoured, for recordings and for streams."""

    model: Text | None = None
    language: Text | None = None
    keyterm: Texts = Field((), alias="keyterm[]")
    keywords: Texts = Field((), alias="keywords[]")
    encoding: Text | None = None  # None: the file has a header
    sample_rate: int = Field(16_000, ge=4_000, le=192_000)
    channels: int = Field(1, ge=1, le=8)
    smart_format: bool = False  # paragraphs of recordings
    # always so
    punctuate: bool = True
    detect_language: Text | None = None

    def spoken_language(self) -> str | None:
        """The language; None: it is detected."""
        return None if self.language == "multi" else self.language

    def hotwords(self) -> str:
        """Words to expect, without the weights that older models take."""
        return ", ".join([*self.keyterm, *(word.partition(":")[0] for word in self.keywords)])


# -- recordings ----------------------------------------------------------------------------------


class RecordingForm(ListenForm):
    """The fields of a query for a recording, and the recording."""

    file: Upload = Field(None, validate_default=True)
    digest: str = ""
    diarize: bool = False
    diarize_model: Text | None = None
    utterances: bool = False
    paragraphs: bool = False
    multichannel: bool = False


async def read_body(request: Request) -> FormData:
    """The query, and the body as a file. Raises APIError."""
    if request.headers.get("content-type", "").lower().startswith("application/json"):
        message = "recordings are not fetched from an address; send the file itself as the body"
        raise APIError(415, message, "not_supported", "url")
    spool = cast(BinaryIO, tempfile.SpooledTemporaryFile(IN_MEMORY))
    digest, file = sha256(), UploadFile(spool, filename="audio")
    try:
        async for chunk in request.stream():
            digest.update(chunk)
            await file.write(chunk)
    except BaseException:
        file.file.close()
        raise
    own: list[tuple[str, Any]] = [("file", file), ("digest", digest.hexdigest())]
    return FormData([*request.query_params.multi_items(), *own])


def read_listen(form: FormData, models: Models) -> TranscriptionRequest:
    """The request of a form. Raises APIError, CheckpointError."""
    fields = check_form(RecordingForm, form)
    request = TranscriptionRequest.of(fields, fields.file, "json", fields.model, models)
    by_voice = bool(fields.diarize or fields.diarize_model)
    if by_voice and (lacking := lacking_speakers("diarize")):
        request.warnings.append(lacking)
        by_voice = False
    options: dict[str, Any] = {
        "task": "transcribe",
        "word_timestamps": True,
        "language": fields.spoken_language(),
        "multilingual": fields.language == "multi",
        "hotwords": fields.hotwords(),
        "channels": "split" if fields.multichannel else None,
        "diarize": "embedding" if by_voice and not fields.multichannel else None,
    }
    request.options = {name: value for name, value in options.items() if value}
    if fields.encoding in ENCODINGS:
        rate, channels, encoding = fields.sample_rate, fields.channels, fields.encoding
        request.convert = partial(wav_of, rate=rate, channels=channels, encoding=encoding)
    elif fields.encoding is not None:
        request.unknown.append("encoding")
    request.render, request.mix_instead = partial(as_listen, fields), True
    return request


def as_listen(fields: RecordingForm, finished: FinishedTranscript) -> dict[str, Any]:
    """The answer: a result for each channel, and the utterances if they are asked for."""
    request, segments = finished.request, finished.transcript.segments
    of_channels = [segments]
    if request.channels > 1:
        of_channels = [
            [s for s in segments if channel_number(s.speaker or "") == channel]
            for channel in range(request.channels)
        ]
    channels = []
    for each in of_channels:
        words = [word for segment in each for word in as_words(segment)]
        channel = as_channel("".join(segment.text for segment in each).strip(), words)
        if fields.paragraphs or fields.smart_format:
            found = as_paragraphs(each, finished.transcript.language)
            channel["alternatives"][0]["paragraphs"] = found
        channels.append({**channel, "detected_language": finished.transcript.language})
    results: dict[str, Any] = {"channels": channels}
    if fields.utterances:
        results["utterances"] = [
            as_utterance(segment, number)
            for number, each in enumerate(of_channels)
            for segment in each
            if segment.text.strip()
        ]
    about = {
        **metadata(str(uuid4()), fields.digest, finished.seconds, len(channels)),
        "models": [request.served_by],
        "model_info": {request.served_by: model_info(request.served_by)},
        "warnings": [
            *({"parameter": name, "message": "ignored"} for name in request.unknown),
            *({"message": text} for text in request.warnings),
        ],
    }
    return {"metadata": about, "results": results}


def metadata(request_id: str, digest: str, seconds: float, channels: int) -> dict[str, Any]:
    """What an answer says of a recording, or of a stream."""
    return {
        "transaction_key": "deprecated",
        "request_id": request_id,
        "sha256": digest,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "duration": round(seconds, 3),
        "channels": channels,
    }


def model_info(name: str) -> dict[str, str]:
    """What an answer says of a model."""
    return {"name": name, "version": "", "arch": "whisper"}


def channel_number(name: str) -> int:
    """The number of a channel, from 0, by the name that it has as a speaker."""
    return STEREO.index(name) if name in STEREO else int(name.rpartition(" ")[2]) - 1


def speaker_number(name: str | None) -> dict[str, int]:
    """The field of a speaker found by voice, from 0; {}: there is none."""
    number = (name or "").removeprefix("SPEAKER_")
    return {"speaker": int(number)} if number.isdecimal() else {}


def alternative(text: str, words: list[dict[str, Any]]) -> dict[str, Any]:
    """A text, and its words."""
    return {"transcript": text, "confidence": confidence(words), "words": words}


def as_channel(text: str, words: list[dict[str, Any]]) -> dict[str, Any]:
    """What was said in a channel: one alternative."""
    return {"alternatives": [alternative(text, words)]}


def as_utterance(segment: Segment, channel: int) -> dict[str, Any]:
    return {
        "start": segment.start,
        "end": segment.end,
        "channel": channel,
        **alternative(segment.text.strip(), as_words(segment)),
        **speaker_number(segment.speaker),
        "id": str(uuid4()),
    }


def as_paragraphs(segments: Iterable[Segment], language: str) -> dict[str, Any]:
    """Sentences, in paragraphs that begin with a speaker or after a pause."""
    found: list[dict[str, Any]] = []
    speaker, whole = None, ""
    for segment in segments:
        for word in segment.words or ():
            start, end, text = round(word.start, 3), round(word.end, 3), word.word
            if not found or segment.speaker != speaker or start - found[-1]["end"] >= PAUSE:
                speaker, number = segment.speaker, speaker_number(segment.speaker)
                found.append({"sentences": [], "num_words": 0, "start": start, **number})
                whole += f"\n\nSpeaker {number['speaker']}: " if number else "\n\n"
                text = text.lstrip()
            whole += text
            sentences = found[-1]["sentences"]
            if not sentences or ends_sentence(sentences[-1]["text"], text, language):
                sentences.append({"text": "", "start": start})
            sentences[-1] |= {"text": (sentences[-1]["text"] + text).lstrip(), "end": end}
            found[-1] |= {"num_words": found[-1]["num_words"] + 1, "end": end}
    return {"transcript": whole[1:], "paragraphs": found}


def as_words(segment: Segment) -> list[dict[str, Any]]:
    """The words of a segment, with and without case and punctuation."""
    return [as_word(word) | speaker_number(segment.speaker) for word in segment.words or ()]


def as_word(word: Word) -> dict[str, Any]:
    text = word.word.strip()
    return {
        "word": AROUND.sub("", text).lower() or text,
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "confidence": round(word.probability, 4),
        "punctuated_word": text,
    }


def confidence(words: Iterable[dict[str, Any]]) -> float:
    """The mean of the words'; 0.0: there are none."""
    found = [word["confidence"] for word in words]
    return round(sum(found) / len(found), 4) if found else 0.0


def add_listen(router: APIRouter, host: ServerHost) -> None:
    """The route for recordings, to be mounted at /v1."""

    @router.post("/listen")
    async def listen(request: Request) -> Response:
        """Transcribe a recording, as Deepgram's API does."""
        return await respond(host, request, read_listen, read_body)


# -- live streams --------------------------------------------------------------------------------

LEAST_SILENCE = 150  # milliseconds that end an utterance: in shorter ones are words
CHANNEL = [0, 1]  # the first of one


class LiveForm(ListenForm):
    """The fields of a stream's query."""

    encoding: Annotated[str, one_of(ENCODINGS)] = Field("", validate_default=True)
    interim_results: bool = False
    endpointing: Annotated[
        int, BeforeValidator(lambda ms: {"false": 0, "true": 0}.get(str(ms), ms))
    ] = Field(0, ge=0, le=60_000)  # milliseconds; 0: the server's
    utterance_end_ms: int = 0  # 0: no UtteranceEnd
    vad_events: bool = False


class ListenSocket(StreamSocket):
    """A stream of Deepgram's API."""

    def __init__(self, websocket: WebSocket, host: ServerHost) -> None:
        """Open the stream, before the websocket is accepted. Raises SlimWhisperError, APIError."""
        super().__init__(websocket, host)
        self._fields = fields = check_form(LiveForm, FormData(websocket.query_params))
        choice, self._model, warnings = choose_model(fields.model, host.models)
        if websocket.query_params.get("endpointing") == "false":
            warnings.append("endpointing: pauses end utterances here")
        headers = response_headers(self._model, fields.model_extra or (), warnings)
        self.headers = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
        live = host.settings.live
        silence = max(fields.endpointing, LEAST_SILENCE) if fields.endpointing else None
        options = replace(
            live,
            language=fields.spoken_language(),
            hotwords=fields.hotwords() or None,
            words=True,
            silence_duration_ms=silence or live.silence_duration_ms,
        )
        format = SoundFormat(ENCODINGS[fields.encoding][0], fields.sample_rate, fields.channels)
        self.begin(choice, options, format)
        self._id, self._digest, self._seconds = str(uuid4()), sha256(), 0.0
        self._utterances: dict[int, tuple[float, str]] = {}  # open: start, committed text
        self._finalizing = False

    async def handle(self, message: dict[str, Any]) -> None:
        """Handle audio, or an event. Raises APIError, SlimWhisperError."""
        data = message.get("bytes")
        if data:
            self._digest.update(data)
            self._seconds += await self.append(data)
            return
        event = (
            {"type": "CloseStream"}
            if data is not None
            else json_object(message["text"], "the message")
        )
        match event.get("type"):
            case "KeepAlive":
                self.keep_alive()
            case "Finalize":
                await self._finalize()
            case "CloseStream":
                self.end(SessionEnd(NORMAL, last_texts=True))
            case other:
                kinds = "KeepAlive, Finalize or CloseStream"
                raise refused("type", f"type {str(other)[:100]!r}: send audio, {kinds}")

    async def _finalize(self) -> None:
        """End the utterance. A client waits for a result, also where there was no speech."""
        self._finalizing = True
        await self._feed.flush()
        self._feed.stream.commit()
        await self.heard_all(lambda: bool(self._utterances))
        if self._finalizing:
            self._results(as_channel("", []), self._seconds, self._seconds, final=True)

    def translate(self, event: LiveEvent) -> None:
        """Emit the results of an utterance."""
        match event:
            case SpeechStarted():
                self._utterances[event.utterance] = event.start, ""
                if self._fields.vad_events:
                    started = {"channel": CHANNEL, "timestamp": round(event.start, 3)}
                    self.emit({"type": "SpeechStarted", **started})
            case TextUpdate():
                start, text = self._utterances[event.utterance]
                text += event.committed
                self._utterances[event.utterance] = start, text
                if (text := (text + event.tentative).strip()) and self._fields.interim_results:
                    self._results(as_channel(text, []), start, event.heard)
            case UtteranceEnded():
                start, _ = self._utterances.pop(event.utterance)
                end = max((s.end for s in event.segments), default=start)
                words = [word for segment in event.segments for word in as_words(segment)]
                channel = as_channel(event.text.strip(), words)
                self._results(channel, start, end, final=True, speech_final=True)
                if self._fields.utterance_end_ms and event.text:
                    ended = {"channel": CHANNEL, "last_word_end": round(end, 3)}
                    self.emit({"type": "UtteranceEnd", **ended})

    def _results(
        self,
        channel: dict[str, Any],
        start: float,
        end: float,
        final: bool = False,
        speech_final: bool = False,
    ) -> None:
        """Emit a result. speech_final: of a whole utterance."""
        heard = not (self._utterances or self._feed.stream.backlog > 0)
        from_finalize = final and self._finalizing and heard  # not if another utterance follows
        self._finalizing = self._finalizing and not from_finalize
        info = {"model_info": model_info(self._model), "model_uuid": self._model}
        self.emit(
            {
                "type": "Results",
                "channel_index": CHANNEL,
                "duration": round(end - start, 3),
                "start": round(start, 3),
                "is_final": final,
                "speech_final": speech_final,
                "from_finalize": from_finalize,
                "channel": channel,
                "metadata": {"request_id": self._id, **info},
            }
        )

    def refuse(self, error: APIError) -> None:
        """Emit an error, which ends the session, as it does there."""
        told = {"err_code": error.code, "err_msg": str(error)}  # of recordings; these of streams:
        self.emit({"type": "Error", "code": error.code, "description": str(error), **told})
        self.end(SessionEnd(POLICY))

    def last_events(self) -> list[dict[str, Any]]:
        """The metadata of the whole."""
        about = metadata(self._id, self._digest.hexdigest(), self._seconds, 1)
        return [{"type": "Metadata", **about}]
