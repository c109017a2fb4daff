"""OpenAI's API, by its own client and by requests that no client would make."""

import asyncio
import base64
import json
import re
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile
from openai.types.audio import TranscriptionDiarized, TranscriptionStreamEvent
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.app.api import respond
from slimwhisper.app.api.access import Access
from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.recordings import SpeakerReference, store_references
from slimwhisper.app.api.respond import FinishedTranscript, logprobs
from slimwhisper.app.service.host import ServerSettings
from slimwhisper.app.service.jobs import Limits
from slimwhisper.errors import AudioError, ReaderKilledError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.speakers.choice import missing
from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Segment, Transcript
from tests.support.checkpoints import tiny_dims
from tests.support.forms import wanted
from tests.support.harm import open_files
from tests.support.hf_folders import hf_folder, trained_table
from tests.support.live import Begin, Live, eventually, held_readers
from tests.support.paths import BROKEN, PHONE
from tests.support.realtime import PATH, QUERY, encoded, sample, until
from tests.support.sounds import ffmpeg, wav, write
from tests.support.spoken import EXPECTED, LONG, SAMPLES


def test_every_format(live: Live) -> None:
    truth = EXPECTED[PHONE.name]
    create = partial(live.client().audio.transcriptions.create, file=PHONE, model="digits")
    plain = create(model="whisper-1")
    assert plain.usage.seconds >= truth["segments"][-1]["end"] - 1
    assert create(response_format="vtt").startswith("WEBVTT\n\n00:00.")
    verbose = create(response_format="verbose_json")
    assert verbose.text == plain.text and verbose.language == "english"
    assert [s.text for s in verbose.segments] and verbose.words is None
    assert verbose.segments[0].start == pytest.approx(truth["segments"][0]["start"], abs=0.2)
    words = create(response_format="verbose_json", timestamp_granularities=["word"])
    assert [w.word for w in words.words] == words.text.split() and words.segments is None


def test_errors_in_openais_shape(live: Live) -> None:
    data = PHONE.read_bytes()
    for arguments, status, message in (
        ({"model": "large-v9"}, 404, "model 'large-v9' is not available here"),
        ({"temperature": 7}, 400, "temperature '7': input should be less than or equal to 1"),
        ({"language": "klingon"}, 400, "klingon"),
        ({"file": ("../../etc/none.wav", b" ")}, 400, "none.wav: not audio or video"),
        ({"file": ("cut.wav", data[:100_001])}, 400, "of 9.0 s"),
        # before a stream begins, so that its status says it
        ({"file": BROKEN, "stream": True}, 400, "broken.m4a: not audio or video"),
        ({"languages": ["en", "klingon"], "stream": True}, 400, "'klingon'"),
    ):
        given: dict[str, Any] = {"file": PHONE, "model": "whisper-1", **arguments}
        with pytest.raises(openai.APIStatusError) as raised:
            live.client().audio.transcriptions.create(**given)
        error = raised.value
        assert error.status_code == status and message in str(error)
        assert set(error.body) == {"message", "type", "param", "code"}
        for hidden in ("/proc/", "etc", "allow_truncated"):
            assert hidden not in str(error)
    killed = as_api_error(ReaderKilledError("a.wav: its decoder was killed twice"))
    assert (killed.status_code, killed.headers) == (503, {"Retry-After": "10"})


def test_what_is_odd_is_said_in_a_header(live: Live, tmp_path: Path) -> None:
    """Each in each response's header, whatever the tags in the file."""
    data = PHONE.read_bytes()
    at = data.index(b"data") + 4
    half = data[:at] + (50_000).to_bytes(4, "little") + data[at + 4 :]
    tracks = tmp_path / "film.mkv"
    tags = ("-metadata:s:a:0", "language=j\r\nX: 1")
    ffmpeg("-i", write(tmp_path / "a.wav"), "-i", PHONE, "-map", "0", "-map", "1", *tags, tracks)
    create = live.client().audio.transcriptions.with_raw_response.create
    english = "digits is English-only: language 'en' is used, not 'de'"
    for name, sent, language, warning in (
        ("half.wav", half, "en", "its header states 50,000 bytes of samples, but there are"),
        ("film.mkv", tracks.read_bytes(), "en", "2 audio tracks: 1 j%0D%0AX: 1 (taken"),
        *(("a.wav", data, "de", english),) * 2,
    ):
        response = create(file=(name, sent), model="digits", language=language)
        assert warning in response.headers["X-Slimwhisper-Warning"]
    chosen = create(file=tracks, model="digits", extra_body={"audio_track": "2"})
    assert chosen.parse().text.startswith("five five five")
    assert "X-Slimwhisper-Warning" not in chosen.headers


