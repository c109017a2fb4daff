"""OpenAI's API, by its own client and by requests that no client would make."""

from functools import partial
from typing import Any

import httpx
import jiwer
import openai
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from slimwhisper.app.api import routes
from slimwhisper.app.api.access import Access
from slimwhisper.app.api.errors import APIError
from slimwhisper.app.service.jobs import Limits
from slimwhisper.app.service.settings import Settings
from tests.support.live import Begin, Live, eventually
from tests.support.spoken import EXPECTED, SAMPLES

PHONE, LONG = SAMPLES / "phone-number.wav", SAMPLES / "three-minutes.ogg"


def test_every_format(live: Live) -> None:
    truth = EXPECTED[PHONE.name]
    create = partial(live.client().audio.transcriptions.create, file=PHONE, model="digits")
    plain = create(model="whisper-1")
    assert jiwer.wer(truth["text"], plain.text) == 0
    assert plain.usage.seconds >= truth["segments"][-1]["end"] - 1
    assert create(response_format="text").strip() == plain.text
    srt = create(response_format="srt")
    assert srt.startswith("1\n00:00:00,") and " --> " in srt
    assert create(response_format="vtt").startswith("WEBVTT\n\n00:00.")
    verbose = create(response_format="verbose_json")
    assert verbose.text == plain.text and verbose.language == "english"
    assert [s.text for s in verbose.segments] and verbose.words is None
    assert verbose.segments[0].start == pytest.approx(truth["segments"][0]["start"], abs=0.2)
    words = create(response_format="verbose_json", timestamp_granularities=["word"])
    assert [w.word for w in words.words] == words.text.split() and words.segments is None


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ({"model": "large-v9"}, 404, "model 'large-v9' is not available here"),
        ({"temperature": 7}, 400, "temperature '7': input should be less than or equal to 1"),
        ({"language": "klingon"}, 400, "klingon"),
        ({"file": ("cut.m4a", b"no audio at all")}, 400, "cut.m4a: not audio or video"),
        ({"file": ("../../etc/none.wav", b" ")}, 400, "none.wav: not audio or video"),
        # before a stream begins, so that its status says it
        ({"file": SAMPLES / "broken.m4a", "stream": True}, 400, "broken.m4a: not audio or video"),
        ({"languages": ["en", "klingon"], "stream": True}, 400, "'klingon' is not one"),
        ({"model": "gpt-4o-transcribe-diarize", "file": LONG, "stream": True}, 400, "over 30 s"),
    ],
)
def test_errors_in_openais_shape(
    live: Live, arguments: dict[str, Any], status: int, message: str
) -> None:
    given = {"file": PHONE, "model": "whisper-1", **arguments}
    with pytest.raises(openai.APIStatusError) as raised:
        live.client().audio.transcriptions.create(**given)
    error = raised.value
    assert error.status_code == status and message in str(error)
    assert set(error.body) == {"message", "type", "param", "code"}
    assert "/proc/" not in str(error) and "etc" not in str(error)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # OpenAI's client, of this call
def test_models_and_what_they_can(live: Live) -> None:
    client = live.client()
    assert [m.id for m in client.models.list()] == ["digits"]
    assert client.models.retrieve("digits").id == "digits"
    with pytest.raises(openai.NotFoundError, match="'gpt-7' is not available here; choose: dig"):
        client.models.retrieve("gpt-7")
    with pytest.raises(openai.BadRequestError, match="English-only and cannot translate"):
        client.audio.translations.create(file=PHONE, model="whisper-1")


def test_malformed_requests(live: Live) -> None:
    wave = PHONE.read_bytes()
    many = {f"f{i}": "x" for i in range(99)}
    odd = {"content-type": "multipart/form-data"}
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
    assert httpx.get(f"{live.url}/v1/audio/transcriptions").status_code == 405


def test_health_and_metrics(live: Live) -> None:
    assert httpx.get(f"{live.url}/health").json() == {"status": "ready"}
    assert live.post(files={"file": PHONE.read_bytes()}).status_code == 200
    text = httpx.get(f"{live.url}/metrics").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    assert values['slimwhisper_requests_total{outcome="finished"}'] >= 1
    assert values["slimwhisper_audio_seconds_total"] > 3
    assert values["slimwhisper_cache_bytes"] > 1e6 and values["slimwhisper_slots"] == 4
    assert values["slimwhisper_batch_fill"] > 0.5


def test_a_body_of_just_the_limit_is_taken() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await PlainTextResponse("read")(scope, receive, send)

    client = TestClient(Access(app, Settings(max_bytes=10)), base_url="http://localhost")
    post = partial(client.post, "/v1/audio/transcriptions")
    for content in (b"x" * 10, iter([b"x"] * 10)):  # which has no Content-Length
        assert post(content=content).text == "read"
    assert post(content=b"x" * 11).status_code == 413
    with pytest.raises(APIError, match="larger than"):
        post(content=iter([b"x"] * 11))


@pytest.mark.parametrize("poll", [0.1, 600.0], ids=["between events", "after one"])
def test_a_client_that_leaves_frees_its_slot(
    live: Live, monkeypatch: pytest.MonkeyPatch, poll: float
) -> None:
    monkeypatch.setattr(routes, "DISCONNECT_POLL", poll)
    before = live.service.counts.cancelled
    with pytest.raises(httpx.ReadTimeout):
        live.post(
            files={"file": LONG.read_bytes()},
            timeout=httpx.Timeout(60, read=0.3),
        )
    # busy machines look into the upload after the client left
    assert eventually(lambda: live.service.counts.cancelled == before + 1)
    assert eventually(lambda: live.service.in_flight == 0)


def test_a_full_queue_and_the_end(begin: Begin) -> None:
    live = begin(limits=Limits(queue=0))
    with pytest.raises(openai.RateLimitError) as raised:
        live.client().audio.transcriptions.create(file=PHONE, model="whisper-1")
    assert int(raised.value.response.headers["Retry-After"]) > 0
    live.service.stop(0)
    found = live.post(files={"file": PHONE.read_bytes()})
    assert found.status_code == 503 and found.headers["Retry-After"]
    assert found.json()["error"]["type"] == "server_error"
    assert httpx.get(f"{live.url}/health").json() == {"status": "stopping"}
