"""Channels as speakers over HTTP: OpenAI's form, and whisper.cpp's."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest

from slimwhisper.app.service.jobs import Job, Limits, ModelChoice
from slimwhisper.app.service.reading import JobSamples
from slimwhisper.audio.samples import ArraySamples, Samples
from tests.support.live import Live
from tests.support.service_jobs import Make, Upload
from tests.support.sounds import wav
from tests.support.spoken import Call, call


@pytest.fixture(scope="module")
def talk() -> Call:
    return call(turns=3)


@pytest.fixture(scope="module")
def stereo(talk: Call) -> bytes:
    """The call as a WAV file."""
    return wav(talk.audio.T)


def lines(talk: Call, *names: str) -> list[str]:
    """A line for each turn, as in a txt file."""
    turns = [talk.words[i : i + 3] for i in range(0, len(talk.words), 3)]
    return [f"{names[turn[0][0]]}: {' '.join(word for _, word in turn)}" for turn in turns]


def test_openais_form_and_whisper_cpps(live: Live, talk: Call, stereo: bytes) -> None:
    """The deltas of a stream are the whole text, as without channels."""
    fields = {"channels": "split", "channel_names[]": ["agent", "customer"], "model": "digits"}
    words, files = [word for _, word in talk.words], {"file": stereo}

    def asked(format: str, **more: str) -> httpx.Response:
        answer = live.post(data={"response_format": format, **fields, **more}, files=files)
        assert answer.status_code == 200, answer.text
        return answer

    streamed = asked("json", stream="true").text.splitlines()
    events = [json.loads(row[6:]) for row in streamed if row.startswith("data: {")]
    assert "".join(event.get("delta", "") for event in events) == events[-1]["text"]
    assert events[-1]["text"].split() == words
    assert asked("text").text.splitlines() == lines(talk, "agent", "customer")
    spoken = [("agent" if channel == 0 else "customer") for channel, _ in talk.words[::3]]
    diarized = asked("diarized_json").json()
    assert [s["speaker"] for s in diarized["segments"]] == spoken
    assert "<v agent>" in asked("vtt").text
    for format in ("text", "verbose_json"):
        data = {"diarize": "true", "response_format": format}
        answer = live.post("/inference", data=data, files=files)
        text = answer.text if format == "text" else answer.json()["text"]
        assert text.strip().splitlines() == lines(talk, "speaker 0", "speaker 1")
    assert "words" not in answer.json(), "they are inside of the segments"
    segments = answer.json()["segments"]
    assert {s["speaker"] for s in segments} == {"speaker 0", "speaker 1"}
    assert all(w["speaker"] == s["speaker"] for s in segments for w in s["words"])


def test_names_without_channels(live: Live, stereo: bytes) -> None:
    answer = live.post(data={"channel_names[]": ["a", "b"]}, files={"file": stereo})
    error = answer.json()["error"]
    assert answer.status_code == 400 and "also needs channels" in error["message"]
    assert error["param"] == "channel_names[]"


def test_all_channels_count_together(make: Make, stereo: bytes, talk: Call, tmp_path: Path) -> None:
    """Against the longest recording; and room is reserved for all."""
    path, seconds = tmp_path / "call.wav", talk.audio.shape[1] / 16_000
    path.write_bytes(stereo)
    service, seen = make(limits=Limits(seconds=2.5 * seconds)), list[int]()
    reserved = service.reading.store._reserved

    def record(samples: Samples) -> None:
        seen.extend([len(samples), *reserved.values()])

    found = Upload(service, path, channels="split", on_samples=record)
    assert found.text.split() == [word for _, word in talk.words]
    assert seen == [talk.audio.shape[1], talk.audio.size] and not reserved
    short = make(limits=Limits(seconds=1.5 * seconds))
    assert Upload(short, path).text
    assert "min, all channels together" in str(Upload(short, path, channels="split").error)


def test_the_mean_of_channels() -> None:
    channels = [ArraySamples(np.array(c, np.float32)) for c in ([0, 1, 2], [4, 4, 4])]
    job = Job(Path("gone"), "a", ModelChoice("m"), {}, "", print)
    mixed = JobSamples(channels, job)
    assert mixed.read(1, 3).tolist() == [2.5, 3.0]
