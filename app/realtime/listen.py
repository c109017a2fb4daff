"""Deepgram's /v1/listen for live streams: what a client sends, and what it is told.

As in deepgram-sdk 7.17 (listen/v1/types). Each utterance has one final result, with its words, and
interim results before it if the client asks for them.
"""

from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Any
from uuid import uuid4

from pydantic import BeforeValidator, Field
from starlette.datastructures import FormData
from starlette.websockets import WebSocket

from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.fields import check_form, json_object, one_of, refused
from slimwhisper.app.api.listen import ListenForm, as_channel, as_words, metadata, model_info
from slimwhisper.app.api.request import choose_model, response_headers
from slimwhisper.app.realtime.stream_feed import SoundFormat
from slimwhisper.app.realtime.stream_socket import NORMAL, POLICY, SessionEnd, StreamSocket
from slimwhisper.app.service.host import ServerHost
from slimwhisper.live.types import LiveEvent, SpeechStarted, TextUpdate, UtteranceEnded

CODINGS = {"linear16": "PCM_16", "linear32": "FLOAT", "mulaw": "ULAW", "alaw": "ALAW"}
LEAST_SILENCE = 150  # milliseconds that end an utterance: in shorter ones are words
CHANNEL = [0, 1]  # the first of one


class LiveForm(ListenForm):
    """The fields of a stream's query."""

    encoding: Annotated[str, one_of(CODINGS)]
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
        query: list[tuple[str, Any]] = [*websocket.query_params.multi_items()]
        self._fields = fields = check_form(LiveForm, FormData(query))
        choice, self._model, warnings = choose_model(fields.model, host.models)
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
        format = SoundFormat(CODINGS[fields.encoding], fields.sample_rate, fields.channels)
        self.begin(choice, options, format)
        self._id, self._digest, self._seconds = str(uuid4()), sha256(), 0.0
        self._starts: dict[int, float] = {}  # of the open utterances: seconds
        self._text: dict[int, str] = {}  # committed
        self._finalizing = False

    async def handle(self, message: dict[str, Any]) -> None:
        """Handle audio, or an event. Raises APIError, SlimWhisperError."""
        data = message.get("bytes")
        if data:
            self._digest.update(data)
            self._seconds += await self.append(data)
            return
        event = {"type": "CloseStream"} if data is not None else json_object(message["text"], "it")
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
        await self.heard_all(lambda: bool(self._starts))
        if self._finalizing:
            self._results(as_channel("", []), self._seconds, self._seconds, final=True)

    def translate(self, event: LiveEvent) -> None:
        """Emit the results of an utterance."""
        match event:
            case SpeechStarted():
                self._starts[event.utterance] = event.start
                self._text[event.utterance] = ""
                if self._fields.vad_events:
                    started = {"channel": CHANNEL, "timestamp": round(event.start, 3)}
                    self.emit({"type": "SpeechStarted", **started})
            case TextUpdate():
                committed = self._text[event.utterance] = (
                    self._text[event.utterance] + event.committed
                )
                text = (committed + event.tentative).strip()
                if text and self._fields.interim_results:
                    start = self._starts[event.utterance]
                    self._results(as_channel(text, []), start, event.heard)
            case UtteranceEnded():
                start = self._starts.pop(event.utterance)
                del self._text[event.utterance]
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
        from_finalize = final and self._finalizing
        self._finalizing = self._finalizing and not final
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
        self.emit({"type": "Error", "err_code": error.code, "err_msg": str(error)})
        self.end(SessionEnd(POLICY))

    def last_events(self) -> list[dict[str, Any]]:
        """The metadata of the whole."""
        about = metadata(self._id, self._digest.hexdigest(), self._seconds, 1)
        return [{"type": "Metadata", **about}]