def test_a_stream_is_never_silent_for_long(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy closes a silent connection, also while a recording is read and speakers are found."""
    for name in ("HEARTBEAT", "DISCONNECT_POLL"):
        monkeypatch.setattr(respond, name, 0.01)
    begin, url = held_readers(monkeypatch), f"{live.url}/v1/audio/transcriptions"
    sent: Any = {"files": {"file": PHONE.read_bytes()}, "data": {"stream": "true"}}
    with httpx.stream("POST", url, **sent, timeout=60) as response:
        lines = response.iter_lines()
        assert next(lines) == ": still at work"
        begin.set()
        assert list(lines)[-5] == "event: transcript.text.done"


def test_one_model(live: Live) -> None:
    models = live.client().models
    assert models.retrieve("digits").id == "digits"
    with pytest.raises(openai.NotFoundError, match="'gpt-7' is not available here; choose: dig"):
        models.retrieve("gpt-7")


def test_what_clients_of_openai_send_and_read(live: Live) -> None:
    wave = {"file": PHONE.read_bytes()}
    data = {"language": "auto", "timestamp_granularities[]": "segment"}
    found = live.post(files=wave, data=data)
    assert found.status_code == 200 and found.headers["x-request-id"].startswith("req_")
    wrong = live.post(files=wave, data={"language": "xx"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "language")
    for accept, kind in (("*/*", "application/x-subrip"), ("text/plain", "text/plain")):
        srt = live.post(files=wave, data={"response_format": "srt"}, headers={"accept": accept})
        assert srt.headers["content-type"] == f"{kind}; charset=utf-8"
    data = {"response_format": "verbose_json", "language": "de"}
    translated = live.post("/v1/audio/translations", files=wave, data=data)
    assert translated.json()["language"] == "english"
    schema = httpx.get(f"{live.url}/openapi.json").json()
    assert "/audio/transcriptions" in schema["paths"] and schema["servers"] == [{"url": "/v1"}]
    assert "language" in schema["components"]["schemas"]["TranscriptionForm"]["properties"]


def test_malformed_requests(live: Live) -> None:
    wave = PHONE.read_bytes()
    many = {f"f{i}": "x" for i in range(99)}
    odd = {"content-type": "Multipart/Form-Data"}
    for options, status in (
        ({"json": {"file": "a.wav"}}, 415),
        ({"data": {"model": "whisper-1"}, "files": {"other": wave}}, 400),
        ({"files": [("file", wave), ("file", wave)]}, 400),
        ({"files": {"file": wave, "model": b"digits"}}, 400),
        ({"content": b"--x\r\nnonsense", "headers": odd}, 400),
        ({"data": many, "files": {"file": wave}}, 400),
    ):
        found = live.post(**options)
        assert found.status_code == status, found.text
        assert set(found.json()["error"]) == {"message", "type", "param", "code"}
    assert httpx.get(f"{live.url}/v1/nothing").json()["error"]["message"].endswith("Not Found")
    refused = httpx.get(f"{live.url}/v1/audio/transcriptions")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")
    assert httpx.get(f"{live.url}/v1/models/").json()["object"] == "list"


COUNTERS = (
    "requests updates merged_updates audio_seconds busy_seconds steps filled_slots preemptions"
)
GAUGES = "in_flight streams speed batch_fill slots cache_bytes text_bytes"


def test_health_and_metrics(live: Live) -> None:
    assert httpx.get(f"{live.url}/health").json() == {"status": "ready"}
    assert httpx.head(f"{live.url}/health").status_code == 200
    path, form = "/audio/transcriptions?api-version=1", {"model": "whisper"}
    found = live.post(path, files={"file": PHONE.read_bytes()}, data=form)
    assert found.status_code == 200 and "five" in found.json()["text"]
    with live.client().realtime.connect(extra_query=QUERY) as connection:
        for piece in sample(24_000, 1.0):
            connection.input_audio_buffer.append(audio=encoded(piece))
        until(connection, f"{PATH}.delta")
        lines = httpx.get(f"{live.url}/metrics").text.splitlines()
    types = dict(line.split()[2:] for line in lines if line.startswith("# TYPE"))
    counters = {f"slimwhisper_{name}_total": "counter" for name in COUNTERS.split()}
    gauges = {f"slimwhisper_{name}": "gauge" for name in GAUGES.split()}
    latency = "slimwhisper_commit_latency_seconds"
    assert types == {**counters, **gauges, latency: "histogram"}
    rows = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    values = {name.removeprefix("slimwhisper_"): float(value) for name, value in rows.items()}
    assert not any("_created" in name for name in values)
    assert values['requests_total{outcome="finished"}'] >= 1
    assert values["audio_seconds_total"] > 3 and values["batch_fill"] > 0.2
    assert values["cache_bytes"] > 1e6 and values["slots"] == 4
    assert values["streams"] == 1 and values["updates_total"] > 0
    assert values['commit_latency_seconds_bucket{le="+Inf"}'] > 0
    assert 0 < values["commit_latency_seconds_sum"] < 60


def test_a_body_of_just_the_limit_is_taken() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await PlainTextResponse("read")(scope, receive, send)

    client = TestClient(Access(app, ServerSettings(max_bytes=10)), base_url="http://localhost")
    post = partial(client.post, "/v1/audio/transcriptions")
    for content in (b"x" * 10, iter([b"x"] * 10)):  # which has no Content-Length
        assert post(content=content).text == "read"
    for content in (b"x" * 11, iter([b"x"] * 11)):
        assert post(content=content).status_code == 413


def test_a_client_that_leaves_frees_its_slot(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an event; between events: attack/test_bodies.py."""
    monkeypatch.setattr(respond, "DISCONNECT_POLL", 600.0)
    before = live.service.counts.cancelled
    files = {"file": (SAMPLES / LONG).read_bytes()}
    with pytest.raises(httpx.ReadTimeout):
        live.post(files=files, timeout=httpx.Timeout(60, read=0.3))
    # busy machines look into the upload after the client left
    assert eventually(lambda: live.service.counts.cancelled == before + 1)
    assert eventually(lambda: live.service.in_flight == 0)


def test_a_full_queue_and_the_end(begin: Begin) -> None:
    live = begin(limits=Limits(queue=0))
    with pytest.raises(openai.RateLimitError) as raised:
        live.client().audio.transcriptions.create(file=PHONE, model="whisper-1")
    assert int(raised.value.response.headers["Retry-After"]) > 0
    assert live.service.counts.refused == 1
    live.service.stop(0)
    found = live.post(files={"file": PHONE.read_bytes()})
    assert found.status_code == 503 and found.headers["Retry-After"]
    assert found.json()["error"]["type"] == "server_error"
    assert httpx.get(f"{live.url}/health").json() == {"status": "stopping"}


# OpenAI's client, sync and async, stream and not


CODE = SAMPLES / "door-code.mp3"
VAD = {"type": "server_vad", "threshold": 0.4, "prefix_padding_ms": 300, "silence_duration_ms": 400}


def said(token_logprobs: Any) -> str:
    """The text of tokens, from their bytes."""
    return b"".join(bytes(map(int, t.bytes)) for t in token_logprobs).decode()


def test_all_at_once(live: Live, model: SlimWhisper) -> None:
    raw = live.client().audio.transcriptions.with_raw_response.create(
        file=CODE,
        model="gpt-4o-transcribe",
        include=["logprobs"],
        keywords=["seven"],
        languages=["en"],
        prompt="one two",
        chunking_strategy=VAD,
        extra_body={"fps": "25"},
    )
    assert raw.headers["X-Slimwhisper-Model"] == "digits"
    assert raw.headers["X-Slimwhisper-Warning"] == 'unknown field "fps" was ignored'
    found = raw.parse()
    expected = model.transcribe(
        CODE,
        token_logprobs=True,
        hotwords="seven",
        initial_prompt="one two",
        parallel=True,
        vad_threshold=0.4,
        vad_speech_pad_ms=300,
        vad_min_silence_duration_ms=400,
    )
    assert found.text == expected["text"].strip() and found.logprobs
    assert said(found.logprobs).strip() == found.text
    segments = expected["segments"]
    pairs = [p for s in segments for p in zip(s["tokens"], s["token_logprobs"], strict=True)]
    text = [logprob for token, logprob in pairs if model.network.vocabulary.is_text(token)]
    assert [t.logprob for t in found.logprobs] == pytest.approx(text, abs=1e-4)
    usage = found.usage
    seconds = soundfile.info(CODE).duration
    assert usage.type == "tokens" and usage.output_tokens == len(pairs)
    assert usage.input_token_details.audio_tokens == pytest.approx(50 * seconds, abs=5)
    tokenizer = model.network.vocabulary.tokenizer()
    prompt = len(tokenizer.encode(" one two")) + len(tokenizer.encode(" seven"))
    assert usage.input_token_details.text_tokens == prompt
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def test_a_stream_of_an_asynchronous_client(live: Live) -> None:
    async def listen() -> tuple[list[Any], Any]:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any") as client:
            create = client.audio.transcriptions.create
            stream = await create(
                file=CODE, model="gpt-transcribe", include=["logprobs"], stream=True
            )
            events = [event async for event in stream]
            return events, await create(file=CODE, model="gpt-transcribe")

    (*deltas, done), whole = asyncio.run(listen())
    assert {e.type for e in deltas} == {"transcript.text.delta"}
    assert (done.type, done.text) == ("transcript.text.done", whole.text)
    assert "".join(e.delta for e in deltas) == done.text
    assert [said(e.logprobs).strip() for e in deltas] == [e.delta.strip() for e in deltas]
    each = [t.model_dump() for e in deltas for t in e.logprobs]
    assert each == [t.model_dump() for t in done.logprobs]
    assert all(t.logprob <= 0 for t in done.logprobs)
    assert [language.code for language in done.languages] == ["en"]
    assert [language.code for language in whole.languages] == ["en"] and whole.logprobs is None
    assert done.usage.model_dump() == whole.usage.model_dump()
    assert done.usage.output_tokens > len(done.logprobs), "timestamps count too"


def tone(seconds: float) -> bytes:
    return wav(np.sin(np.arange(round(16_000 * seconds)) / 20).astype(np.float32) / 4)


def test_known_speakers_are_read_apart_and_leave_nothing(live: Live) -> None:
    before = open_files()
    known = [SpeakerReference("Ann", tone(2.5)), SpeakerReference("Bo", tone(9.5))]
    files, read = AsyncExitStack(), live.service.reading.read
    pairs = store_references(known, read, files)
    assert [name for name, _ in pairs] == ["Ann", "Bo"]
    assert [soundfile.info(path).duration for _, path in pairs] == [2.5, 9.5]
    asyncio.run(files.aclose())
    assert not any(Path(path).exists() for _, path in pairs)
    for data, message in (
        (tone(1), "'Cy': 1.0 s long"),
        (tone(11), "'Cy': 11.0 s long"),
        (b"no audio", "'Cy': not audio or video"),
    ):
        with pytest.raises((APIError, AudioError), match=re.escape(message)) as raised:
            store_references([SpeakerReference("Cy", data)], read, AsyncExitStack())
        assert as_api_error(raised.value).status_code == 400 and "/proc" not in str(raised.value)
    assert open_files() <= before


def data_url(data: bytes) -> str:
    return "data:audio/wav;base64," + base64.b64encode(data).decode()


@pytest.mark.skipif(bool(missing("embedding")), reason="the extra diarize is not installed")
def test_a_known_voice_is_called_by_its_name(live: Live) -> None:
    arguments: dict[str, Any] = {
        "file": CODE,
        "model": "gpt-4o-transcribe-diarize",
        "response_format": "diarized_json",
        "chunking_strategy": "auto",
        "known_speaker_names": ["Ann"],
    }
    create = live.client().audio.transcriptions.create
    voice = data_url(wav(slimwhisper.load_audio(CODE)[: 4 * 16_000]))
    found = create(**arguments, known_speaker_references=[voice])
    assert {s.speaker for s in found.segments} == {"Ann"}
    assert "".join(s.text for s in found.segments).strip() == found.text
    with pytest.raises(openai.BadRequestError) as raised:
        empty = data_url(wav(np.zeros(16_000 * 3, np.float32)))
        create(**arguments, known_speaker_references=[empty], stream=True)
    assert "known_speaker_references[] of 'Ann': has no speech" in str(raised.value)
    assert "/proc" not in str(raised.value)


def diarized() -> FinishedTranscript:
    """A conversation of a known speaker, two unknown ones, and silence."""
    fields = [
        ("model", "gpt-4o-transcribe-diarize"),
        ("response_format", "diarized_json"),
        ("known_speaker_names[]", "Ann"),
        ("known_speaker_references[]", data_url(b"RIFF")),
    ]
    speech = [("SPEAKER_01", " one"), ("Ann", "two"), (None, ""), ("SPEAKER_00", " three")]
    segments = [
        Segment(i, 0, float(i), i + 0.5, text, [], 0.0, -0.1, 1.0, 0.0, speaker=speaker)
        for i, (speaker, text) in enumerate(speech)
    ]
    transcript = Transcript(" one two three", segments, "en")
    return FinishedTranscript(wanted(*fields), transcript, 4.25, get_vocabulary(tiny_dims()))


def test_dropped_segments_are_beside_the_others() -> None:
    said, dropped = (
        Segment(i, 0, float(i), i + 0.5, text, [], 0.0, -0.1, 1.0, 0.0, flags=flags)
        for i, (text, flags) in enumerate([(" one", ()), (" Thank you.", ("invented",))])
    )
    transcript = Transcript(" one", [said], "en", dropped=[dropped])
    request = wanted(("response_format", "verbose_json"))
    response = FinishedTranscript(request, transcript, 2.0, get_vocabulary(tiny_dims())).response()
    found = json.loads(bytes(response.body))
    assert (found["text"], [s["id"] for s in found["segments"]]) == ("one", [0])
    assert [(s["text"], s["flags"]) for s in found["dropped"]] == [(" Thank you.", ["invented"])]


def test_diarized_json_is_openais(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimwhisper.app.api.request.require", lambda *_: None)
    result = diarized()
    found = TranscriptionDiarized.model_validate_json(bytes(result.response().body), strict=True)
    assert (found.text, found.duration, found.task) == ("one two three", 4.25, "transcribe")
    said = [(s.id, s.speaker, s.text, s.start, s.end) for s in found.segments]
    assert said == [
        ("seg_000", "A", "one", 0.0, 0.5),
        ("seg_001", "Ann", "two", 1.0, 1.5),
        ("seg_003", "B", "three", 3.0, 3.5),
    ]
    events = TypeAdapter(list[TranscriptionStreamEvent]).validate_python(
        list(result.last_events()), strict=True
    )
    assert [e.type for e in events] == ["transcript.text.segment"] * 3 + ["transcript.text.done"]
    assert [e.model_dump() for e in events[:3]] == [s.model_dump() for s in found.segments]
    assert events[-1].text == found.text and events[-1].usage.type == "tokens"


def test_tokens_that_end_within_a_character(tmp_path: Path) -> None:
    folders = (hf_folder(tmp_path / str(p), trained_table(pieces=p)) for p in (True, False))
    for vocabulary in (get_vocabulary(tiny_dims()), *(load_checkpoint(f).tokens for f in folders)):
        tokenizer, text = vocabulary.tokenizer(), " Zürich 你好 🙂"
        begin = vocabulary.timestamps.start
        tokens = [begin, *tokenizer.encode(text), begin + 9]
        own = [-i / 8 for i in range(len(tokens))]
        segment = Segment(0, 0, 0.0, 1.0, text, tokens, 0.0, -1.0, 1.0, 0.0, token_logprobs=own)
        found = list(logprobs([segment], vocabulary))
        assert b"".join(bytes(t["bytes"]) for t in found).decode() == text
        assert any("\ufffd" in t["token"] for t in found), "a character of several tokens"
        assert [t["logprob"] for t in found] == own[1:-1]
