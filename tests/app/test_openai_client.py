"""OpenAI's client, sync and async, stream and not, against a server."""

import asyncio
import base64
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from openai.types.audio import TranscriptionDiarized, TranscriptionStreamEvent
from pydantic import TypeAdapter

import slimwhisper
from slimwhisper.api import SlimWhisper
from slimwhisper.app.api.errors import APIError, as_api_error
from slimwhisper.app.api.recordings import SpeakerReference, store_references
from slimwhisper.app.api.respond import FinishedTranscript, logprobs
from slimwhisper.errors import AudioError
from slimwhisper.formats.load import load_checkpoint
from slimwhisper.speakers.choice import missing
from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Segment, Transcript
from tests.support.checkpoints import tiny_dims
from tests.support.forms import wanted
from tests.support.harm import open_files
from tests.support.hf_folders import hf_folder, trained_table
from tests.support.live import Live
from tests.support.sounds import wav
from tests.support.spoken import SAMPLES

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
